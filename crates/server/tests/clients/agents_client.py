"""Coding agents do a task, started by `realizar launch`: python agents_client.py REALIZAR SCRIPTED_SERVER.

The server's answers are scripted: read a file, change it, say so. What is tested is that agent and server understand each other.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import scripted

realizar, scripted_server = sys.argv[1:]
TASK = "Correct the spelling in greeting.txt."
DONE = "The spelling is right now."


def claude(file):
    """Rules, and arguments for the agent."""
    rules = [
        {"turn": 0, "contains": [TASK, '"name": "Read"'], "answer": scripted.call("Read", file_path=file)},
        {
            "turn": 1,
            "contains": [TASK, "<tool_response>\n1\thelo world"],
            "answer": scripted.call("Edit", file_path=file, old_string="helo", new_string="hello"),
        },
        {"turn": 2, "contains": [TASK, "has been updated"], "answer": DONE},
    ]
    return rules, ["-p", TASK, "--allowedTools", "Read,Edit"]


def codex(file):
    """Rules, and arguments for the agent."""
    patch = "*** Begin Patch\n*** Update File: greeting.txt\n@@\n-helo world\n+hello world\n*** End Patch"
    read = scripted.call("exec_command", cmd="cat greeting.txt")
    edit = scripted.call("exec_command", cmd=f"apply_patch <<'END'\n{patch}\nEND")
    rules = [
        {"turn": 0, "contains": [TASK, '"name": "exec_command"'], "answer": read},
        {"turn": 1, "contains": [TASK, "helo world"], "answer": edit},
        {"turn": 2, "contains": [TASK, "Success"], "answer": DONE},
    ]
    return rules, ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", TASK]


for agent in [claude, codex]:
    with tempfile.TemporaryDirectory() as folder:
        home, work = Path(folder, "home"), Path(folder, "work")
        home.mkdir()
        work.mkdir()
        file = work / "greeting.txt"
        file.write_text("helo world\n")
        rules, arguments = agent(str(file))
        with scripted.server(scripted_server, rules) as url:
            # Nothing of the user's settings.
            environment = {"PATH": os.environ["PATH"], "HOME": str(home)}
            command = [realizar, "launch", agent.__name__, "--url", url, "--", *arguments]
            done = subprocess.run(
                command, cwd=work, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
            )
        assert done.returncode == 0, done.stdout + done.stderr
        assert DONE in done.stdout, done.stdout + done.stderr
        assert file.read_text() == "hello world\n", done.stdout + done.stderr
        print(agent.__name__, "passed")
