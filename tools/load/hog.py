"""Takes memory until little is available, holds it for a while, gives 4 GiB back, and again, until stdin ends.

  python3 hog.py MIB

Leaves at least so many MiB, and gives back at once what others need of them. Each wave is a line on stdout: the MiB that it has taken.
"""

import re
import select
import sys
from pathlib import Path

CHUNK_MIB = 64
# How much of it comes and goes.
WAVE_MIB = 4096
HOLD_S, PAUSE_S = 10, 15


def available_mib():
    return int(re.search(r"MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text())[1]) // 1024


def stdin_ends(seconds):
    return bool(select.select([sys.stdin], [], [], seconds)[0])


def main():
    leave, chunks = int(sys.argv[1]), []
    # If the machine runs out of memory nevertheless, this process is the first to go.
    Path("/proc/self/oom_score_adj").write_text("1000")

    def wait(seconds):
        """Gives memory back that others need meanwhile; whether to go on."""
        for _ in range(int(seconds / 0.05)):
            if stdin_ends(0.05):
                return False
            while chunks and available_mib() < leave:
                chunks.pop()
        return True

    while wait(PAUSE_S):
        while available_mib() > leave + CHUNK_MIB:
            # Bytes that are not 0 are really written, so the pages exist.
            chunks.append(bytearray(b"x") * (CHUNK_MIB << 20))
        print(len(chunks) * CHUNK_MIB, flush=True)
        if not wait(HOLD_S):
            break
        del chunks[-(WAVE_MIB // CHUNK_MIB) :]


if __name__ == "__main__":
    main()
