//! What the parser of envelopes accepts, and how it reports the rest.

use std::time::Duration;

use proptest::prelude::*;

use super::envelope::{CONTENT, DESK, Operation, Version, read};
use super::fault::{Code, Fault, Reason};
use super::mailbox::Letters;
use super::{answer, fault};

const V11: &str = Version::V11.namespace();
const V12: &str = Version::V12.namespace();

fn envelope(namespace: &str, body: &str) -> String {
    format!("<e:Envelope xmlns:e=\"{namespace}\"><e:Body>{body}</e:Body></e:Envelope>")
}

fn asked(text: &str) -> Result<(Version, Operation), Fault> {
    read(text.as_bytes(), Version::V11).map_err(|(_, fault)| fault)
}

/// The fault for an envelope.
fn refused(text: &str) -> Fault {
    asked(text).expect_err(text)
}

/// An element of the desk's own namespace.
fn own(name: &str, inner: &str) -> String {
    format!("<{name} xmlns=\"{DESK}\">{inner}</{name}>")
}

#[test]
fn envelopes_are_read_as_clients_write_them() {
    let call = Operation::Call { to: "a@node1".to_owned(), content: b"hello".to_vec(), timeout: None };
    let slow = Operation::Call {
        to: "a & b".to_owned(),
        content: Vec::new(),
        timeout: Some(Duration::from_millis(1500)),
    };
    let fields = "<To>a@node1</To><Content>aGVsbG8=</Content>";
    for (text, version, operation) in [
        (envelope(V11, &own("Call", fields)), Version::V11, &call),
        // As zeep sends it.
        (
            format!(
                "<?xml version='1.0' encoding='utf-8'?>\n<soap-env:Envelope xmlns:soap-env=\"{V12}\"><soap-env:Body><ns0:Call xmlns:ns0=\"{DESK}\">\
                 <ns0:To>a@node1</ns0:To><ns0:Content>aGVsbG8=</ns0:Content></ns0:Call></soap-env:Body></soap-env:Envelope>"
            ),
            Version::V12,
            &call,
        ),
        // As some send it from Windows, with a byte order mark.
        (
            format!(
                "\u{feff}<?xml version=\"1.0\" encoding=\"utf-8\"?>{}",
                envelope(V11, &own("Call", fields))
            ),
            Version::V11,
            &call,
        ),
        // As gSOAP sends it: all prefixes at the top, white space, an encoding style, an empty header.
        (
            format!(
                "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<SOAP-ENV:Envelope xmlns:SOAP-ENV=\"{V11}\" xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\" \
                 xmlns:d=\"{DESK}\">\n <SOAP-ENV:Header/>\n <SOAP-ENV:Body SOAP-ENV:encodingStyle=\"\">\n  <d:Call>\n   <d:To>a@node1</d:To>\n   \
                 <d:Content>\n aGVs\n bG8=\n </d:Content>\n  </d:Call>\n </SOAP-ENV:Body>\n</SOAP-ENV:Envelope>\n"
            ),
            Version::V11,
            &call,
        ),
        (
            envelope(V12, &own("Call", "<To>a &amp; &#98;</To><TimeoutMs> 1500 </TimeoutMs><Content/>")),
            Version::V12,
            &slow,
        ),
        (
            envelope(
                V12,
                &own(
                    "Call",
                    "<To><![CDATA[a@]]>node1</To><!-- a word --><Content>aGVs<!-- -->bG8=</Content>",
                ),
            ),
            Version::V12,
            &call,
        ),
        (envelope(V11, &own("Parts", " ")), Version::V11, &Operation::Parts),
        // A header that need not be understood, and one for an intermediary.
        (
            format!(
                "<e:Envelope xmlns:e=\"{V12}\"><e:Header><a b='c'><d/>text</a><x:y xmlns:x='z' e:mustUnderstand='true' e:role='urn:other'/></e:Header>\
                 <e:Body>{}</e:Body></e:Envelope>",
                own("Parts", "")
            ),
            Version::V12,
            &Operation::Parts,
        ),
    ] {
        assert_eq!(asked(&text), Ok((version, operation.clone())), "{text}");
    }
    let send = |from: Option<&str>| Operation::Send {
        to: "a".to_owned(),
        content: vec![0; 3],
        from: from.map(str::to_owned),
    };
    let mailbox = "box@node0".to_owned();
    for (operation, fields, expected) in [
        ("Send", "<To>a</To><Content>AAAA</Content>", send(None)),
        ("Send", "<To>a</To><Content>AAAA</Content><From>box</From>", send(Some("box"))),
        ("OpenMailbox", "<Name> box </Name>", Operation::OpenMailbox { name: "box".to_owned(), idle: None }),
        (
            "OpenMailbox",
            "<Name>box</Name><IdleMs>3600000</IdleMs>",
            Operation::OpenMailbox { name: "box".to_owned(), idle: Some(Duration::from_secs(3600)) },
        ),
        (
            "Receive",
            "<Mailbox>box@node0</Mailbox><Taken>0</Taken>",
            Operation::Receive { mailbox: mailbox.clone(), taken: 0, timeout: None },
        ),
        (
            "Receive",
            "<Mailbox>box@node0</Mailbox><Taken>18446744073709551615</Taken><TimeoutMs>5</TimeoutMs>",
            Operation::Receive {
                mailbox: mailbox.clone(),
                taken: u64::MAX,
                timeout: Some(Duration::from_millis(5)),
            },
        ),
        ("CloseMailbox", "<Mailbox>box@node0</Mailbox>", Operation::CloseMailbox { mailbox }),
    ] {
        assert_eq!(asked(&envelope(V11, &own(operation, fields))), Ok((Version::V11, expected)));
    }
}

#[test]
fn what_is_no_envelope_is_refused_with_the_reason() {
    let parts = own("Parts", "");
    let nested = |depth: usize| format!("{}{}", "<a>".repeat(depth), "</a>".repeat(depth));
    let with = |header: &str| {
        format!(
            "<e:Envelope xmlns:e=\"{V12}\"><e:Header>{header}</e:Header><e:Body>{parts}</e:Body></e:Envelope>"
        )
    };
    for (text, said) in [
        (String::new(), "cut short|ends instead"),
        ("{}".to_owned(), "text instead of"),
        ("<a/>".to_owned(), "\"a\", not Envelope"),
        (
            format!("<!DOCTYPE a [<!ENTITY b 'c'>]>{}", envelope(V11, &parts)),
            "not have a DTD, but this one has a DOCTYPE",
        ),
        (format!("<?php go?>{}", envelope(V11, &parts)), "a processing instruction"),
        (envelope(V11, &own("Call", "<To>&xxe;</To>")), "an entity of its own"),
        (with("<a b='&xxe;'/>"), "an entity of its own"),
        (envelope(V11, &own("Call", "<To>&#xffffffff;</To>")), "a character reference is invalid"),
        (with(&nested(15)), "more than 16 deep"),
        (
            with(&format!("<a {}/>", (0..33).map(|i| format!("b{i}='c' ")).collect::<String>())),
            "more than 32 attributes",
        ),
        (with(&format!("<a b='{}'/>", "c".repeat(1025))), "more than 1024 bytes"),
        (with(&format!("<{}/>", "a".repeat(1025))), "more than 1024 bytes"),
        (with("<a b='c' b='d'/>"), "an attribute is malformed"),
        (with("<x:a/>"), "\"x\" has no namespace"),
        (with("<a x:b='c'/>"), "\"x\" has no namespace"),
        (envelope(V11, ""), "the Body is empty"),
        (envelope(V11, &format!("{parts}{parts}")), "an extra element"),
        (envelope(V11, "<Parts/>"), "no operation \"Parts\" in \"\""),
        (envelope(V11, &own("Steal", "")), "no operation \"Steal\""),
        (envelope(V11, &own("Parts", "<To>a</To>")), "Parts has an unknown or repeated element \"To\""),
        (envelope(V11, &own("Call", "<Content/>")), "Call has no To"),
        (envelope(V11, &own("Call", "<To> </To><Content/>")), "Call has no To"),
        (envelope(V11, &own("Send", "<To>a</To>")), "Send has no Content"),
        (envelope(V11, &own("Send", "<To>a</To><Content>?</Content>")), "not base64Binary"),
        (envelope(V11, &own("Send", "<To>a</To><Content>AAA</Content>")), "not base64Binary"),
        (envelope(V11, &own("Send", "<To>a</To><To>b</To><Content/>")), "repeated element \"To\""),
        (
            envelope(V11, &own("Send", "<To>a</To><Content/><TimeoutMs>1</TimeoutMs>")),
            "repeated element \"TimeoutMs\"",
        ),
        (envelope(V11, &own("Send", "<To>a<b/></To><Content/>")), "To may contain only text"),
        (envelope(V11, &own("Call", "<To>a</To><Content/><TimeoutMs>0</TimeoutMs>")), "TimeoutMs is \"0\""),
        (
            envelope(V11, &own("Call", "<To>a</To><Content/><TimeoutMs>600001</TimeoutMs>")),
            "must be 1 to 600000",
        ),
        (
            envelope(V11, &own("Send", "<To>a</To><Content/><From> </From>")),
            "Send has no mailbox in its From",
        ),
        (envelope(V11, &own("OpenMailbox", "<IdleMs>1</IdleMs>")), "OpenMailbox has no Name"),
        (
            envelope(V11, &own("OpenMailbox", "<Name>a</Name><IdleMs>3600001</IdleMs>")),
            "IdleMs is \"3600001\" but must be 1 to 3600000",
        ),
        (envelope(V11, &own("Receive", "<Mailbox>a</Mailbox>")), "Receive has no Taken"),
        (envelope(V11, &own("Receive", "<Mailbox>a</Mailbox><Taken>-1</Taken>")), "Taken is \"-1\""),
        (envelope(V11, &own("CloseMailbox", "")), "CloseMailbox has no Mailbox"),
        (format!("{}<more/>", envelope(V11, &parts)), "follows the Envelope"),
        (format!("<?xml version='1.0' encoding='latin1'?>{}", envelope(V11, &parts)), "UTF-8"),
    ] {
        let fault = refused(&text);
        assert_eq!((fault.code, fault.reason), (Code::Sender, Reason::Malformed), "{text}: {fault:?}");
        assert!(said.split('|').any(|said| fault.message.contains(said)), "{text}: {fault:?}");
    }
    let whole = envelope(V12, &own("Call", "<To>a</To><Content>aGVsbG8=</Content>"));
    for end in 0..whole.len() {
        assert_eq!(refused(&whole[..end]).code, Code::Sender, "cut at {end}");
    }
    assert_eq!(read(b"\xff", Version::V12).unwrap_err().0, Version::V12);
}

#[test]
fn what_is_for_others_or_too_long_has_a_code_of_its_own() {
    let parts = own("Parts", "");
    assert_eq!(refused(&envelope("urn:soap-9", &parts)).code, Code::VersionMismatch);
    let header = "<x:Security xmlns:x='urn:x' e:mustUnderstand='1'/>";
    let text = format!(
        "<e:Envelope xmlns:e=\"{V11}\"><e:Header>{header}</e:Header><e:Body>{parts}</e:Body></e:Envelope>"
    );
    let fault = refused(&text);
    assert_eq!(fault.code, Code::MustUnderstand);
    assert!(fault.message.contains("Security"));
    let content = |bytes: usize| {
        use base64::Engine as _;
        let content = base64::engine::general_purpose::STANDARD.encode(vec![7; bytes]);
        envelope(V12, &own("Send", &format!("<To>a</To><Content>{content}</Content>")))
    };
    assert!(asked(&content(CONTENT)).is_ok());
    assert_eq!(refused(&content(CONTENT + 1)).reason, Reason::TooLong);
    // Around the message there are 64 KiB, however long the message is.
    let with = |bytes: usize| {
        let around = "<a/>".repeat(bytes / 4);
        content(CONTENT).replace("<e:Body>", &format!("<e:Header>{around}</e:Header><e:Body>"))
    };
    assert!(asked(&with(60_000)).is_ok());
    let fault = refused(&with(1 << 16));
    assert_eq!(fault.reason, Reason::TooLong, "{fault:?}");
    assert!(fault.message.contains("65536 bytes outside of Content"), "{fault:?}");
    let to = own("Send", &format!("<To>{}</To><Content/>", "a".repeat(2000)));
    assert_eq!(refused(&envelope(V12, &to)).reason, Reason::TooLong);
}

#[test]
fn answers_are_envelopes_whatever_they_say() {
    for version in [Version::V11, Version::V12] {
        let fault = fault::Fault::receiver(Reason::Busy, "a <part> & \u{1}its \"name\"");
        let said = answer::fault(version, &fault);
        assert!(said.more.starts_with("Retry-After"));
        let mut letters = Letters::default();
        letters.push(Some("a&b@node0".to_owned()), Some(1), b"]]>");
        for one in [
            said,
            answer::parts(version, &["a<b>@node0".to_owned()]),
            answer::called(version, b"]]>"),
            answer::opened(version, "a&b"),
            answer::received(version, &answer::letters(letters.deliver().unwrap())),
        ] {
            let mut xml = quick_xml::NsReader::from_str(&one.body);
            while !matches!(xml.read_resolved_event().unwrap().1, quick_xml::events::Event::Eof) {}
        }
    }
    let wsdl = answer::wsdl("http://host/a&b");
    assert!(
        wsdl.contains("location=\"http://host/a&amp;b\"")
            && wsdl.contains("</xs:schema>")
            && !wsdl.contains('{')
    );
}

proptest! {
    /// Any bytes are parsed or refused, also those that are nearly an envelope.
    #[test]
    fn envelopes_of_any_bytes_are_read_or_refused(
        any in prop::collection::vec(any::<u8>(), 0..200),
        place in 0..300usize,
        cut in 0..40usize,
    ) {
        let _ = read(&any, Version::V12);
        let mut near = envelope(V12, &own("Call", "<To>a</To><Content>aGVsbG8=</Content>")).into_bytes();
        let place = place.min(near.len());
        let end = (place + cut).min(near.len());
        near.splice(place..end, any);
        let _ = read(&near, Version::V11);
    }
}
