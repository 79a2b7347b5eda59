//! Session descriptions (RFC 8866): which video is sent where, and its parameter sets.

use std::net::{IpAddr, SocketAddr};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use sdp_types::Session;

use super::Media;
use crate::annexb::Standard;

/// A video in a description.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    /// Its destination; `None` if the description does not name one, as with RTSP servers.
    pub to: Option<SocketAddr>,
    /// Its coding.
    pub media: Media,
}

/// The videos of a description that can be read, in order.
///
/// # Errors
/// Why there are none.
pub fn videos(text: &[u8]) -> Result<Vec<Described>, String> {
    // ffmpeg adds a line in front.
    let start = text
        .windows(2)
        .position(|start| start == b"v=")
        .ok_or("this is no session description (no line v=0)")?;
    let text = text.get(start..).unwrap_or_default();
    check_lines(text)?;
    let session = Session::parse(text).map_err(|error| format!("damaged session description: {error}"))?;
    let mut found = Vec::new();
    let mut videos = Vec::new();
    for media in session.medias.iter().filter(|media| media.media == "video") {
        let payload_type: Option<u8> =
            media.fmt.split_whitespace().next().and_then(|number| number.parse().ok());
        let Some(payload_type) = payload_type else { continue };
        let encoding = encoding(media, payload_type);
        let standard = match encoding.to_ascii_uppercase().as_str() {
            "H264" => Standard::H264,
            "H265" => Standard::H265,
            _ => {
                found.push(encoding);
                continue;
            }
        };
        let formats = format_of(media, payload_type);
        let parameter = |name: &str| {
            formats.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| *value)
        };
        let interleaved = parameter("packetization-mode") == Some("2")
            || parameter("sprop-max-don-diff").is_some_and(|value| value != "0");
        if interleaved {
            return Err("its packets are interleaved (packetization-mode=2), which is not read; let the sender use mode 1".into());
        }
        let names = ["sprop-vps", "sprop-sps", "sprop-pps", "sprop-parameter-sets"];
        let sets = names.into_iter().filter_map(parameter).flat_map(|sets| sets.split(','));
        let parameter_sets = sets
            .filter_map(|set| BASE64_STANDARD.decode(set.trim()).ok())
            .filter(|set| !set.is_empty())
            .collect();
        let connection = media.connections.first().or(session.connection.as_ref());
        // A multicast address may be followed by its scope.
        let address = connection
            .and_then(|connection| connection.connection_address.split('/').next()?.parse::<IpAddr>().ok());
        let to = address.filter(|_| media.port > 0).map(|address| SocketAddr::new(address, media.port));
        videos.push(Described {
            to,
            media: Media { standard, payload_type: Some(payload_type), parameter_sets },
        });
    }
    if videos.is_empty() {
        let found = if found.is_empty() { "no video at all".to_owned() } else { found.join(", ") };
        return Err(format!("it describes no H.264 or H.265 video (found: {found})"));
    }
    Ok(videos)
}

/// Checks what `sdp_types` assumes about the lines after the first `m=`, since it panics otherwise.
fn check_lines(text: &[u8]) -> Result<(), String> {
    for (number, line) in (1..).zip(text.split(|byte| *byte == b'\n')) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if !line.is_empty() && line.iter().position(|byte| *byte == b'=') != Some(1) {
            return Err(format!(
                "damaged session description: its line {number} is none such as m=video; write it anew"
            ));
        }
    }
    Ok(())
}

/// Such as `H264`, of a line `a=rtpmap:96 H264/90000`.
fn encoding(media: &sdp_types::Media, payload_type: u8) -> String {
    let of_type = |value: &str| {
        let (number, name) = value.split_once(' ')?;
        (number.parse() == Ok(payload_type))
            .then(|| name.split('/').next().unwrap_or_default().trim().to_owned())
    };
    values(media, "rtpmap").find_map(of_type).unwrap_or_else(|| format!("payload type {payload_type}"))
}

/// Parameters of a line `a=fmtp:96 packetization-mode=1; …`.
fn format_of(media: &sdp_types::Media, payload_type: u8) -> Vec<(&str, &str)> {
    let of_type =
        |value: &'_ str| value.split_once(' ').is_some_and(|(number, _)| number.parse() == Ok(payload_type));
    let line = values(media, "fmtp").find(|value| of_type(value)).and_then(|value| value.split_once(' '));
    let parameters = line.map_or("", |(_, parameters)| parameters).split(';');
    parameters.filter_map(|parameter| parameter.trim().split_once('=')).collect()
}

fn values<'a>(media: &'a sdp_types::Media, name: &'a str) -> impl Iterator<Item = &'a str> {
    media
        .attributes
        .iter()
        .filter(move |attribute| attribute.attribute == name)
        .filter_map(|attribute| attribute.value.as_deref())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As written by ffmpeg.
    const H264: &str = "SDP:\nv=0\no=- 0 0 IN IP4 127.0.0.1\ns=No Name\nc=IN IP4 127.0.0.1\nt=0 0\na=tool:libavformat 59.27.100\n\
        m=video 5004 RTP/AVP 96\nb=AS:200\na=rtpmap:96 H264/90000\n\
        a=fmtp:96 packetization-mode=1; sprop-parameter-sets=Z0LACtoEwJ7ARAAAAwAEAAADAMg8SJqA,aM4PyA==; profile-level-id=42C00A\n";

    #[test]
    fn what_ffmpeg_describes_is_read() {
        let [video] = &videos(H264.as_bytes()).unwrap()[..] else { panic!() };
        assert_eq!(video.to, Some("127.0.0.1:5004".parse().unwrap()));
        assert_eq!((video.media.standard, video.media.payload_type), (Standard::H264, Some(96)));
        let kinds: Vec<_> = video.media.parameter_sets.iter().map(|set| set[0] & 0x1f).collect();
        assert_eq!(kinds, [7, 8]);
        let h265 = "v=0\r\no=- 0 0 IN IP4 1.2.3.4\r\ns=x\r\nt=0 0\r\nm=audio 1 RTP/AVP 0\r\nm=video 0 RTP/AVP 97\r\nc=IN IP4 239.0.0.1/32\r\n\
            a=rtpmap:97 h265/90000\r\na=fmtp:97 sprop-vps=QAE=;sprop-sps=QgE=;sprop-pps=RAE=\r\n";
        let [video] = &videos(h265.as_bytes()).unwrap()[..] else { panic!() };
        assert_eq!((video.to, video.media.standard), (None, Standard::H265));
        assert_eq!(video.media.parameter_sets, [[0x40, 1], [0x42, 1], [0x44, 1]]);
    }

    #[test]
    fn what_cannot_be_read_is_refused_by_name() {
        for (text, words) in [
            ("", "no session description"),
            ("v=0\no=- nothing\n", "damaged"),
            (&format!("{H264}no line\na=x\n"), "its line 11 is none"),
            (&H264.replace("H264", "VP8"), "VP8"),
            (&H264.replace("mode=1", "mode=2"), "interleaved"),
            ("v=0\no=- 0 0 IN IP4 1.2.3.4\ns=x\nt=0 0\nm=audio 1 RTP/AVP 0\n", "no video at all"),
        ] {
            let error = videos(text.as_bytes()).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
