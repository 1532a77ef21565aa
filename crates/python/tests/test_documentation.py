"""The examples of docs/python.md, with small models in the places of those that they name.

    test_documentation.py --write FILE    writes the examples as one program, for type checkers
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs/python.md"
STAND_INS = {
    "Qwen3-8B-Q4_K_M.gguf": "assets/demo.gguf",
    "bge-small-en-v1.5-q8_0.gguf": "crates/model/tests/data/encoders/bert/model.gguf",
}


def examples() -> list[str]:
    """The page's blocks of Python."""
    return re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


class Documentation(unittest.TestCase):
    def test_examples_run_in_their_order(self) -> None:
        before, names = os.getcwd(), dict[str, object]()
        with tempfile.TemporaryDirectory() as folder:
            for name, file in STAND_INS.items():
                Path(folder, name).write_bytes((ROOT / file).read_bytes())
            os.chdir(folder)
            try:
                for i, example in enumerate(examples(), start=1):
                    with self.subTest(example=i), contextlib.redirect_stdout(io.StringIO()) as output:
                        exec(compile(example, f"{PAGE.name}, example {i}", "exec"), names)
                        self.assertTrue(output.getvalue().strip())
            finally:
                os.chdir(before)
        self.assertGreater(len(examples()), 3)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--write"]:
        Path(sys.argv[2]).write_text("\n".join(examples()))
    else:
        unittest.main()
