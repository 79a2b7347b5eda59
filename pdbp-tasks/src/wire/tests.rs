//! Bytes and messages of any length.

use super::*;

#[test]
fn bytes_of_any_length_come_back() {
    for length in [0, 1, SHORT - 1, SHORT, SHORT + 1, 1000] {
        let bytes: Vec<u8> = (0..length).map(|i| i as u8).collect();
        let encoded = postcard::to_stdvec(&Bytes::from(bytes.clone())).unwrap();
        assert_eq!(*decode::<Bytes>(&encoded).unwrap(), *bytes);
        assert!(decode::<Bytes>(&[encoded, vec![0]].concat()).is_err());
    }
}

#[test]
fn messages_are_cut_and_put_together() {
    for length in [0usize, 1, 9, 10, 11, 99, 100] {
        let message: Vec<u8> = (0..length).map(|i| i as u8).collect();
        let mut joined = pieces::Joined::default();
        let pieces: Vec<_> = pieces::cut(&message, 10).collect();
        assert!(pieces.iter().all(|piece| piece.len() <= 10));
        let (last, first) = pieces.split_last().unwrap();
        assert!(first.iter().all(|piece| joined.add(piece, |_| ()) == Some(None)));
        assert_eq!(joined.add(last, |whole| whole == message), Some(Some(true)));
    }
    assert_eq!(pieces::Joined::default().add(&[7, 1, 2], |_| ()), None);
    assert_eq!(pieces::Joined::default().add(&[], |_| ()), None);
}
