//! The 256 characters by which byte-level vocabularies write bytes.
//!
//! Printable Latin-1 characters stand for their own code; the other bytes get the code points from U+0100 on, in order.

use std::sync::LazyLock;

/// The byte that each character below U+0144 stands for.
static BYTE_OF_CHAR: LazyLock<[Option<u8>; 0x144]> = LazyLock::new(|| {
    let mut table = [None; 0x144];
    for byte in 0..=255u8 {
        table[char_of_byte(byte) as usize] = Some(byte);
    }
    table
});

static CHAR_OF_BYTE: LazyLock<[char; 256]> = LazyLock::new(|| {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 0x100u32;
    std::array::from_fn(|byte| {
        let byte = byte as u8;
        if printable(byte) {
            char::from(byte)
        } else {
            let c = char::from_u32(next).unwrap_or('\0');
            next += 1;
            c
        }
    })
});

/// The character that stands for `byte`.
pub(crate) fn char_of_byte(byte: u8) -> char {
    CHAR_OF_BYTE[usize::from(byte)]
}

/// Bytes as byte-level characters.
pub(crate) fn to_chars(bytes: &[u8]) -> String {
    bytes.iter().map(|&byte| char_of_byte(byte)).collect()
}

/// The bytes that `text` stands for, if all its characters are byte-level characters.
pub(crate) fn to_bytes(text: &str) -> Option<Vec<u8>> {
    let table = &*BYTE_OF_CHAR;
    text.chars().map(|c| table.get(c as usize).copied().flatten()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_its_character() {
        assert_eq!(char_of_byte(b' '), 'Ġ');
        assert_eq!(char_of_byte(b'\n'), 'Ċ');
        assert_eq!(char_of_byte(0xad), '\u{143}');
        for byte in 0..=255u8 {
            assert_eq!(to_bytes(&to_chars(&[byte])), Some(vec![byte]));
        }
        assert_eq!(to_bytes("a b"), None);
    }
}
