//! The messages that wait in a mailbox for a client to receive them.

use std::collections::VecDeque;

use super::envelope::CONTENT;
use super::fault::{Code, Fault, Reason};

/// Messages that a mailbox holds. Further ones wait at the part, and then at their senders.
pub(super) const MESSAGES: usize = 64;
/// Bytes from which on a mailbox takes no further message.
pub(super) const BYTES: usize = 1 << 20;

/// A message in a mailbox.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Letter {
    /// Its number in the mailbox, from 1.
    pub(super) number: u64,
    /// The address of its sender, if that has a name in this cluster.
    pub(super) from: Option<String>,
    pub(super) command: Option<u16>,
    /// What it says; or its length, if no envelope has room for it.
    pub(super) content: Result<Vec<u8>, usize>,
}

/// The messages of a mailbox. Each stays until the client has confirmed that it has it, since an answer may be lost.
#[derive(Debug, Default)]
pub(super) struct Letters {
    letters: VecDeque<Letter>,
    bytes: usize,
    /// Numbers of the last message that arrived, and of the last that was delivered.
    last: u64,
    delivered: u64,
}

impl Letters {
    pub(super) fn is_empty(&self) -> bool {
        self.letters.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.letters.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn has_room(&self) -> bool {
        self.letters.len() < MESSAGES && self.bytes < BYTES
    }

    pub(super) fn push(&mut self, from: Option<String>, command: Option<u16>, content: &[u8]) {
        self.last += 1;
        let content = if content.len() > CONTENT { Err(content.len()) } else { Ok(content.to_vec()) };
        self.bytes += content.as_ref().map_or(0, Vec::len);
        self.letters.push_back(Letter { number: self.last, from, command, content });
    }

    /// Removes the messages up to number `taken`, which the client has. Returns how many.
    ///
    /// # Errors
    /// The client cannot have that one: it has not been delivered.
    pub(super) fn confirm(&mut self, taken: u64) -> Result<u64, Fault> {
        if taken > self.delivered {
            let why = format!(
                "Taken is {taken}, but the last message delivered from this mailbox is number {}; begin with 0",
                self.delivered
            );
            return Err(Fault::malformed(why));
        }
        let mut confirmed = 0;
        while let Some(first) = self.letters.front().filter(|first| first.number <= taken) {
            self.bytes -= first.content.as_ref().map_or(0, Vec::len);
            self.letters.pop_front();
            confirmed += 1;
        }
        Ok(confirmed)
    }

    /// The messages for an answer: all of them that no envelope is too small for, as long as together they fit one.
    ///
    /// # Errors
    /// The first message is too long for any envelope.
    pub(super) fn deliver(&mut self) -> Result<impl Iterator<Item = &Letter>, Fault> {
        if let Some(Letter { number, from, content: Err(bytes), .. }) = self.letters.front() {
            self.delivered = self.delivered.max(*number);
            let from = from.as_deref().unwrap_or("a part without a name");
            let why = format!(
                "message {number}, from {from}, has {bytes} bytes; the maximum is {CONTENT}. Receive with Taken {number} to go on"
            );
            return Err(Fault::new(Code::Receiver, Reason::TooLong, why));
        }
        let (mut count, mut bytes) = (0, 0);
        for Letter { number, content, .. } in &self.letters {
            let Ok(content) = content else { break };
            bytes += content.len();
            if bytes > CONTENT {
                break;
            }
            count += 1;
            self.delivered = self.delivered.max(*number);
        }
        Ok(self.letters.iter().take(count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(letters: &mut Letters) -> Vec<u64> {
        letters.deliver().unwrap().map(|letter| letter.number).collect()
    }

    #[test]
    fn messages_stay_until_the_client_has_confirmed_them() {
        let mut letters = Letters::default();
        assert!(numbers(&mut letters).is_empty() && letters.confirm(0) == Ok(0));
        for content in [b"one", b"two"] {
            letters.push(None, None, content);
        }
        assert_eq!(numbers(&mut letters), [1, 2]);
        assert_eq!(numbers(&mut letters), [1, 2], "the first answer may have been lost");
        letters.push(Some("a@node1".to_owned()), Some(7), b"three");
        assert_eq!(letters.confirm(3).unwrap_err().reason, Reason::Malformed, "it was not delivered");
        assert_eq!(letters.confirm(1), Ok(1));
        assert_eq!(numbers(&mut letters), [2, 3]);
        assert_eq!((letters.confirm(3), letters.confirm(1)), (Ok(2), Ok(0)));
        assert!(letters.is_empty() && letters.bytes() == 0);
    }

    #[test]
    fn a_mailbox_is_full_by_messages_or_by_bytes() {
        let mut letters = Letters::default();
        (0..MESSAGES).for_each(|_| {
            assert!(letters.has_room());
            letters.push(None, None, b"");
        });
        assert!(!letters.has_room());
        numbers(&mut letters);
        letters.confirm(1).unwrap();
        assert!(letters.has_room());
        letters.push(None, None, &vec![0; BYTES]);
        assert_eq!(numbers(&mut letters).len(), MESSAGES);
        letters.confirm(MESSAGES as u64).unwrap();
        assert!(!letters.has_room(), "one message has all the bytes");
    }

    #[test]
    fn answers_are_no_longer_than_an_envelope() {
        let mut letters = Letters::default();
        for length in [1, CONTENT - 1, 1, CONTENT + 1, 2] {
            letters.push(None, None, &vec![0; length]);
        }
        assert_eq!(numbers(&mut letters), [1, 2]);
        letters.confirm(2).unwrap();
        assert_eq!(numbers(&mut letters), [3], "the next fits no envelope");
        letters.confirm(3).unwrap();
        let fault = letters.deliver().map(Iterator::count).unwrap_err();
        assert!(fault.reason == Reason::TooLong && fault.message.contains("4194305"), "{fault:?}");
        letters.confirm(4).unwrap();
        assert_eq!(numbers(&mut letters), [5]);
    }
}
