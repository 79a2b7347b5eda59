//! Bytes and messages of any length.

use proptest::prelude::*;

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

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Any bytes either are a message, which survives being encoded again, or are refused.
    #[test]
    fn no_bytes_are_two_messages(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        fn same<T: for<'a> Deserialize<'a> + Serialize + PartialEq + fmt::Debug>(bytes: &[u8]) {
            let Ok(message) = decode::<T>(bytes) else { return };
            let encoded = postcard::to_stdvec(&message).unwrap();
            assert_eq!(decode::<T>(&encoded).unwrap(), message);
            assert!(decode::<T>(&[&encoded[..], &[0]].concat()).is_err(), "a byte too many");
        }
        same::<Up>(&bytes);
        same::<Down>(&bytes);
        same::<Chunk>(&bytes);
    }

    /// Pieces in any order and of any kind among those of a message: the message arrives whole, or a piece is refused, and the next message
    /// arrives again.
    #[test]
    fn strange_pieces_do_no_harm_to_the_next_message(
        unexpected in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..20),
        message in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let mut joined = pieces::Joined::default();
        for piece in &unexpected {
            joined.add(piece, |_| ());
        }
        // A piece that is refused discards the partial message.
        prop_assert_eq!(joined.add(&[9], |_| ()), None);
        prop_assert!(joined.is_empty());
        let mut whole = None;
        for piece in pieces::cut(&message, 10) {
            whole = joined.add(&piece, <[u8]>::to_vec).flatten();
        }
        prop_assert_eq!(whole, Some(message));
        prop_assert!(joined.is_empty());
    }
}
