"""``python -m realizar``: the program that the package comes with, with the same arguments."""

import os
import subprocess
import sys
from importlib.metadata import files


def program() -> str:
    """The path of the program that was installed with this package.

    Errors: `FileNotFoundError` if it is not there, as in a folder that was copied out of the wheel.
    """
    for file in files("realizar") or []:
        path = file.locate()
        if file.name in ("realizar", "realizar.exe") and os.path.isfile(path):
            return os.path.realpath(path)
    raise FileNotFoundError("the program realizar is not installed with the Python package realizar")


def main() -> None:
    arguments = [program(), *sys.argv[1:]]
    if os.name == "nt":
        # Windows cannot replace a process.
        sys.exit(subprocess.call(arguments))
    # The program takes this process over, and with it all signals.
    os.execv(arguments[0], arguments)


if __name__ == "__main__":
    main()
