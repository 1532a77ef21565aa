//! Rewrites a template where the engine's Jinja differs from Python's.
//!
//! - `{% generation %}` blocks, by which transformers marks what the model wrote, become blocks that always render.
//! - The engine iterates over None as over an empty list, Python does not: what a `for` iterates over passes the filter
//!   [`ITERABLE`], which refuses None.
//!
//! Lines stay where they are, so that errors name the right one.

/// The filter around what a `for` iterates over.
pub(super) const ITERABLE: &str = "_iterable";

/// The template as the engine shall see it.
pub(super) fn rewrite(source: &str) -> String {
    let mut out = String::with_capacity(source.len() + source.len() / 8);
    let mut rest = source;
    let mut raw = false;
    while let Some(open) = rest.find('{') {
        let (before, from) = rest.split_at(open);
        out.push_str(before);
        let (end, tag) = match from.as_bytes().get(1) {
            Some(b'#') if !raw => (from.find("#}").map(|at| at + 2), false),
            Some(b'{') if !raw => (end_of_code(from, "}}"), false),
            Some(b'%') => (end_of_code(from, "%}"), true),
            _ => (Some(1), false),
        };
        // An unfinished tag: the compiler will say so.
        let Some(end) = end else {
            rest = from;
            break;
        };
        let code = &from[..end];
        rest = &from[end..];
        if !tag {
            out.push_str(code);
            continue;
        }
        let inner = code[2..end - 2].trim_matches(['-', '+']).trim();
        match inner.split_whitespace().next() {
            Some("raw") if !raw => raw = true,
            Some("endraw") => raw = false,
            Some("generation") if !raw && inner == "generation" => {
                out.push_str(&code.replacen("generation", "if true", 1));
                continue;
            }
            Some("endgeneration") if !raw => {
                out.push_str(&code.replacen("endgeneration", "endif", 1));
                continue;
            }
            Some("for") if !raw => {
                push_for(code, &mut out);
                continue;
            }
            _ => {}
        }
        out.push_str(code);
    }
    out.push_str(rest);
    out
}

/// Writes a `for` tag with the filter around what it iterates over.
fn push_for(code: &str, out: &mut String) {
    let inner_end = code.len() - 2;
    let inner_end =
        if matches!(code.as_bytes()[inner_end - 1], b'-' | b'+') { inner_end - 1 } else { inner_end };
    let words = top_level_words(&code[..inner_end]);
    let Some(start) = words.iter().find(|(word, _)| *word == "in").map(|(_, at)| at + "in".len()) else {
        out.push_str(code);
        return;
    };
    // The first `if` begins the loop's condition: a conditional expression would need parentheses here.
    let end = words.iter().find(|(word, at)| *at > start && matches!(*word, "if" | "recursive"));
    let end = end.map_or(inner_end, |(_, at)| *at);
    out.push_str(&code[..start]);
    out.push_str(" (");
    out.push_str(&code[start..end]);
    out.push_str(")|");
    out.push_str(ITERABLE);
    out.push(' ');
    out.push_str(&code[end..]);
}

/// Length of a tag up to and with `close`, which counts only outside of strings.
fn end_of_code(code: &str, close: &str) -> Option<usize> {
    let mut quote = None;
    let mut bytes = code.bytes().enumerate().skip(2);
    while let Some((at, byte)) = bytes.next() {
        match (quote, byte) {
            (Some(_), b'\\') => {
                bytes.next();
            }
            (Some(open), _) if byte == open => quote = None,
            (Some(_), _) => {}
            (None, b'\'' | b'"') => quote = Some(byte),
            (None, _) if code.as_bytes()[at..].starts_with(close.as_bytes()) => {
                return Some(at + close.len());
            }
            (None, _) => {}
        }
    }
    None
}

/// The words of a tag that stand in no string and no bracket, with their places.
fn top_level_words(code: &str) -> Vec<(&str, usize)> {
    let mut words = Vec::new();
    let mut quote = None;
    let mut depth = 0usize;
    let mut word = None;
    let mut bytes = code.bytes().enumerate().skip(2);
    while let Some((at, byte)) = bytes.next() {
        let in_word =
            quote.is_none() && depth == 0 && (byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80);
        match (word, in_word) {
            (None, true) => word = Some(at),
            (Some(start), false) => {
                words.push((&code[start..at], start));
                word = None;
            }
            _ => {}
        }
        match (quote, byte) {
            (Some(_), b'\\') => {
                bytes.next();
            }
            (Some(open), _) if byte == open => quote = None,
            (Some(_), _) => {}
            (None, b'\'' | b'"') => quote = Some(byte),
            (None, b'(' | b'[' | b'{') => depth += 1,
            (None, b')' | b']' | b'}') => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    if let Some(start) = word {
        words.push((&code[start..], start));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_get_the_filter_around_what_they_iterate_over() {
        assert_eq!(rewrite("{%- for a in b -%}"), "{%- for a in ( b )|_iterable -%}");
        assert_eq!(
            rewrite("{% for k, v in d.items() if v in x %}"),
            "{% for k, v in ( d.items() )|_iterable if v in x %}"
        );
        assert_eq!(
            rewrite("{% for a in f(' in %} ', b if c else d) recursive %}"),
            "{% for a in ( f(' in %} ', b if c else d) )|_iterable recursive %}"
        );
    }

    #[test]
    fn only_tags_are_rewritten() {
        for text in [
            "for a in b",
            "{# {% for a in b %} #}",
            "{% raw %}{% for a in b %}{% generation %}{% endraw %}",
            "{{ '{% for a in b %}' }}",
            "{% if add_generation_prompt %}",
            "{% for a in b",
            "{",
            "{%",
            "{%%}",
            "{%-%}",
            "{% for",
            "{% for %}",
        ] {
            assert_eq!(rewrite(text), text);
        }
    }

    #[test]
    fn generation_tags_become_blocks_that_render() {
        assert_eq!(rewrite("{%- generation -%}x{% endgeneration %}"), "{%- if true -%}x{% endif %}");
    }
}
