//! Packets as senders make them, in order and not, whole and not.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::clips::BUNDLED;

/// A sender of what an Annex B stream holds.
struct Sender {
    standard: Standard,
    number: u16,
    ssrc: u32,
    /// Bytes of a payload.
    room: usize,
}

impl Sender {
    fn new(standard: Standard) -> Self {
        Self { standard, number: 65_530, ssrc: 7, room: 200 }
    }

    fn packet(&mut self, time: u32, is_last: bool, payload: &[u8]) -> Vec<u8> {
        let number = self.number;
        self.number = number.wrapping_add(1);
        let packet = rtp_types::RtpPacketBuilder::<&[u8], &[u8]>::new().payload_type(96).marker_bit(is_last);
        packet.sequence_number(number).timestamp(time).ssrc(self.ssrc).payload(payload).write_vec().unwrap()
    }

    /// The packets of a picture: short NAL units together, long ones in fragments, others alone.
    fn picture(&mut self, time: u32, unit: &[u8]) -> Vec<Vec<u8>> {
        let nals: Vec<&[u8]> = nals(unit);
        let mut payloads: Vec<Vec<u8>> = Vec::new();
        let (short, long): (Vec<&[u8]>, Vec<&[u8]>) = nals.iter().partition(|nal| nal.len() < 60);
        let header = if self.standard == Standard::H264 { 1 } else { 2 };
        if short.len() > 1 {
            let mut several = if header == 1 { vec![24] } else { vec![48 << 1, 1] };
            for nal in &short {
                several.extend_from_slice(&u16::try_from(nal.len()).unwrap().to_be_bytes());
                several.extend_from_slice(nal);
            }
            payloads.push(several);
        } else {
            payloads.extend(short.iter().map(|nal| nal.to_vec()));
        }
        for nal in long {
            if nal.len() <= self.room {
                payloads.push(nal.to_vec());
                continue;
            }
            let parts: Vec<_> = nal[header..].chunks(self.room).collect();
            for (place, part) in parts.iter().enumerate() {
                let ends = u8::from(place == 0) << 7 | u8::from(place + 1 == parts.len()) << 6;
                let mut payload = match header {
                    1 => vec![nal[0] & 0xe0 | 28, ends | nal[0] & 0x1f],
                    _ => vec![nal[0] & 0x81 | 49 << 1, nal[1], ends | nal[0] >> 1 & 0x3f],
                };
                payload.extend_from_slice(part);
                payloads.push(payload);
            }
        }
        let last = payloads.len() - 1;
        let payloads = payloads.iter().enumerate();
        payloads.map(|(place, payload)| self.packet(time, place == last, payload)).collect()
    }

    fn pictures(&mut self, units: &[Vec<u8>]) -> Vec<Vec<u8>> {
        (0u32..).zip(units).flat_map(|(number, unit)| self.picture(3_600 * number, unit)).collect()
    }
}

/// The NAL units of a stream without start codes.
fn nals(unit: &[u8]) -> Vec<&[u8]> {
    crate::annexb::nals(unit).map(|nal| &unit[nal.range][3..]).collect()
}

/// Those that a picture consists of.
fn slices(standard: Standard, unit: &[u8]) -> Vec<&[u8]> {
    let is_slice = |nal: &&[u8]| {
        if standard == Standard::H264 { matches!(nal[0] & 0x1f, 1..=5) } else { nal[0] >> 1 & 0x3f < 32 }
    };
    nals(unit).into_iter().filter(is_slice).collect()
}

/// The pictures of a stream.
fn units(data: &[u8]) -> Vec<Vec<u8>> {
    crate::annexb::Index::new(data)
        .unwrap()
        .pictures
        .iter()
        .map(|range| data[range.clone()].to_vec())
        .collect()
}

fn media(standard: Standard) -> Media {
    Media { standard, payload_type: Some(96), parameter_sets: Vec::new() }
}

fn read(reader: &mut RtpReader, packets: &[Vec<u8>]) -> Vec<Unit> {
    let mut read = Vec::new();
    for packet in packets {
        reader.push(packet, Duration::ZERO, &mut |unit| read.push(unit));
    }
    read
}

/// Whether these are pictures of `sent`, slice by slice, in their order, the first of each run a key picture.
fn are_pictures_of(read: &[Unit], sent: &[Vec<u8>]) -> bool {
    let mut next = 0;
    let mut waits = true;
    read.iter().all(|unit| match unit {
        Ok(unit) => {
            let place = sent
                .iter()
                .skip(next)
                .position(|sent| slices(unit.standard, sent) == slices(unit.standard, &unit.bytes));
            let fits = place.is_some_and(|place| place == 0 || unit.is_key) && (unit.is_key || !waits);
            next += place.unwrap_or_default() + 1;
            waits = false;
            fits
        }
        Err(_) => {
            waits = true;
            true
        }
    })
}

fn h265() -> Vec<u8> {
    std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/streams/hevc_repeated_headers.265")).unwrap()
}

#[test]
fn all_pictures_come_out_of_single_aggregated_and_fragmented_packets() {
    for (standard, data) in [(Standard::H264, BUNDLED[0].data.to_vec()), (Standard::H265, h265())] {
        let sent = units(&data);
        let mut sender = Sender::new(standard);
        let packets = sender.pictures(&sent);
        let read = read(&mut RtpReader::new(&media(standard)), &packets);
        assert_eq!(read.len(), sent.len(), "{standard}");
        assert!(read.iter().all(Result::is_ok) && are_pictures_of(&read, &sent), "{standard}");
    }
}

#[test]
fn parameter_sets_of_the_description_are_put_in_front_of_key_pictures() {
    let sent = units(BUNDLED[0].data);
    let (sets, slices): (Vec<&[u8]>, Vec<&[u8]>) =
        nals(&sent[0]).into_iter().partition(|nal| matches!(nal[0] & 0x1f, 7 | 8));
    let bare: Vec<u8> = slices.iter().flat_map(|nal| [&[0, 0, 1], *nal].concat()).collect();
    let parameter_sets: Vec<_> = sets.iter().map(|set| set.to_vec()).collect();
    let packets = Sender::new(Standard::H264).pictures(&[bare]);
    let read = read(&mut RtpReader::new(&Media { parameter_sets, ..media(Standard::H264) }), &packets);
    let unit = read[0].as_ref().unwrap();
    assert_eq!(crate::annexb::Index::new(&unit.bytes).unwrap().entries.len(), 1);
    assert_eq!(nals(&unit.bytes)[..sets.len()], sets);
}

/// The set that was missing stood in front of the one that it refers to: decoders do not know it then.
#[test]
fn parameter_sets_that_a_key_picture_lacks_follow_those_that_they_refer_to() {
    let sent = units(BUNDLED[0].data);
    let is_picture_set = |nal: &&[u8]| nal[0] & 0x1f == 8;
    let (missing, rest): (Vec<&[u8]>, Vec<&[u8]>) = nals(&sent[0]).into_iter().partition(is_picture_set);
    let bare: Vec<u8> = rest.iter().flat_map(|nal| [&[0, 0, 1], *nal].concat()).collect();
    let parameter_sets: Vec<_> = missing.iter().map(|set| set.to_vec()).collect();
    let packets = Sender::new(Standard::H264).pictures(&[bare]);
    let read = read(&mut RtpReader::new(&Media { parameter_sets, ..media(Standard::H264) }), &packets);
    let unit = read[0].as_ref().unwrap();
    let types: Vec<_> = nals(&unit.bytes).iter().map(|nal| nal[0] & 0x1f).collect();
    let first = |wanted: u8| types.iter().position(|kind| *kind == wanted);
    assert!(first(7) < first(8) && first(8) < first(5), "{types:?}");
}

#[test]
fn packets_that_overtake_others_are_put_in_order() {
    let sent = units(BUNDLED[0].data);
    let mut packets = Sender::new(Standard::H264).pictures(&sent);
    for chunk in packets[1..].chunks_mut(7) {
        chunk.reverse();
    }
    // Each comes twice, too.
    let packets: Vec<_> = packets.into_iter().flat_map(|packet| [packet.clone(), packet]).collect();
    let mut reader = RtpReader::new(&media(Standard::H264));
    let read = read(&mut reader, &packets);
    assert_eq!((read.len(), reader.lost()), (sent.len(), 0));
    assert!(are_pictures_of(&read, &sent));
}

#[test]
fn pictures_without_a_lost_packet_are_left_out_until_the_next_key_picture() {
    let sent = units(BUNDLED[0].data);
    let packets = Sender::new(Standard::H264).pictures(&sent);
    for lost in [1, 5, 40, 90, 200] {
        // Parameter sets that were known before are no loss.
        let is_sets = packets[lost][12] & 0x1f == 24;
        let mut rest = packets.clone();
        rest.remove(lost);
        let mut reader = RtpReader::new(&media(Standard::H264));
        let read = read(&mut reader, &rest);
        let faults: Vec<_> = read.iter().filter_map(|unit| unit.as_ref().err()).collect();
        assert_eq!(reader.lost(), 1);
        assert!(
            faults.iter().all(|fault| fault.contains("a packet was lost")) && faults.len() <= 1,
            "{faults:?}"
        );
        assert!(are_pictures_of(&read, &sent), "{lost}");
        // A key picture every 30.
        let whole = read.iter().filter(|unit| unit.is_ok()).count();
        assert!(whole >= sent.len() - 30 && (whole < sent.len()) != is_sets, "{lost}: {whole}");
    }
}

#[test]
fn a_sender_that_begins_anew_is_listened_to_and_a_stray_packet_is_not() {
    let sent = units(BUNDLED[0].data);
    let mut reader = RtpReader::new(&media(Standard::H264));
    let mut first = Sender::new(Standard::H264);
    let mut stranger = Sender { ssrc: 99, number: 5, ..Sender::new(Standard::H264) };
    let mut packets = first.pictures(&sent[..20]);
    packets.insert(9, stranger.packet(1, true, &[0x65, 0x88, 1]));
    let before = read(&mut reader, &packets);
    assert!(before.len() == 20 && are_pictures_of(&before, &sent));
    let mut again = Sender { ssrc: 8, number: 1_000, ..Sender::new(Standard::H264) };
    let mut packets = vec![again.packet(0, true, &[9, 0xf0])];
    packets.extend(again.pictures(&sent));
    let after = read(&mut reader, &packets);
    assert_eq!(after.iter().filter(|unit| unit.is_ok()).count(), sent.len());
    assert!(
        after[0].as_ref().unwrap_err().contains("another sender (00000008 after 00000007)"),
        "{:?}",
        after[0]
    );
}

/// Pictures in one packet each, one a second, as a camera sends that has key pictures only.
fn slow() -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let sent = vec![units(BUNDLED[0].data).remove(0); 12];
    let mut sender = Sender { room: 60_000, ..Sender::new(Standard::H264) };
    // Of a picture the parameter sets are in the first packet, which stays whole.
    let packets = sender.pictures(&sent);
    (sent, packets)
}

#[test]
fn a_packet_that_is_lost_is_waited_for_no_longer_than_for_one_that_is_late() {
    let (sent, mut packets) = slow();
    let of_each = packets.len() / sent.len();
    let lost = 4 * of_each + of_each - 1;
    packets.remove(lost);
    let mut reader = RtpReader::new(&media(Standard::H264));
    let mut read: Vec<Unit> = Vec::new();
    let second =
        |packet: usize| Duration::from_secs(((packet + usize::from(packet >= lost)) / of_each) as u64);
    for (number, packet) in packets.iter().enumerate() {
        let now = second(number);
        // What has come after a second that nothing came in.
        if let Some(due) = reader.due().filter(|due| *due <= now) {
            assert!(due < now, "waited for until the next picture came");
            let before = read.len();
            reader.expire(due - Duration::from_millis(1), &mut |unit| read.push(unit));
            assert_eq!(read.len(), before);
            reader.expire(due, &mut |unit| read.push(unit));
            assert_eq!(
                (read.len(), due),
                (before + 2, second(lost) + LATE),
                "what was lost, and what waited for it"
            );
        }
        assert!(reader.push(packet, now, &mut |unit| read.push(unit)));
    }
    assert_eq!((reader.due(), reader.lost()), (None, 1));
    assert!(are_pictures_of(&read, &sent));
    let faults = read.iter().filter_map(|unit| unit.as_ref().err()?.as_str().into()).collect::<Vec<_>>();
    assert_eq!((faults, read.len()), (vec!["a packet was lost"], sent.len()));
}

#[test]
fn in_a_connection_no_packet_is_waited_for() {
    let (sent, mut packets) = slow();
    packets.remove(packets.len() / 2 - 1);
    let mut reader = RtpReader::new(&media(Standard::H264)).in_order();
    for packet in &packets {
        reader.push(packet, Duration::ZERO, &mut |_| ());
        assert_eq!(reader.due(), None);
    }
    assert_eq!(reader.lost(), 1);
    assert!(!sent.is_empty());
}

#[test]
fn sources_that_nobody_decodes_hold_no_more_than_there_is_for_all_and_each_goes_on() {
    let room = Arc::new(Room::new(400_000));
    let sources: Vec<_> = (0..10).map(|_| Shared::new(&room)).collect();
    let unit = |is_key| AccessUnit { standard: Standard::H264, bytes: vec![0; 2_000], is_key };
    for number in 0..90 {
        sources.iter().for_each(|shared| shared.put(Ok(unit(number % 30 == 0))));
    }
    let held: Vec<_> = sources.iter().map(|shared| shared.queue().bytes).collect();
    assert!(held.iter().sum::<usize>() <= 400_000, "{held:?}");
    // Half of it in equal shares.
    assert!(held.iter().all(|held| *held >= 20_000), "{held:?}");
    let faults =
        |shared: &Shared| core::iter::from_fn(|| shared.take()).filter_map(Result::err).collect::<Vec<_>>();
    let all: Vec<_> = sources.iter().flat_map(faults).collect();
    assert!(!all.is_empty() && all.iter().all(|fault| fault.contains("--live-memory")), "{all:?}");
    for shared in &sources {
        shared.put(Ok(unit(true)));
        assert!(shared.take().unwrap().unwrap().is_key);
    }
}

#[test]
fn a_picture_that_alone_is_too_large_is_not_called_slow_decoding() {
    let shared = Shared::new(&Arc::default());
    shared.put(Ok(AccessUnit { standard: Standard::H264, bytes: vec![0; MOST_QUEUED + 1], is_key: true }));
    let fault = shared.take().unwrap().unwrap_err();
    assert!(fault.contains("a picture of 16777217 bytes") && fault.contains("16777216"), "{fault}");
}

#[test]
fn the_last_key_picture_is_kept_when_it_was_decoded_and_somebody_looks() {
    let source = Source::new(Address::parse("rtp://127.0.0.1:0").unwrap().unwrap());
    let unit = AccessUnit { standard: Standard::H264, bytes: vec![0; 9], is_key: true };
    source.decoded(unit.clone());
    assert_eq!(source.last_key(), None);
    source.keep_keys();
    source.feed(Ok(unit.clone()));
    assert!(source.take().is_some() && source.last_key().is_none(), "not decoded yet");
    source.decoded(AccessUnit { is_key: false, ..unit.clone() });
    assert_eq!(source.last_key(), None);
    source.decoded(unit.clone());
    assert_eq!(source.last_key(), Some(unit));
}

/// They begin a NAL unit that does not end.
#[test]
fn what_comes_in_is_bounded_for_all_sources_together() {
    let room = Arc::new(Room::new(1 << 20));
    let mut sources: Vec<_> = (0..20)
        .map(|_| {
            let shared = Arc::new(Shared::new(&room));
            (receive::Listener::new(Arc::clone(&shared)), RtpReader::new(&media(Standard::H264)), shared)
        })
        .collect();
    let mut sender = Sender::new(Standard::H264);
    let first = sender.packet(1, false, &[28, 0x85, 0x88]);
    let packets: Vec<_> =
        (0..200).map(|_| sender.packet(1, false, &[[28, 5].as_slice(), &[1; 1_400]].concat())).collect();
    for packet in core::iter::once(&first).chain(&packets) {
        for (listener, reader, _) in &mut sources {
            listener.push(reader, packet);
        }
        let held: usize = sources.iter().map(|(_, reader, _)| reader.held()).sum();
        assert!(held <= 1 << 20, "{held}");
    }
    let is_said =
        |shared: &Shared| shared.take().is_some_and(|unit| unit.unwrap_err().contains("--live-memory"));
    assert!(sources.iter().any(|(.., shared)| is_said(shared)));
}

#[test]
fn what_is_not_read_is_refused_by_name() {
    for (text, words) in [
        ("rtp://localhost:5004", "no IP address"),
        ("rtp://127.0.0.1:5004?codec=vp8", "codec=vp8"),
        ("http://x/y", "http is not read"),
        ("rtsp://", "rtsp://HOST"),
    ] {
        let error = Address::parse(text).unwrap().unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    assert!(Address::parse("clips/a.h264").is_none());
    let address = Address::parse("rtsp://me:p%40ss@camera:554/one").unwrap().unwrap();
    assert_eq!(address.to_string(), "rtsp://camera:554/one");
    let Address::Rtsp { credentials, .. } = address else { panic!() };
    assert_eq!(credentials, Some(("me".into(), "p@ss".into())));
    let marked = Address::parse("rtsp://me:x/secret@cam/one").unwrap().unwrap_err();
    assert!(marked.text == "rtsp://cam/one" && marked.reason.contains("%2F"), "{marked}");
    // It was asked of port 12 of a host "me", and shown.
    let digits = Address::parse("rtsp://me:12/secret@cam/one").unwrap().unwrap_err();
    assert!(digits.text == "rtsp://cam/one" && digits.reason.contains("%2F"), "{digits}");
    assert!(Address::parse("rtsp://cam:554/one@2").unwrap().is_ok());
    assert!(Address::parse("rtsp://me:pw@cam:554/a@b/c").unwrap().is_ok());
    for text in ["foo://me:secret@x", "rtp://me:secret@1.2.3.4", "rtp://1.2.3.4:1?password=secret"] {
        let text = Address::parse(text).unwrap().unwrap_err().to_string();
        assert!(!text.contains("secret"), "{text}");
    }
    for text in ["rtsp://cam/x?user=me&password=secret", "RTSPU://cam/user=me_password=secret_channel=1"] {
        let address = Address::parse(text).unwrap().unwrap();
        assert!(!address.to_string().contains("secret"), "{address}");
        // It is asked for as it was written.
        let Address::Rtsp { url, .. } = address else { panic!() };
        assert!(url.scheme() == "rtsp" && url.as_str().contains("password=secret"));
    }
}

#[test]
fn a_queue_that_nobody_empties_stays_short_and_goes_on_at_a_key_picture() {
    let shared = Shared::new(&Arc::default());
    let unit = |is_key| AccessUnit { standard: Standard::H264, bytes: vec![0; 1000], is_key };
    for number in 0..1_000 {
        shared.put(Ok(unit(number % 30 == 0)));
    }
    for _ in 0..100 {
        shared.put(Err("broken".into()));
    }
    let entries: Vec<_> = core::iter::from_fn(|| shared.take()).collect();
    assert!(entries.len() <= MOST_UNITS + MOST_FAULTS, "{}", entries.len());
    assert!(entries[MOST_UNITS].as_ref().unwrap_err().contains("does not keep up"));
    shared.put(Ok(unit(false)));
    shared.put(Ok(unit(true)));
    assert!(shared.take().unwrap().unwrap().is_key && shared.take().is_none());
}

/// The decoder went on over the gap.
#[test]
fn a_fault_that_there_is_no_room_for_is_reported_before_the_next_picture() {
    let shared = Shared::new(&Arc::default());
    let unit = |is_key| Ok(AccessUnit { standard: Standard::H264, bytes: vec![0; 9], is_key });
    for _ in 0..=MOST_FAULTS {
        shared.put(unit(true));
        shared.put(Err("a packet was lost".into()));
    }
    shared.put(unit(true));
    let mut entries: Vec<_> = shared.take().into_iter().collect();
    // Of a picture that was dropped meanwhile the rest is of no use.
    shared.put(unit(false));
    entries.extend(core::iter::from_fn(|| shared.take()));
    shared.put(unit(false));
    shared.put(unit(true));
    entries.extend(core::iter::from_fn(|| shared.take()));
    assert_eq!(entries.iter().filter(|entry| entry.is_ok()).count(), MOST_FAULTS + 2);
    assert!(
        entries.chunks(2).all(|pair| pair[0].is_ok() && pair.get(1).is_none_or(Result::is_err)),
        "{entries:?}"
    );
    assert_eq!(shared.waiting.load(Ordering::Relaxed), 0);
}

proptest! {
    /// Whatever is lost, doubled or swapped: pictures that come out are whole, in order, and follow a key picture.
    #[test]
    fn only_whole_pictures_come_out(changes in proptest::collection::vec((0usize..900, 0u8..4, 0usize..6), 0..30), is_h265: bool) {
        let (standard, data) = if is_h265 { (Standard::H265, h265()) } else { (Standard::H264, BUNDLED[0].data.to_vec()) };
        let sent = units(&data);
        let mut packets = Sender::new(standard).pictures(&sent);
        for (place, what, by) in changes {
            let place = place % packets.len();
            match what {
                0 => _ = packets.remove(place),
                1 => packets.insert((place + by).min(packets.len()), packets[place].clone()),
                _ => { let other = (place + by).min(packets.len() - 1); packets.swap(place, other); }
            }
        }
        let read = read(&mut RtpReader::new(&media(standard)), &packets);
        prop_assert!(are_pictures_of(&read, &sent));
    }

    #[test]
    fn any_bytes_are_accepted(packets in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..60), 0..40), is_h265: bool) {
        let standard = if is_h265 { Standard::H265 } else { Standard::H264 };
        let packets: Vec<_> = (0u16..).zip(packets).map(|(number, mut packet)| {
            // Most with a header that is accepted.
            if packet.len() > 12 && packet[0] % 4 > 0 {
                packet[0] = 0x80;
                    packet[1] = 96 | packet[1] & 0x80;
                packet[2..4].copy_from_slice(&number.to_be_bytes());
                packet[8..12].fill(1);
            }
            packet
        }).collect();
        for unit in read(&mut RtpReader::new(&media(standard)), &packets).into_iter().flatten() {
            prop_assert!(unit.bytes.starts_with(&[0, 0, 0, 1]));
        }
    }
}
