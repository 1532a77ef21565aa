//! Markdown as lines of a terminal, with words wrapped at the margin.
//!
//! A model's line ends stay line ends, as people expect of a conversation. Code is not wrapped, so that it can be copied. Control
//! characters in the text are shown and not obeyed.

use crate::output::visible;
use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};
use std::fmt::Write as _;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// How text looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Style {
    pub(crate) dim: bool,
    bold: bool,
    italic: bool,
    underline: bool,
    struck: bool,
    code: bool,
}

impl Style {
    /// Of a text without marks.
    pub(crate) fn of_text(dim: bool) -> Self {
        Self { dim, ..Self::default() }
    }

    /// The text with what makes a terminal show it so.
    fn paint(self, text: &str) -> String {
        let Self { dim, bold, italic, underline, struck, code } = self;
        let codes = [(bold, "1"), (dim, "2"), (italic, "3"), (underline, "4"), (struck, "9"), (code, "36")];
        let codes: Vec<&str> = codes.into_iter().filter_map(|(is_on, code)| is_on.then_some(code)).collect();
        match codes.is_empty() || text.is_empty() {
            true => text.to_owned(),
            false => format!("\x1b[{}m{text}\x1b[0m", codes.join(";")),
        }
    }
}

/// A line of the terminal, or of code that may be longer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// With its looks.
    pub(crate) text: String,
    /// Columns that it takes.
    pub(crate) width: usize,
}

/// A paragraph, list, table or the like of a text.
#[derive(Debug)]
pub(crate) struct Block {
    /// Where it begins in the text, in bytes.
    pub(crate) start: usize,
    pub(crate) lines: Vec<Line>,
}

/// The blocks of a text, for lines of `width` columns.
pub(crate) fn blocks(text: &str, width: usize, style: Style) -> Vec<Block> {
    let options = Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_TASKLISTS;
    let (mut blocks, mut depth) = (Vec::<Block>::new(), 0);
    let mut renderer = Renderer::new(width, style);
    for (event, range) in Parser::new_ext(text, options).into_offset_iter() {
        if depth == 0 {
            blocks.push(Block { start: range.start, lines: Vec::new() });
        }
        match &event {
            Event::Start(_) => depth += 1,
            Event::End(_) => depth -= 1,
            _ => {}
        }
        renderer.take(event);
        if depth == 0 {
            renderer.flush();
            if let Some(block) = blocks.last_mut() {
                block.lines = std::mem::take(&mut renderer.lines);
            }
        }
    }
    blocks
}

/// Text of one look.
#[derive(Clone, Debug)]
struct Span {
    text: String,
    style: Style,
}

/// What stands at the beginning of lines: before the first of a list's item, and before the others.
#[derive(Debug)]
struct Margin {
    first: Option<String>,
    others: String,
}

/// A table whose cells are read.
#[derive(Debug, Default)]
struct Table {
    rows: Vec<Vec<Vec<Span>>>,
}

struct Renderer {
    width: usize,
    /// Of the whole text.
    base: Style,
    styles: Vec<Style>,
    spans: Vec<Span>,
    margins: Vec<Margin>,
    /// The number of the next item of each list that is open, if its items have numbers.
    lists: Vec<Option<u64>>,
    /// Addresses of links that are open, and how many spans were there before.
    links: Vec<(String, usize)>,
    table: Option<Table>,
    code: Option<String>,
    lines: Vec<Line>,
}

impl Renderer {
    fn new(width: usize, base: Style) -> Self {
        Self {
            width: width.max(1),
            base,
            styles: Vec::new(),
            spans: Vec::new(),
            margins: Vec::new(),
            lists: Vec::new(),
            links: Vec::new(),
            table: None,
            code: None,
            lines: Vec::new(),
        }
    }

    fn style(&self) -> Style {
        self.styles.last().copied().unwrap_or(self.base)
    }

    fn take(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.begin(tag),
            Event::End(tag) => self.end(tag),
            Event::Text(text) => match &mut self.code {
                Some(code) => *code += &text,
                None => self.push(&text, self.style()),
            },
            Event::Code(text) => self.push(&text, Style { code: true, ..self.style() }),
            // Tags are text here: nothing else shows what the model wrote.
            Event::Html(text) | Event::InlineHtml(text) => self.push(&text, self.style()),
            Event::InlineMath(text) | Event::DisplayMath(text) => self.push(&text, self.style()),
            Event::FootnoteReference(name) => self.push(&format!("[^{name}]"), self.style()),
            Event::SoftBreak | Event::HardBreak => self.push("\n", self.style()),
            Event::TaskListMarker(is_done) => self.push(if is_done { "[x] " } else { "[ ] " }, self.style()),
            Event::Rule => {
                let rule = "─".repeat(self.room().min(40));
                self.push(&rule, Style { dim: true, ..self.base });
                self.flush();
            }
        }
    }

    fn begin(&mut self, tag: Tag<'_>) {
        let style = self.style();
        match tag {
            Tag::Strong => self.styles.push(Style { bold: true, ..style }),
            Tag::Emphasis => self.styles.push(Style { italic: true, ..style }),
            Tag::Strikethrough => self.styles.push(Style { struck: true, ..style }),
            Tag::Heading { .. } => {
                self.flush();
                self.styles.push(Style { bold: true, ..style });
            }
            Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. } => {
                self.links.push((dest_url.into_string(), self.spans.len()));
                self.styles.push(Style { underline: true, ..style });
            }
            Tag::CodeBlock(kind) => {
                self.flush();
                if let CodeBlockKind::Fenced(language) = kind {
                    self.line_of(&format!("```{language}"), Style { dim: true, ..self.base });
                }
                self.code = Some(String::new());
            }
            Tag::BlockQuote(_) => {
                self.flush();
                self.margins.push(Margin { first: None, others: "│ ".to_owned() });
            }
            Tag::List(first) => {
                self.flush();
                self.lists.push(first);
            }
            Tag::Item => {
                self.flush();
                let mark = match self.lists.last_mut() {
                    Some(Some(number)) => {
                        *number += 1;
                        format!("{}. ", *number - 1)
                    }
                    _ => "• ".to_owned(),
                };
                self.margins.push(Margin { others: " ".repeat(mark.width()), first: Some(mark) });
            }
            Tag::Table(_) => {
                self.flush();
                self.table = Some(Table::default());
            }
            Tag::TableHead | Tag::TableRow => {
                if let Some(table) = &mut self.table {
                    table.rows.push(Vec::new());
                }
                if matches!(tag, Tag::TableHead) {
                    self.styles.push(Style { bold: true, ..style });
                }
            }
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Strong | TagEnd::Emphasis | TagEnd::Strikethrough => {
                self.styles.pop();
            }
            TagEnd::Link | TagEnd::Image => self.end_link(),
            TagEnd::Heading(_) => {
                self.flush();
                self.styles.pop();
            }
            TagEnd::Paragraph | TagEnd::HtmlBlock => self.flush(),
            TagEnd::CodeBlock => self.end_code(),
            TagEnd::BlockQuote(_) | TagEnd::Item => {
                self.flush();
                // An item without text has its mark alone.
                if self.margins.last().is_some_and(|margin| margin.first.is_some()) {
                    self.line_of("", self.base);
                }
                self.margins.pop();
            }
            TagEnd::List(_) => {
                self.lists.pop();
            }
            TagEnd::TableCell => {
                let cell = std::mem::take(&mut self.spans);
                if let Some(row) = self.table.as_mut().and_then(|table| table.rows.last_mut()) {
                    row.push(cell);
                }
            }
            TagEnd::TableHead => {
                self.styles.pop();
            }
            TagEnd::Table => self.end_table(),
            _ => {}
        }
    }

    fn end_link(&mut self) {
        self.styles.pop();
        let Some((address, n_spans)) = self.links.pop() else { return };
        let text: String =
            self.spans[n_spans.min(self.spans.len())..].iter().map(|span| &*span.text).collect();
        let is_said = address.strip_prefix("mailto:").unwrap_or(&address) == text;
        if !is_said && !address.is_empty() {
            self.push(&format!(" ({address})"), Style { dim: true, ..self.base });
        }
    }

    fn end_code(&mut self) {
        let code = self.code.take().unwrap_or_default();
        let style = Style { code: true, ..self.base };
        for line in code.lines() {
            self.line_of(&line.replace('\t', "    "), style);
        }
    }

    fn end_table(&mut self) {
        let table = self.table.take().unwrap_or_default();
        let width = |cell: &[Span]| cell.iter().map(|span| span.text.width()).sum::<usize>();
        let n_columns = table.rows.iter().map(Vec::len).max().unwrap_or(0);
        let widths: Vec<usize> = (0..n_columns)
            .map(|i| {
                table.rows.iter().filter_map(|row| row.get(i)).map(|cell| width(cell)).max().unwrap_or(0)
            })
            .collect();
        let fits = widths.iter().sum::<usize>() + 3 * n_columns.saturating_sub(1) <= self.room();
        let rule = Style { dim: true, ..self.base };
        for (i, row) in table.rows.into_iter().enumerate() {
            for (column, cell) in row.into_iter().enumerate() {
                if column > 0 {
                    self.spans.push(Span { text: " │ ".to_owned(), style: rule });
                }
                // What does not fit has its cells one after the other, wrapped.
                let padding = if fits && column + 1 < n_columns { widths[column] - width(&cell) } else { 0 };
                self.spans.extend(cell);
                self.spans.push(Span { text: " ".repeat(padding), style: self.base });
            }
            match fits {
                true => self.flush_unwrapped(),
                false => self.flush(),
            }
            if i == 0 && fits {
                let parts: Vec<String> = widths.iter().map(|width| "─".repeat(*width)).collect();
                self.line_of(&parts.join("─┼─"), rule);
            }
        }
    }

    fn push(&mut self, text: &str, style: Style) {
        let text = visible(text).replace('\t', "    ");
        match self.spans.last_mut() {
            Some(last) if last.style == style => last.text += &text,
            _ => self.spans.push(Span { text, style }),
        }
    }

    /// Columns for text beside the margins.
    fn room(&self) -> usize {
        let margins: usize = self.margins.iter().map(|margin| margin.others.width()).sum();
        self.width.saturating_sub(margins).max(1)
    }

    /// Ends the paragraph.
    fn flush(&mut self) {
        let spans = std::mem::take(&mut self.spans);
        if spans.iter().all(|span| span.text.trim().is_empty()) {
            return;
        }
        for line in wrap(&spans, self.room()) {
            self.line(&line);
        }
    }

    fn flush_unwrapped(&mut self) {
        let spans = std::mem::take(&mut self.spans);
        self.line(&spans);
    }

    /// A line of one look that is not wrapped.
    fn line_of(&mut self, text: &str, style: Style) {
        self.line(&[Span { text: visible(text).into_owned(), style }]);
    }

    fn line(&mut self, spans: &[Span]) {
        let (mut text, mut width) = (String::new(), 0);
        for margin in &mut self.margins {
            let part = margin.first.take().unwrap_or_else(|| margin.others.clone());
            width += part.width();
            text += &Style { dim: true, ..self.base }.paint(&part);
        }
        for span in spans {
            width += span.text.width();
            text += &span.style.paint(&span.text);
        }
        self.lines.push(Line { text, width });
    }
}

/// Cuts text into lines of at most `room` columns, between words where it can.
fn wrap(spans: &[Span], room: usize) -> Vec<Vec<Span>> {
    let mut wrapped = Wrapped { room, lines: vec![Vec::new()], width: 0, word: Vec::new(), word_width: 0 };
    for span in spans {
        for c in span.text.chars() {
            match c {
                '\n' => {
                    wrapped.end_word();
                    wrapped.end_line();
                }
                ' ' => {
                    wrapped.end_word();
                    wrapped.add_space(span.style);
                }
                _ => wrapped.add(c, span.style),
            }
        }
    }
    wrapped.end_word();
    while wrapped.lines.last().is_some_and(Vec::is_empty) && wrapped.lines.len() > 1 {
        wrapped.lines.pop();
    }
    wrapped.lines
}

struct Wrapped {
    room: usize,
    lines: Vec<Vec<Span>>,
    /// Of the last line.
    width: usize,
    word: Vec<Span>,
    word_width: usize,
}

impl Wrapped {
    fn add(&mut self, c: char, style: Style) {
        let width = c.width().unwrap_or(0);
        // A word that is longer than a line is cut, and so are texts without spaces.
        if self.word_width + width > self.room
            || (width > 1 && self.width + self.word_width + width > self.room)
        {
            self.end_word();
        }
        append(&mut self.word, c, style);
        self.word_width += width;
        // Lines may end behind each wide character.
        if width > 1 {
            self.end_word();
        }
    }

    fn end_word(&mut self) {
        if self.word.is_empty() {
            return;
        }
        if self.width + self.word_width > self.room && self.width > 0 {
            self.end_line();
        }
        self.width += self.word_width;
        self.word_width = 0;
        let line = self.lines.last_mut().expect("there is one at least");
        for span in self.word.drain(..) {
            match line.last_mut() {
                Some(last) if last.style == span.style => last.text += &span.text,
                _ => line.push(span),
            }
        }
    }

    fn add_space(&mut self, style: Style) {
        if self.width < self.room {
            append(self.lines.last_mut().expect("there is one at least"), ' ', style);
            self.width += 1;
        }
    }

    fn end_line(&mut self) {
        self.lines.push(Vec::new());
        self.width = 0;
    }
}

fn append(spans: &mut Vec<Span>, c: char, style: Style) {
    match spans.last_mut() {
        Some(last) if last.style == style => last.text.push(c),
        _ => spans.push(Span { text: c.to_string(), style }),
    }
}

/// What makes a terminal go from lines that it shows, with the cursor behind the last, to others.
///
/// `columns`, `rows`: of the terminal. What has left it at the top stays as it is.
pub(crate) fn redraw(shown: &[Line], wanted: &[Line], columns: usize, rows: usize) -> String {
    let same = shown.iter().zip(wanted).take_while(|(a, b)| a == b).count();
    if same > 0 && same == shown.len() {
        return rest(&wanted[same..], true);
    }
    // Mostly the last line grows at its end.
    if let (Some(old), Some(new)) = (shown.get(same), wanted.get(same))
        && same + 1 == shown.len()
        && let Some(more) = new.text.strip_prefix(&old.text)
    {
        return format!("{more}{}", rest(&wanted[same + 1..], true));
    }
    // The first line that differs and that the terminal still shows.
    let taken = |line: &Line| line.width.div_ceil(columns.max(1)).max(1);
    let (mut first, mut up) = (shown.len(), 0);
    while first > same && up + taken(&shown[first - 1]) < rows.max(2) {
        first -= 1;
        up += taken(&shown[first]);
    }
    let mut out = String::new();
    if up > 1 {
        write!(out, "\x1b[{}A", up - 1).expect("a string takes it");
    }
    if !shown.is_empty() {
        out += "\r\x1b[J";
    }
    out + &rest(wanted.get(first..).unwrap_or_default(), false)
}

/// Lines one below the other. `below`: the first, too, is below what is there.
fn rest(lines: &[Line], below: bool) -> String {
    let mut out = String::new();
    for (i, line) in lines.iter().enumerate() {
        if i > 0 || below {
            out.push('\n');
        }
        out += &line.text;
    }
    out
}
