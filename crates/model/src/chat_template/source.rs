//! Rewrites what the engine's parser does not know: `{% generation %}` blocks, by which transformers marks what the model
//! wrote, become blocks that always render. Lines stay where they are, so that errors name the right one.

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
            _ => {}
        }
        out.push_str(code);
    }
    out.push_str(rest);
    out
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

#[cfg(test)]
mod tests {
    use super::*;

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
