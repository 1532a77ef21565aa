//! Server-sent events, from bytes as they arrive.

use std::mem::take;

/// Bytes of an event or a line at most; more is not a token.
const MAX_EVENT: usize = 16 << 20;

/// Puts events together from pieces that may end anywhere.
#[derive(Default)]
pub(super) struct SseReader {
    line: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    /// A line feed that comes next belongs to the line that has ended.
    after_cr: bool,
}

impl SseReader {
    /// Takes the next bytes, and passes the data of each event that they complete.
    ///
    /// Errors: an event that is too long, or what `on_event` returns.
    pub(super) fn push(
        &mut self,
        bytes: &[u8],
        mut on_event: impl FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<(), String> {
        let mut rest = bytes;
        if take(&mut self.after_cr) && rest.first() == Some(&b'\n') {
            rest = &rest[1..];
        }
        while let Some(end) = rest.iter().position(|b| matches!(b, b'\n' | b'\r')) {
            self.line.extend_from_slice(&rest[..end]);
            let is_cr = rest[end] == b'\r';
            rest = &rest[end + 1..];
            match (is_cr, rest.first()) {
                (true, None) => self.after_cr = true,
                (true, Some(b'\n')) => rest = &rest[1..],
                _ => {}
            }
            self.end_line(&mut on_event)?;
        }
        self.line.extend_from_slice(rest);
        if self.line.len() + self.data.len() > MAX_EVENT {
            return Err(format!("the server sent an event of more than {} MiB", MAX_EVENT >> 20));
        }
        Ok(())
    }

    fn end_line(&mut self, on_event: &mut impl FnMut(&[u8]) -> Result<(), String>) -> Result<(), String> {
        let line = take(&mut self.line);
        if line.is_empty() {
            let data = take(&mut self.data);
            return if take(&mut self.has_data) { on_event(&data) } else { Ok(()) };
        }
        if let Some(value) = line.strip_prefix(b"data:") {
            if self.has_data {
                self.data.push(b'\n');
            }
            self.data.extend_from_slice(value.strip_prefix(b" ").unwrap_or(value));
            self.has_data = true;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(pieces: &[&[u8]]) -> Vec<String> {
        let (mut reader, mut out) = (SseReader::default(), Vec::new());
        for piece in pieces {
            let on_event = |data: &[u8]| {
                out.push(String::from_utf8(data.to_vec()).expect("UTF-8"));
                Ok(())
            };
            reader.push(piece, on_event).expect("short events");
        }
        out
    }

    #[test]
    fn events_are_the_same_wherever_the_pieces_end() {
        let text =
            ": alive\n\ndata: {\"a\":1}\n\ndata:x\r\ndata: y\r\n\r\nevent: e\rdata: ü\r\rdata\n\ndata:\n\n"
                .as_bytes();
        let expected = ["{\"a\":1}", "x\ny", "ü", ""];
        assert_eq!(events(&[text]), expected);
        for size in 1..text.len() {
            assert_eq!(events(&text.chunks(size).collect::<Vec<_>>()), expected, "pieces of {size}");
        }
    }

    #[test]
    fn an_event_without_its_end_is_none() {
        assert!(events(&[b"data: x\n"]).is_empty());
    }

    #[test]
    fn an_endless_line_is_an_error() {
        let mut reader = SseReader::default();
        let piece = vec![b'x'; 1 << 20];
        let failed = (0..20).find_map(|_| reader.push(&piece, |_| Ok(())).err());
        assert!(failed.is_some_and(|e| e.contains("16 MiB")));
    }
}
