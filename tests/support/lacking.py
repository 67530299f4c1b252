"""Runs a command where the kernel lacks some system calls: ``lacking.py NAME... -- COMMAND``.

A filter answers ENOSYS for them, as older kernels and the profiles of container runtimes do; the
word ``prctl_seccomp`` stands for the older way to install a filter.
"""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from plugrl.core.sandbox.inside.kernel import filter_calls
from plugrl.core.sandbox.inside.system_calls import call_numbers

LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, LACKS = 0x7FFF0000, 0x00050000 | 38


def main() -> None:
    split = sys.argv.index("--")
    names, command = sys.argv[1:split], sys.argv[split + 1 :]
    steps = [(LOAD, 0, 0, 0)]
    for name in names:
        if name == "prctl_seccomp":
            steps += [(EQUAL, 0, 4, call_numbers()["prctl"]), (LOAD, 0, 0, 16), (EQUAL, 0, 1, 22)]
            steps += [(RETURN, 0, 0, LACKS), (RETURN, 0, 0, ALLOW)]
        else:
            steps += [(EQUAL, 0, 1, call_numbers()[name]), (RETURN, 0, 0, LACKS)]
    steps.append((RETURN, 0, 0, ALLOW))
    filter_calls(b"".join(struct.pack("HBBI", *step) for step in steps), listen=False)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
