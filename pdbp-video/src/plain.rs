//! What may be shown of texts that others have written: addresses without their secrets, words of servers without what a terminal would obey.

/// Letters of a text of others that are shown.
const MOST_LETTERS: usize = 400;
/// Names that cameras give to what nobody else should know, in the paths and queries of their addresses.
const SECRETS: [&str; 15] = [
    "user",
    "usr",
    "username",
    "login",
    "password",
    "passwd",
    "passwort",
    "pass",
    "pwd",
    "psw",
    "token",
    "auth",
    "key",
    "secret",
    "signature",
];

/// The text in one line: no control characters, among them those that begin an escape sequence, nor any that turn the direction of writing, and
/// without secrets in addresses.
pub(crate) fn text(of: &str) -> String {
    let obeyed = |letter: char| {
        letter.is_control() || matches!(letter, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let line: String = of.chars().map(|letter| if obeyed(letter) { ' ' } else { letter }).collect();
    let line = without_secrets(&line);
    if line.chars().count() <= MOST_LETTERS {
        return line;
    }
    line.chars().take(MOST_LETTERS).chain(['…']).collect()
}

/// The address without user and password in front of its host, and with `…` for the values of parameters whose name says that they are secret,
/// such as `password=`, wherever they are.
pub(crate) fn without_secrets(address: &str) -> String {
    let address = without_user(address);
    let mut shown = String::new();
    let mut rest = address.as_str();
    while let Some((before, after)) = rest.split_once('=') {
        shown.push_str(before);
        shown.push('=');
        rest = after;
        let is_letter = |letter: char| letter.is_ascii_alphanumeric();
        let name = before.rsplit(|letter| !is_letter(letter)).next().unwrap_or_default();
        if SECRETS.iter().any(|secret| secret.eq_ignore_ascii_case(name)) {
            let end = value_end(rest);
            shown.push_str(if end > 0 { "…" } else { "" });
            rest = rest.get(end..).unwrap_or_default();
        }
    }
    shown + rest
}

/// Where the value at the start of `text` ends: at what parts parameters, which in paths may be a `_` in front of the next name.
fn value_end(text: &str) -> usize {
    let end = text.find(['&', ';', '/', '?', '#', ' ', '"', '\'']).unwrap_or(text.len());
    let value = text.get(..end).unwrap_or_default();
    let is_name = |name: &str| !name.is_empty() && name.bytes().all(|letter| letter.is_ascii_alphabetic());
    let next = value.match_indices('_').map(|(place, _)| place).find(|place| {
        let follows = value.get(place + 1..).unwrap_or_default();
        follows.split_once('=').is_some_and(|(name, _)| is_name(name))
    });
    next.unwrap_or(end)
}

fn without_user(address: &str) -> String {
    let Some((scheme, rest)) = address.split_once("://") else { return address.to_owned() };
    let ends = |marks: &[char]| rest.find(marks).unwrap_or(rest.len());
    let user_end = |end: usize| rest.get(..end).and_then(|host| host.rfind('@'));
    let host_end = ends(&['/', '?', '#', ' ']);
    // A password with one of these marks, which should have been encoded, begins like a port that is no number.
    let port = rest.get(..host_end).and_then(|host| host.rsplit_once(':')).map(|(_, port)| port);
    let is_port = |port: &str| port.ends_with(']') || port.parse::<u16>().is_ok();
    let has_mark = port.is_some_and(|port| !is_port(port)) || may_have_user(rest);
    let end = user_end(if has_mark { ends(&[' ']) } else { host_end });
    let rest = end.and_then(|end| rest.get(end + 1..)).unwrap_or(rest);
    format!("{scheme}://{rest}")
}

/// Whether what follows `://` begins like a host with a port, but may be a user with a password of digits and a `/`, which should have been
/// encoded: after an `@` in its path there is one more path, as after a host.
pub(crate) fn may_have_user(rest: &str) -> bool {
    let Some((begin, path)) = rest.split_once(['/', '?', '#', ' ']) else { return false };
    let is_number = |port: &str| !port.is_empty() && port.bytes().all(|digit| digit.is_ascii_digit());
    let has_port = begin.rsplit_once(':').is_some_and(|(_, port)| is_number(port)) && !begin.contains('@');
    let path = path.split(' ').next().unwrap_or_default();
    has_port && path.rsplit_once('@').is_some_and(|(_, host)| host.contains('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_in_addresses_are_not_shown_and_all_else_is() {
        for (address, shown) in [
            ("rtsp://cam/one?channel=2", "rtsp://cam/one?channel=2"),
            ("rtsp://me:secret@cam:554/one", "rtsp://cam:554/one"),
            ("rtp://me:sec@ret@1.2.3.4", "rtp://1.2.3.4"),
            ("rtsp://me:sec/ret@cam/one", "rtsp://cam/one"),
            ("rtsp://me:12/sec@cam/one", "rtsp://cam/one"),
            ("rtsp://me:12/s?c@cam:554/one; a@b", "rtsp://cam:554/one; a@b"),
            ("not rtsp://me:#sec?r@et@cam:554/one; a@b", "not rtsp://cam:554/one; a@b"),
            ("rtsp://cam:554/one@2", "rtsp://cam:554/one@2"),
            // It could be part of a password.
            ("rtsp://me:secret@cam/one@2", "rtsp://2"),
            ("rtsp://[fe80::1]/one@2", "rtsp://[fe80::1]/one@2"),
            ("rtsp://cam/live?User=me&PWD=s%20x&channel=1", "rtsp://cam/live?User=…&PWD=…&channel=1"),
            (
                "rtsp://cam/user=me_password=a_b_channel=1_stream=0.sdp",
                "rtsp://cam/user=…_password=…_channel=1_stream=0.sdp",
            ),
            ("rtsp://cam/?auth_token=abc", "rtsp://cam/?auth_token=…"),
            ("rtsp://cam/?password=", "rtsp://cam/?password="),
            ("rtsp://cam/bypass=1", "rtsp://cam/bypass=1"),
            ("no address", "no address"),
        ] {
            assert_eq!(without_secrets(address), shown);
        }
    }

    #[test]
    fn no_terminal_obeys_what_a_server_says() {
        assert_eq!(text("404 \x1b[2J\x1b]0;x\x07gone\r\n\u{202e}x"), "404  [2J ]0;x gone   x");
        assert_eq!(text("cannot open rtsp://a:b@cam/?pwd=x "), "cannot open rtsp://cam/?pwd=… ");
        assert_eq!(text(&"ü".repeat(1_000)).chars().count(), MOST_LETTERS + 1);
    }
}
