//! Markdown on a terminal while a model writes it: what is finished stays, and the last block is drawn again as it grows.

use crate::markdown::{Line, Style, blocks, redraw};

/// The size of a terminal that does not tell its own: columns and rows.
const USUAL_SIZE: (usize, usize) = (80, 24);

/// A text that grows on the terminal.
pub(crate) struct Live {
    style: Style,
    columns: usize,
    rows: usize,
    /// The last block, as the model wrote it, and what may belong to the next.
    open: String,
    /// The lines of the last block on the terminal, with the cursor behind the last.
    shown: Vec<Line>,
}

impl Live {
    /// For the terminal at stdout.
    pub(crate) fn new(is_dim: bool) -> Self {
        let size = terminal_size::terminal_size().map(|(w, h)| (usize::from(w.0), usize::from(h.0)));
        let (columns, rows) = size.unwrap_or(USUAL_SIZE);
        Self::of_size(is_dim, columns, rows)
    }

    /// Whether its text is dimmed.
    pub(crate) fn is_dim(&self) -> bool {
        self.style.dim
    }

    fn of_size(is_dim: bool, columns: usize, rows: usize) -> Self {
        let style = Style::of_text(is_dim);
        Self { style, columns, rows, open: String::new(), shown: Vec::new() }
    }

    /// What the terminal must get when the text goes on so.
    pub(crate) fn push(&mut self, text: &str) -> String {
        self.open += text;
        self.update(certain(&self.open).len())
    }

    /// What the terminal must get when the text ends. The cursor is behind its last line then, or where it was if there is no text.
    pub(crate) fn finish(&mut self) -> String {
        self.update(self.open.len())
    }

    /// Draws the first `len` bytes of what is open.
    fn update(&mut self, len: usize) -> String {
        // The last column stays free: terminals differ in where the cursor is behind it.
        let blocks = blocks(&self.open[..len], self.columns.saturating_sub(1), self.style);
        let mut wanted = Vec::new();
        for (i, block) in blocks.iter().enumerate() {
            if i > 0 {
                wanted.push(Line { text: String::new(), width: 0 });
            }
            wanted.extend(block.lines.iter().cloned());
        }
        let out = redraw(&self.shown, &wanted, self.columns, self.rows);
        self.shown = wanted;
        // Only the last block can still change.
        if let [_, .., last] = &blocks[..] {
            let line = self.open[..last.start].rfind('\n').map_or(0, |end| end + 1);
            self.open.drain(..line);
            self.shown.drain(..self.shown.len() - last.lines.len());
        }
        out
    }
}

/// The text without a last line of which it is not known yet what it begins: `-` may be a list's item, a rule, or make a heading of the
/// line above.
fn certain(text: &str) -> &str {
    let last = text.rfind('\n').map_or(0, |end| end + 1);
    let may_be_a_mark = |c: char| c.is_ascii_digit() || c.is_whitespace() || "-=*_+#>|`~:.)".contains(c);
    if text[last..].chars().all(may_be_a_mark) { &text[..last] } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# A story\n\nOnce upon a time there was a **brave** owl, who *never* slept at night and \
        ate `mice`.\nIt had:\n\n- a nest\n  - of straw and of many long twigs from the wood\n- two friends\n\n\
        3. third\n4. fourth\n\n```rust\nfn owl() { println!(\"a line that is longer than the terminal\"); }\n\n// end\n\
        ```\n\n> It said: who?\n\n| animal | legs |\n|---|---|\n| owl | 2 |\n| *fox* | 4 |\n\n---\n\nThe end, \
        see [here](https://example.com) 1 - 2.\n";

    /// What a terminal shows when a text has come in pieces. `rows`: how high the text believes it to be.
    fn shown(text: &str, columns: usize, rows: usize, n_chars: usize) -> String {
        let mut terminal = vt100::Parser::new(300, columns as u16, 0);
        let mut live = Live::of_size(false, columns, rows);
        // Terminals are told to begin a line with each line feed.
        let mut write = |out: String| terminal.process(out.replace('\n', "\r\n").as_bytes());
        let chars: Vec<char> = text.chars().collect();
        for piece in chars.chunks(n_chars) {
            write(live.push(&piece.iter().collect::<String>()));
        }
        write(live.finish());
        let lines = terminal.screen().contents();
        lines.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn what_a_text_looks_like() {
        let expected = "A story\n\n\
            Once upon a time there was a brave owl,\nwho never slept at night and ate mice.\nIt had:\n\n\
            • a nest\n  • of straw and of many long twigs\n    from the wood\n• two friends\n\n\
            3. third\n4. fourth\n\n\
            ```rust\nfn owl() { println!(\"a line that is longer than the terminal\"); }\n\n// end\n\n\
            │ It said: who?\n\n\
            animal │ legs\n───────┼─────\nowl    │ 2\nfox    │ 4\n\n\
            ───────────────────────────────────────\n\n\
            The end, see here (https://example.com)\n1 - 2.";
        assert_eq!(shown(TEXT, 40, 24, TEXT.len()), expected);
    }

    #[test]
    fn pieces_of_any_size_come_to_the_same() {
        for columns in [12, 40, 100] {
            let whole = shown(TEXT, columns, 24, TEXT.len());
            for n_chars in [1, 2, 3, 7, 50] {
                assert_eq!(
                    shown(TEXT, columns, 24, n_chars),
                    whole,
                    "{n_chars} characters of {columns} columns"
                );
            }
        }
    }

    #[test]
    fn a_block_that_is_higher_than_the_terminal_goes_on() {
        let text: String = (0..50).map(|i| format!("- item {i} of a list\n")).collect();
        assert_eq!(shown(&text, 40, 5, 3), shown(&text, 40, 500, text.len()));
    }

    #[test]
    fn words_stay_whole_and_wide_characters_within_the_margin() {
        let text = "one two three four five ".repeat(20);
        for line in shown(&text, 20, 24, 5).lines() {
            assert!(
                line.len() < 20
                    && line.split(' ').all(|w| ["one", "two", "three", "four", "five"].contains(&w)),
                "{line}"
            );
        }
        let wide = shown(&"狐".repeat(30), 21, 24, 4);
        assert_eq!(wide.lines().map(|line| line.chars().count()).collect::<Vec<_>>(), [10, 10, 10]);
    }

    #[test]
    fn control_characters_are_shown_wherever_they_stand() {
        let (mut live, text) =
            (Live::of_size(false, 80, 24), "a\x1b[2Jb `c\x07` <i\x1b>\n\n```x\x1b[1m\nd\x1b]52;c;\n```\n");
        let out = live.push(text) + &live.finish();
        for part in [r"a\x1b[2Jb", r"c\x07", r"<i\x1b>", r"```x\x1b[1m", r"d\x1b]52;c;"] {
            assert!(out.contains(part), "{part} in {out:?}");
        }
        assert!(!out.contains("\x1b[2J") && !out.contains('\x07') && !out.contains("\x1b]"), "{out:?}");
    }
}
