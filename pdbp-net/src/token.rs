//! The secret of a cluster, and proofs of knowledge of it.

use std::fmt;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::Path;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::error::TokenError;

/// Minimum characters of a token: 128 bits in hexadecimal.
pub(crate) const SHORTEST: usize = 32;
/// Bytes of a proof.
pub(crate) const PROOF: usize = 32;
/// Bytes of a nonce, which makes each proof unique.
pub(crate) const NONCE: usize = 32;

/// The secret shared by all processes of a cluster. Each connection begins with both ends proving that they know it, without revealing it.
#[derive(Clone)]
pub struct Token(Vec<u8>);

impl Token {
    /// Reads the token from a file. White space around it is ignored.
    ///
    /// # Errors
    /// See [`TokenError`].
    pub fn from_file(path: &Path) -> Result<Self, TokenError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| TokenError::File { path: path.to_path_buf(), error })?;
        Self::of(&text).map_err(|length| TokenError::Short { path: Some(path.to_path_buf()), length })
    }

    /// As [`from_file`](Self::from_file), but if the file does not exist, writes it with a new token, readable only by its owner.
    ///
    /// # Errors
    /// See [`TokenError`].
    pub fn from_file_or_new(path: &Path) -> Result<Self, TokenError> {
        let fail = |error| TokenError::File { path: path.to_path_buf(), error };
        if path.try_exists().map_err(fail)? {
            return Self::from_file(path);
        }
        let hexadecimal =
            |bytes: [u8; 32]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let text = hexadecimal(random().map_err(fail)?);
        // The file must appear complete: others may be waiting for it.
        let draft = path.with_extension(hexadecimal(random().map_err(fail)?));
        let written = write_for_owner(&draft, &text).and_then(|()| std::fs::hard_link(&draft, path));
        // If it could not be written, there is nothing to remove.
        let _ = std::fs::remove_file(&draft);
        match written {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(fail(error)),
            _ => Self::from_file(path),
        }
    }

    /// Makes a token from a secret that the program has obtained by other means.
    ///
    /// # Errors
    /// [`TokenError::Short`].
    pub fn from_text(text: &str) -> Result<Self, TokenError> {
        Self::of(text).map_err(|length| TokenError::Short { path: None, length })
    }

    /// Makes a token from a text, or returns its length if that is too short.
    fn of(text: &str) -> Result<Self, usize> {
        let text = text.trim();
        if text.len() < SHORTEST { Err(text.len()) } else { Ok(Self(text.as_bytes().to_vec())) }
    }

    /// The empty token, which everybody knows: for connections within a host.
    pub(crate) fn none() -> Self {
        Self(Vec::new())
    }

    fn mac(&self, pieces: &[&[u8]]) -> Hmac<Sha256> {
        // HMAC takes keys of any length, so the fallback is never used.
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.0).unwrap_or_else(|_| Hmac::new(&Default::default()));
        pieces.iter().for_each(|piece| mac.update(piece));
        mac
    }

    /// Makes a proof that its maker knew the token and all the pieces.
    pub(crate) fn prove(&self, pieces: &[&[u8]]) -> [u8; PROOF] {
        self.mac(pieces).finalize().into_bytes().into()
    }

    /// Whether a proof is right, checked in constant time.
    pub(crate) fn is_proven(&self, proof: &[u8], pieces: &[&[u8]]) -> bool {
        self.mac(pieces).verify_slice(proof).is_ok()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

fn write_for_owner(path: &Path, text: &str) -> std::io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    writeln!(options.open(path)?, "{text}")
}

/// Unpredictable random bytes.
pub(crate) fn random<const BYTES: usize>() -> std::io::Result<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes).map_err(std::io::Error::other)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_founder_writes_a_token_that_others_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let missing = Token::from_file(&path).map(|_| ()).unwrap_err();
        assert!(
            matches!(missing, TokenError::File { .. })
                && missing.to_string().contains("start the founder first")
        );
        let written = Token::from_file_or_new(&path).unwrap();
        let (read, again) = (Token::from_file(&path).unwrap(), Token::from_file_or_new(&path).unwrap());
        assert_eq!((written.0.len(), &written.0, &written.0), (64, &read.0, &again.0));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no draft is left");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn short_tokens_are_refused_with_the_file_that_they_are_in() {
        let short = Token::from_text("  secret \n").unwrap_err();
        assert!(matches!(short, TokenError::Short { path: None, length: 6 }));
        let file = tempfile::NamedTempFile::new().unwrap();
        let (path, said) = (file.path(), Token::from_file(file.path()).unwrap_err().to_string());
        assert!(said.contains(&path.display().to_string()) && said.contains("0 characters"), "{said}");
    }

    #[test]
    fn a_proof_holds_for_its_token_and_its_pieces_only() {
        let one = Token::from_text(&"1".repeat(32)).unwrap();
        let two = Token::from_text(&"2".repeat(32)).unwrap();
        let proof = one.prove(&[b"dial", b"nonce"]);
        assert!(one.is_proven(&proof, &[b"dial", b"nonce"]));
        assert!(!two.is_proven(&proof, &[b"dial", b"nonce"]));
        assert!(!one.is_proven(&proof, &[b"take", b"nonce"]));
        assert!(!one.is_proven(&proof[..16], &[b"dial", b"nonce"]));
    }
}
