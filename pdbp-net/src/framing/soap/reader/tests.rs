use super::*;
use crate::framing::soap::{EXCHANGE, SOAP, XOP};

/// An envelope with such a body and such headers.
fn envelope(headers: &str, body: &str) -> String {
    format!(
        "<e:Envelope xmlns:e=\"{SOAP}\" xmlns:p=\"{EXCHANGE}\" xmlns:x=\"{XOP}\"><e:Header><p:Link taken=\"7\" room=\"2\"/>{headers}</e:Header>\
         <e:Body>{body}</e:Body></e:Envelope>"
    )
}

fn block(cid: &str) -> String {
    format!("<p:Block sequence=\"9\" length=\"4\" codec=\"zstd\"><x:Include href=\"cid:{cid}\"/></p:Block>")
}

fn put(blocks: &str) -> String {
    envelope("", &format!("<p:Put>{blocks}</p:Put>"))
}

fn why(envelope: &str) -> &'static str {
    read(envelope.as_bytes()).unwrap_err().why
}

#[test]
fn envelopes_of_others_are_read_as_ours() {
    let ours = read(put(&block("1@pdbp")).as_bytes()).unwrap();
    let block = Block { sequence: 9, length: 4, packing: Packing::Zstd, id: "1@pdbp".to_owned() };
    assert_eq!((ours.word, ours.link, &ours.blocks), (Word::Put, Some((7, 2)), &vec![block]));
    // Other prefixes, an XML declaration, white space, comments, a reference, foreign headers.
    let others = format!(
        "<?xml version='1.0' encoding='UTF-8'?>\n<!-- a proxy was here -->\n<SOAP-ENV:Envelope xmlns:SOAP-ENV='{SOAP}'\n xmlns='{EXCHANGE}'>\n \
         <SOAP-ENV:Header>\n<Link room='2' taken='&#55;'></Link><t:Trace xmlns:t='urn:t'><t:Deep>a &amp; b</t:Deep></t:Trace>\n</SOAP-ENV:Header>\
         <SOAP-ENV:Body><Put><Block codec='zstd' length='4' sequence='9'>\n<xop:Include xmlns:xop='{XOP}' href='cid:1@pdbp'/></Block></Put>\
         </SOAP-ENV:Body></SOAP-ENV:Envelope>\n"
    );
    assert_eq!(read(others.as_bytes()), Ok(ours));
}

#[test]
fn there_is_no_dtd_and_nothing_is_expanded() {
    let good = put(&block("1"));
    let bomb = "<!DOCTYPE lolz [<!ENTITY lol \"lol\"><!ENTITY lol2 \"&lol;&lol;\">]>";
    for (bad, place) in [
        (format!("{bomb}{good}"), "DOCTYPE"),
        (format!("<!DOCTYPE e SYSTEM \"file:///etc/passwd\">{good}"), "external DTD"),
        (good.replace("<p:Put>", "<?go on?><p:Put>"), "processing instruction"),
        (good.replace("<p:Put>", "<p:Put>&lol2;"), "entity in text"),
        (good.replace("cid:1", "cid:&lol2;"), "entity in an attribute"),
        (good.replace("<p:Link ", "<p:Link of=\"&xxe;\" "), "entity in an attribute that nobody reads"),
    ] {
        assert_eq!(why(&bad), NO_DTD.why, "{place}");
    }
}

#[test]
fn envelopes_stay_within_limits() {
    let deep = |depth: usize| {
        let (open, close) = ("<t:D xmlns:t=\"urn:t\">".repeat(depth), "</t:D>".repeat(depth));
        envelope(&format!("{open}{close}"), "<p:Fetch/>")
    };
    assert!(read(deep(DEPTH - 2).as_bytes()).is_ok());
    assert!(why(&deep(DEPTH - 1)).contains("deep"));
    let wide = |count: usize| {
        let attributes: String = (0..count - 2).map(|number| format!(" a{number}=\"\"")).collect();
        envelope("", "<p:Fetch/>").replace("<p:Link ", &format!("<p:Link{attributes} "))
    };
    assert!(read(wide(ATTRIBUTES).as_bytes()).is_ok());
    assert!(why(&wide(ATTRIBUTES + 1)).contains("attributes"));
    let long = "x".repeat(NAME + 1);
    assert!(why(&envelope(&format!("<{long}/>"), "<p:Fetch/>")).contains("1 KiB"));
    assert!(
        why(&envelope("", "<p:Fetch/>").replace("taken=\"7\"", &format!("taken=\"{long}\"")))
            .contains("1 KiB")
    );
    let blocks = |count: usize| put(&(0..count).map(|number| block(&number.to_string())).collect::<String>());
    assert_eq!(read(blocks(MOST).as_bytes()).unwrap().blocks.len(), MOST);
    assert!(why(&blocks(MOST + 1)).contains("16"));
}

#[test]
fn what_is_no_message_of_the_service_is_refused() {
    let good = put(&block("1"));
    for (bad, expected) in [
        (String::new(), "cut short"),
        ("hello".to_owned(), "text"),
        ("<a/>".to_owned(), "Envelope is missing"),
        (good.replace("</e:Envelope>", ""), "cut short"),
        (format!("{good}<again/>"), "after the Envelope"),
        (good.replace("</e:Body>", "</e:Head>"), "no XML"),
        (good.replace("xmlns:p=", "xmlns:q="), "prefix"),
        (good.replace(EXCHANGE, "urn:pdbp:desk"), "unknown operation"),
        (good.replace("p:Put>", "p:Take>"), "unknown operation"),
        (good.replace("<p:Link taken=\"7\" room=\"2\"/>", ""), "Link is missing"),
        (good.replace("</e:Header>", "<p:Link taken=\"7\" room=\"2\"/></e:Header>"), "appears twice"),
        (good.replace("taken=\"7\"", "taken=\"-7\""), "not a number"),
        (good.replace("room=\"2\"", "room=\"65536\""), "too large"),
        (good.replace("sequence=\"9\"", ""), "missing"),
        (good.replace("sequence=\"9\"", "sequence=\"18446744073709551616\""), "too large"),
        (good.replace("zstd", "brotli"), "codec"),
        (good.replace("<x:Include href=\"cid:1\"/>", ""), "by cid"),
        (good.replace("cid:1", "http://elsewhere/1"), "by cid"),
        (good.replace(XOP, "urn:other"), "by cid"),
        (good.replace("<x:Include", "AAAA<x:Include"), "text"),
        (put(""), "must have blocks"),
        (put(&[block("1"), block("1")].concat()), "same part"),
        (put("<x:Include href=\"cid:1\"/>"), "only Blocks"),
        (envelope("", ""), "empty"),
        (envelope("", "<x:Include href=\"cid:1\"/>"), "unknown operation"),
        (envelope("", "<p:Fetch>1</p:Fetch>"), "text"),
        (envelope("", "<p:Fetch/><p:Fetch/>"), "extra element"),
        (envelope("", "<p:Hello>0g</p:Hello>"), "hexBinary"),
        (envelope("", "<p:Hello>012</p:Hello>"), "hexBinary"),
        (envelope("", "<e:Fault/>"), "itself a Fault"),
        (good.replace("<e:Body>", "<e:Body><!--").replace("</e:Body>", "--></e:Body>"), "empty"),
    ] {
        assert!(why(&bad).contains(expected), "{} is not because of {expected}: {bad}", why(&bad));
    }
    assert!(read(b"<e:Envelope xmlns:e=\"\xFF\"/>").unwrap_err().why.contains("UTF-8"));
    let latin = good.replace("<e:Envelope", "<?xml version=\"1.0\" encoding=\"latin1\"?><e:Envelope");
    assert!(why(&latin).contains("UTF-8"));
}

#[test]
fn another_soap_and_headers_that_must_be_understood_have_codes_of_their_own() {
    let good = put(&block("1"));
    let older = good.replace(SOAP, "http://schemas.xmlsoap.org/soap/envelope/");
    let fault = read(older.as_bytes()).unwrap_err();
    assert_eq!((fault.kind, fault.status()), (FaultKind::VersionMismatch, 500));
    let must = |role: &str| {
        envelope(&format!("<t:T xmlns:t=\"urn:t\" e:mustUnderstand=\"true\"{role}/>"), "<p:Fetch/>")
    };
    assert_eq!(read(must("").as_bytes()).unwrap_err().kind, FaultKind::MustUnderstand);
    let others = must(&format!(" e:role=\"{SOAP}/role/none\""));
    assert!(read(others.as_bytes()).is_ok(), "it is for others");
}
