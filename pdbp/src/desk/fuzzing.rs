//! Called by the fuzz target `requests`.

use super::answer;
use super::envelope::{CONTENT, Operation, Version, read};

/// Reads an envelope; checks that an accepted one is within the limits, and that a refused one gets a fault.
pub(crate) fn envelope(bytes: &[u8]) -> bool {
    match read(bytes, Version::V11) {
        Ok((_, operation)) => {
            let (address, content) = match operation {
                Operation::Parts => return true,
                Operation::Send { to, content, .. } | Operation::Call { to, content, .. } => (to, content),
                Operation::OpenMailbox { name, .. } => (name, Vec::new()),
                Operation::Receive { mailbox, .. } | Operation::CloseMailbox { mailbox } => {
                    (mailbox, Vec::new())
                }
            };
            assert!(
                !address.is_empty() && address.len() <= 1024 && content.len() <= CONTENT,
                "beyond the limits"
            );
            true
        }
        Err((version, fault)) => {
            let answer = answer::fault(version, &fault);
            assert!(quick_xml::Reader::from_str(&answer.body).read_event().is_ok());
            false
        }
    }
}
