//! The file of a saved prefix cache.
//!
//! It begins with `MAGIC` and the description, a text that says what the bytes mean. Then comes a record for each block: `BLOCK`, the number
//! of the record of the block before (from 1; 0: none), the number of tokens, the tokens, whether there is a snapshot, and the bytes of the
//! block and of the snapshot. `END` follows the last. Numbers are `u32` in little-endian order. The CRC-32 of all that came before is
//! behind the description, each record and `END`.

use crc32fast::Hasher;
use std::io::{self, ErrorKind, Read, Write};

const MAGIC: [u8; 8] = *b"rlzrkvc1";
const BLOCK: u32 = 1;
const END: u32 = 2;
/// Longer than any description.
const MAX_DESCRIPTION: usize = 1 << 16;

/// Sizes that the description promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    /// Tokens of a block.
    pub(super) block_size: usize,
    /// Bytes of a block and of a slot.
    pub(super) block_bytes: usize,
    pub(super) slot_bytes: usize,
}

/// A block and the state after it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    /// Index of the record of the block before.
    pub(super) parent: Option<usize>,
    pub(super) tokens: Vec<u32>,
    pub(super) block: Vec<u8>,
    pub(super) snapshot: Option<Vec<u8>>,
}

impl Record {
    /// Bytes in the file.
    pub(super) fn file_bytes(&self) -> usize {
        (4 + self.tokens.len() + 1) * 4 + self.block.len() + self.snapshot.as_ref().map_or(0, Vec::len)
    }
}

/// Writes a file.
pub(super) struct Writer<W> {
    out: W,
    sum: Hasher,
}

impl<W: Write> Writer<W> {
    pub(super) fn new(out: W, description: &str) -> io::Result<Self> {
        let mut writer = Self { out, sum: Hasher::new() };
        writer.write(&MAGIC)?;
        writer.number(description.len())?;
        writer.write(description.as_bytes())?;
        writer.checksum()?;
        Ok(writer)
    }

    pub(super) fn push(&mut self, record: &Record) -> io::Result<()> {
        self.number(BLOCK as usize)?;
        self.number(record.parent.map_or(0, |index| index + 1))?;
        self.number(record.tokens.len())?;
        record.tokens.iter().try_for_each(|&token| self.number(token as usize))?;
        self.number(usize::from(record.snapshot.is_some()))?;
        self.write(&record.block)?;
        self.write(record.snapshot.as_deref().unwrap_or_default())?;
        self.checksum()
    }

    /// Ends the file and hands back what it was written to.
    pub(super) fn finish(mut self) -> io::Result<W> {
        self.number(END as usize)?;
        self.checksum()?;
        Ok(self.out)
    }

    fn number(&mut self, n: usize) -> io::Result<()> {
        let n = u32::try_from(n).map_err(|_| invalid("a number is too large"))?;
        self.write(&n.to_le_bytes())
    }

    fn checksum(&mut self) -> io::Result<()> {
        let sum = self.sum.clone().finalize();
        self.write(&sum.to_le_bytes())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sum.update(bytes);
        self.out.write_all(bytes)
    }
}

/// Reads a file. Whatever is wrong with it is an `InvalidData` or an `UnexpectedEof`.
pub(super) struct Reader<R> {
    input: R,
    sum: Hasher,
    n_records: usize,
    description: String,
}

impl<R: Read> Reader<R> {
    pub(super) fn new(input: R) -> io::Result<Self> {
        let mut reader = Self { input, sum: Hasher::new(), n_records: 0, description: String::new() };
        let mut magic = [0; MAGIC.len()];
        reader.read(&mut magic)?;
        if magic != MAGIC {
            return Err(invalid("it is no prefix cache of this version"));
        }
        let n = reader.number()? as usize;
        if n > MAX_DESCRIPTION {
            return Err(invalid("its description is too long"));
        }
        let mut description = vec![0; n];
        reader.read(&mut description)?;
        reader.checksum()?;
        reader.description =
            String::from_utf8(description).map_err(|_| invalid("its description is no text"))?;
        Ok(reader)
    }

    /// What the bytes mean.
    pub(super) fn description(&self) -> &str {
        &self.description
    }

    /// The next record, into `record`, whose memory is used again; false at the end of the file.
    pub(super) fn next(&mut self, sizes: &Sizes, record: &mut Record) -> io::Result<bool> {
        match self.number()? {
            BLOCK => {}
            END => return self.checksum().map(|()| false),
            _ => return Err(invalid("it is damaged")),
        }
        let (parent, n_tokens) = (self.number()? as usize, self.number()? as usize);
        if parent > self.n_records || !(1..=sizes.block_size).contains(&n_tokens) {
            return Err(invalid("it is damaged"));
        }
        record.parent = parent.checked_sub(1);
        record.tokens.clear();
        for _ in 0..n_tokens {
            record.tokens.push(self.number()?);
        }
        let has_snapshot = self.number()? != 0;
        record.block.resize(sizes.block_bytes, 0);
        self.read(&mut record.block)?;
        record.snapshot = match has_snapshot {
            true => {
                let mut snapshot = record.snapshot.take().unwrap_or_default();
                snapshot.resize(sizes.slot_bytes, 0);
                self.read(&mut snapshot)?;
                Some(snapshot)
            }
            false => None,
        };
        self.n_records += 1;
        self.checksum().map(|()| true)
    }

    fn number(&mut self) -> io::Result<u32> {
        let mut bytes = [0; 4];
        self.read(&mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn checksum(&mut self) -> io::Result<()> {
        let sum = self.sum.clone().finalize();
        match self.number()? == sum {
            true => Ok(()),
            false => Err(invalid("its checksum is wrong")),
        }
    }

    fn read(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.input.read_exact(bytes)?;
        self.sum.update(bytes);
        Ok(())
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: Sizes = Sizes { block_size: 4, block_bytes: 3, slot_bytes: 2 };

    fn records() -> Vec<Record> {
        let block = |parent, tokens: &[u32], block: [u8; 3], snapshot: Option<[u8; 2]>| Record {
            parent,
            tokens: tokens.to_vec(),
            block: block.to_vec(),
            snapshot: snapshot.map(|bytes| bytes.to_vec()),
        };
        vec![
            block(None, &[1, 2, 3, 4], [5, 6, 7], Some([8, 9])),
            block(Some(0), &[1, 2], [10, 11, 12], None),
            block(None, &[u32::MAX], [0, 0, 255], Some([0, 1])),
        ]
    }

    fn file() -> Vec<u8> {
        let mut writer = Writer::new(Vec::new(), "a model").unwrap();
        records().iter().for_each(|record| writer.push(record).unwrap());
        writer.finish().unwrap()
    }

    /// The records that come before something is wrong, and what.
    fn read(bytes: &[u8]) -> (Vec<Record>, io::Result<()>) {
        let mut found = Vec::new();
        let mut read = || {
            let mut reader = Reader::new(bytes)?;
            let mut record = Record::default();
            while reader.next(&SIZES, &mut record)? {
                found.push(record.clone());
            }
            Ok(())
        };
        let outcome = read();
        (found, outcome)
    }

    #[test]
    fn records_come_back_as_they_were() {
        let bytes = file();
        assert_eq!(Reader::new(&bytes[..]).unwrap().description(), "a model");
        let (found, outcome) = read(&bytes);
        assert_eq!((found, outcome.is_ok()), (records(), true));
    }

    #[test]
    fn a_file_that_ends_early_or_has_a_wrong_bit_yields_only_what_was_written() {
        let bytes = file();
        for n in 0..bytes.len() {
            let (found, outcome) = read(&bytes[..n]);
            assert!(outcome.is_err() && records().starts_with(&found), "{n} bytes: {found:?}");
        }
        for bit in 0..bytes.len() * 8 {
            let mut wrong = bytes.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            let (found, outcome) = read(&wrong);
            assert!(outcome.is_err() && records().starts_with(&found), "bit {bit}: {found:?}");
        }
    }
}
