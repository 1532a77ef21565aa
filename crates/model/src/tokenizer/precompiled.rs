//! SentencePiece's precompiled character map: replacements of character sequences, found in a double-array trie.
//!
//! Layout: u32 size of the trie in bytes, the trie's u32 units (little endian), then the replacements, each ended by NUL.
//! A unit holds a label in bits 0–7, a leaf flag in bit 8, and an offset in bits 10–30, shifted by 8 when bit 9 is set;
//! the unit that a leaf points to holds the replacement's position.

use super::{Error, Result};
use unicode_segmentation::UnicodeSegmentation;

/// The map, ready for look-ups.
#[derive(Debug)]
pub(crate) struct Precompiled {
    units: Vec<u32>,
    replacements: Vec<u8>,
}

impl Precompiled {
    /// Reads the blob. Errors: `Invalid` when the sizes do not fit or the replacements are not UTF-8.
    pub(crate) fn new(blob: &[u8]) -> Result<Self> {
        let invalid = |reason: &str| Error::invalid("precompiled_charsmap", reason);
        let (size, rest) =
            blob.split_first_chunk::<4>().ok_or_else(|| invalid("it is shorter than its header"))?;
        let size = u32::from_le_bytes(*size) as usize;
        let (trie, replacements) =
            rest.split_at_checked(size).ok_or_else(|| invalid("its trie is longer than the data"))?;
        if !size.is_multiple_of(4) || size == 0 {
            return Err(invalid("its trie is not a list of 32-bit units"));
        }
        std::str::from_utf8(replacements).map_err(|_| invalid("its replacements are not UTF-8"))?;
        let units = trie
            .chunks_exact(4)
            .map(|unit| u32::from_le_bytes([unit[0], unit[1], unit[2], unit[3]]))
            .collect();
        Ok(Precompiled { units, replacements: replacements.to_vec() })
    }

    /// Replaces what the map names: whole short grapheme clusters first, then single characters.
    pub(crate) fn normalize(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        for grapheme in text.graphemes(true) {
            // As the reference library: clusters of six bytes and more are not looked up as a whole.
            if grapheme.len() < 6
                && let Some(replacement) = self.replacement(grapheme)
            {
                out.push_str(replacement);
                continue;
            }
            for c in grapheme.chars() {
                match self.replacement(c.encode_utf8(&mut [0; 4])) {
                    Some(replacement) => out.push_str(replacement),
                    None => out.push(c),
                }
            }
        }
        out
    }

    /// The replacement of the shortest prefix of `key` that the map has.
    fn replacement(&self, key: &str) -> Option<&str> {
        let offset = |unit: u32| ((unit >> 10) << ((unit & (1 << 9)) >> 6)) as usize;
        let mut node = offset(*self.units.first()?);
        for byte in key.bytes() {
            if byte == 0 {
                return None;
            }
            node ^= usize::from(byte);
            let unit = *self.units.get(node)?;
            if unit & (1 << 31 | 0xff) != u32::from(byte) {
                return None;
            }
            node ^= offset(unit);
            if unit >> 8 & 1 == 1 {
                let start = (*self.units.get(node)? & 0x7fff_ffff) as usize;
                let rest = self.replacements.get(start..)?;
                let end = rest.iter().position(|&b| b == 0).unwrap_or(rest.len());
                return std::str::from_utf8(&rest[..end]).ok();
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_map_is_an_error_and_never_a_panic() {
        assert!(Precompiled::new(&[]).is_err());
        assert!(Precompiled::new(&[9, 0, 0, 0, 1]).is_err());
        assert!(Precompiled::new(&[4, 0, 0, 0, 1, 2, 3, 4, 0xff]).is_err());
        let mut blob = vec![8, 0, 0, 0];
        blob.extend_from_slice(&[0xff; 8]);
        blob.extend_from_slice(b"x\0");
        let map = Precompiled::new(&blob).unwrap();
        assert_eq!(map.normalize("any text é"), "any text é");
    }
}
