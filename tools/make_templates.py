#!/usr/bin/env python3
"""Renders the chat templates of the tests, and the project's own, as the library transformers does.

Each folder in crates/model/tests/data/templates holds templates and `inputs.json`, what they are rendered with: `chat` has templates
that are built as those of today's models, with conversations, and takes the project's own two as well (ChatML, which the program
writes for models without a template, and the demo model's); `language` has what Jinja and Python do with values; `errors` has what
they refuse. `renders.json` says for each template and input what comes out: the text; the words of `raise_exception`; or the
name of Python's exception. `strftime_now` reads 2026-01-15 12:00:00.

    pip install transformers==5.23.0 jinja2==3.1.6 gguf==0.19.0
    python tools/make_templates.py            # writes the files
    python tools/make_templates.py --check    # compares with what is committed
"""

import datetime
import json
import sys
from pathlib import Path

import gguf
import jinja2
from transformers.utils import chat_template_utils

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "crates/model/tests/data/templates"


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2026, 1, 15, 12, 0, 0, tzinfo=tz)


def own_templates():
    demo = gguf.GGUFReader(ROOT / "assets/demo.gguf").fields["tokenizer.chat_template"].contents()
    return {"chatml": (ROOT / "crates/cli/src/chatml.jinja").read_text(), "demo": demo}


def render(template, inputs):
    options = {"add_generation_prompt": True, "bos_token": "<BOS>", "eos_token": "<EOS>", **inputs}
    messages = options.pop("messages")
    try:
        texts, _ = chat_template_utils.render_jinja_template([messages], chat_template=template, **options)
        return {"text": texts[0]}
    except jinja2.TemplateError as error:
        # Its subclasses are errors of Jinja itself.
        return {"refused": str(error.message)} if type(error) is jinja2.TemplateError else {"error": type(error).__name__}
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        return {"error": type(error).__name__}


def main():
    chat_template_utils.datetime = Clock
    differ = []
    for folder in ["chat", "language", "errors"]:
        inputs = json.loads((DATA / folder / "inputs.json").read_text())
        templates = {path.stem: path.read_text() for path in sorted((DATA / folder).glob("*.jinja"))}
        if folder == "chat":
            templates |= own_templates()
        renders = {name: {case: render(text, inputs[case]) for case in inputs} for name, text in templates.items()}
        text = json.dumps(renders, ensure_ascii=False, indent=1) + "\n"
        path = DATA / folder / "renders.json"
        if "--check" not in sys.argv[1:]:
            path.write_text(text)
        elif path.read_text() != text:
            differ.append(str(path))
        results = [result for cases in renders.values() for result in cases.values()]
        print(folder, {kind: sum(kind in result for result in results) for kind in ["text", "refused", "error"]})
    sys.exit(f"differ: {', '.join(differ)}" if differ else 0)


main()
