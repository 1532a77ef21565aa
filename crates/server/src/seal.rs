//! Signatures of what the model thought, so that it is read again only where this server's model wrote it and nobody changed it.
//!
//! The key depends on the server's model names and API keys alone: a conversation goes on after a restart, and the thoughts of another
//! model are not taken for this one's. Nothing is encrypted; clients may see what the model thinks anyway.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

/// Bytes of a block of SHA-256.
const BLOCK: usize = 64;
/// Bytes of a signature.
const MAC: usize = 32;

/// Signs texts.
#[derive(Clone)]
pub(crate) struct Seal {
    key: [u8; MAC],
}

impl Seal {
    /// `names`: of the model; `api_keys`: of the server.
    pub(crate) fn new(names: &[String], api_keys: &[String]) -> Self {
        let mut hash = Sha256::new();
        for list in [names, api_keys] {
            hash.update((list.len() as u64).to_le_bytes());
            for text in list {
                hash.update((text.len() as u64).to_le_bytes());
                hash.update(text);
            }
        }
        Self { key: hash.finalize().into() }
    }

    /// The text's signature.
    pub(crate) fn sign(&self, text: &str) -> String {
        STANDARD.encode(hmac(&self.key, text.as_bytes()))
    }

    /// Whether this is the text's signature.
    pub(crate) fn verify(&self, text: &str, signature: &str) -> bool {
        STANDARD.decode(signature).is_ok_and(|mac| mac == hmac(&self.key, text.as_bytes()))
    }

    /// The signature and the text, as one opaque text.
    pub(crate) fn seal(&self, text: &str) -> String {
        STANDARD.encode([&hmac(&self.key, text.as_bytes()), text.as_bytes()].concat())
    }

    /// The text that was sealed; `None` for anything else.
    pub(crate) fn open(&self, sealed: &str) -> Option<String> {
        let bytes = STANDARD.decode(sealed).ok()?;
        let (mac, text) = bytes.split_at_checked(MAC)?;
        (mac == hmac(&self.key, text)).then(|| String::from_utf8(text.to_vec()).ok())?
    }
}

/// HMAC-SHA-256 (RFC 2104). `key`: at most a block.
fn hmac(key: &[u8], text: &[u8]) -> [u8; MAC] {
    let padded = |byte: u8| {
        let mut block = [byte; BLOCK];
        block.iter_mut().zip(key).for_each(|(b, k)| *b ^= k);
        block
    };
    let inner = Sha256::new().chain_update(padded(0x36)).chain_update(text).finalize();
    Sha256::new().chain_update(padded(0x5c)).chain_update(inner).finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    /// RFC 4231, test cases 1 and 2.
    #[test]
    fn signatures_are_those_of_the_standard() {
        assert_eq!(
            hex(&hmac(&[0x0b; 20], b"Hi There")),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"
        );
        assert_eq!(
            hex(&hmac(b"Jefe", b"what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
    }

    #[test]
    fn only_what_was_sealed_here_is_opened() {
        let names = |name: &str| vec![name.to_owned()];
        let seal = Seal::new(&names("a"), &[]);
        for text in ["", "Hm, größer.\n"] {
            let sealed = seal.seal(text);
            assert_eq!(seal.open(&sealed).as_deref(), Some(text));
            assert!(seal.verify(text, &seal.sign(text)));
            for other in [Seal::new(&names("b"), &[]), Seal::new(&names("a"), &names("key"))] {
                assert_eq!(other.open(&sealed), None);
                assert!(!other.verify(text, &seal.sign(text)));
            }
            assert_eq!(Seal::new(&names("a"), &[]).open(&sealed).as_deref(), Some(text), "after a restart");
        }
        let mut bytes = STANDARD.decode(seal.seal("I like foxes")).expect("base64");
        *bytes.last_mut().expect("bytes") ^= 1;
        for wrong in [STANDARD.encode(bytes).as_str(), "", "EqQBCgIYAhIM1gbcDa9GJwZA2b3h", "no base64!"] {
            assert_eq!(seal.open(wrong), None, "{wrong}");
            assert!(!seal.verify("I like foxes", wrong));
        }
    }
}
