//! Writes SOAP envelopes.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use quick_xml::escape::{escape, partial_escape};

use super::envelope::{DESK, Version};
use super::fault::{Fault, Reason};
use super::mailbox::Letter;
use crate::http::Answer;

/// The WSDL, without its schema and address.
const WSDL: &str = include_str!("pdbp.wsdl");
/// The schema of the bodies.
pub(super) const XSD: &str = include_str!("pdbp.xsd");

/// The WSDL of a desk at this URL.
pub(super) fn wsdl(url: &str) -> String {
    let schema = XSD.split_once("?>").map_or(XSD, |(_, schema)| schema).trim();
    WSDL.replace("{SCHEMA}", schema).replace("{ADDRESS}", &escape(url))
}

pub(super) fn sent(version: Version) -> Answer {
    answer(version, "200 OK", "<d:SendResponse/>")
}

/// The reply of a part.
pub(super) fn called(version: Version, content: &[u8]) -> Answer {
    let mut body = String::with_capacity(content.len() / 3 * 4 + 64);
    body.push_str("<d:CallResponse><d:Content>");
    STANDARD.encode_string(content, &mut body);
    body.push_str("</d:Content></d:CallResponse>");
    answer(version, "200 OK", &body)
}

/// The address of a mailbox.
pub(super) fn opened(version: Version, address: &str) -> Answer {
    let address = text(address);
    let body = format!("<d:OpenMailboxResponse><d:Mailbox>{address}</d:Mailbox></d:OpenMailboxResponse>");
    answer(version, "200 OK", &body)
}

/// Messages of a mailbox, as elements for [`received`].
pub(super) fn letters<'a>(letters: impl Iterator<Item = &'a Letter>) -> String {
    let mut body = String::new();
    for Letter { number, from, command, content } in letters {
        // Writing to a String cannot fail.
        let _ = write!(body, "<d:Message><d:Number>{number}</d:Number>");
        if let Some(from) = from {
            let _ = write!(body, "<d:From>{}</d:From>", text(from));
        }
        if let Some(command) = command {
            let _ = write!(body, "<d:Command>{command}</d:Command>");
        }
        body.push_str("<d:Content>");
        STANDARD.encode_string(content.as_deref().unwrap_or_default(), &mut body);
        body.push_str("</d:Content></d:Message>");
    }
    body
}

/// Messages of a mailbox.
pub(super) fn received(version: Version, letters: &str) -> Answer {
    answer(version, "200 OK", &format!("<d:ReceiveResponse>{letters}</d:ReceiveResponse>"))
}

pub(super) fn closed(version: Version) -> Answer {
    answer(version, "200 OK", "<d:CloseMailboxResponse/>")
}

pub(super) fn parts(version: Version, parts: &[String]) -> Answer {
    let mut body = "<d:PartsResponse>".to_owned();
    for part in parts {
        // Writing to a String cannot fail.
        let _ = write!(body, "<d:Part>{}</d:Part>", text(part));
    }
    body.push_str("</d:PartsResponse>");
    answer(version, "200 OK", &body)
}

/// A fault.
pub(super) fn fault(version: Version, fault: &Fault) -> Answer {
    let (code, reason, message) = (fault.code.name(version), fault.reason.name(), text(&fault.message));
    let detail =
        format!("<d:Failure><d:Reason>{reason}</d:Reason><d:Message>{message}</d:Message></d:Failure>");
    let body = match version {
        Version::V11 => format!(
            "<e:Fault><faultcode>e:{code}</faultcode><faultstring>{message}</faultstring><detail>{detail}</detail></e:Fault>"
        ),
        Version::V12 => format!(
            "<e:Fault><e:Code><e:Value>e:{code}</e:Value><e:Subcode><e:Value>d:{reason}</e:Value></e:Subcode></e:Code>\
             <e:Reason><e:Text xml:lang=\"en\">{message}</e:Text></e:Reason><e:Detail>{detail}</e:Detail></e:Fault>"
        ),
    };
    let more = if fault.reason == Reason::Busy { "Retry-After: 1\r\n" } else { "" };
    Answer { more, ..answer(version, fault.status(version), &body) }
}

fn answer(version: Version, status: &'static str, body: &str) -> Answer {
    let envelope = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<e:Envelope xmlns:e=\"{}\" xmlns:d=\"{DESK}\"><e:Body>{body}</e:Body></e:Envelope>\n",
        version.namespace()
    );
    let kind = match version {
        Version::V11 => "text/xml; charset=utf-8",
        Version::V12 => "application/soap+xml; charset=utf-8",
    };
    Answer::new(status, kind, envelope)
}

/// Text for XML, which excludes control characters (XML 1.0 section 2.2).
fn text(any: &str) -> String {
    let is_none =
        |c: char| c.is_control() && !matches!(c, '\t' | '\n' | '\r') || matches!(c, '\u{fffe}' | '\u{ffff}');
    let plain: String = any.chars().map(|c| if is_none(c) { '\u{fffd}' } else { c }).collect();
    partial_escape(&plain).into_owned()
}
