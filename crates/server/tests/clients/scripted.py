"""A server that plays a script, for tests of clients that need particular answers."""

import contextlib
import json
import subprocess
import tempfile
from pathlib import Path


def call(tool, /, **arguments):
    """The call of a tool, as a model writes it."""
    return f'<tool_call>\n{{"name": "{tool}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


@contextlib.contextmanager
def server(program, rules):
    """Runs the server; gives its address. A conversation that no rule fits fails."""
    with tempfile.TemporaryDirectory() as folder:
        script, log = Path(folder, "script.json"), Path(folder, "server.log")
        script.write_text(json.dumps(rules))
        with log.open("w") as stderr:
            process = subprocess.Popen([program, script], stdout=subprocess.PIPE, stderr=stderr, text=True)
            try:
                yield process.stdout.readline().strip()
            finally:
                process.terminate()
                process.wait()
        said = log.read_text()
        assert not said, said[-3000:]
