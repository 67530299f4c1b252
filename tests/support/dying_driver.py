"""The command line in a process that dies soon after a line of its metrics.

usage: dying_driver.py LINE SECONDS WORD ...: it has SECONDS of processor time from that line on,
then ends in the middle of whatever it does: no code of Python handles the signal that ends it.
"""

import os
import signal
import sys

from plugrl.cli import main
from plugrl.core.run.records.records import RunRecords

MORE_LINES = 3
plain, line, seconds, written = RunRecords.metrics, int(sys.argv[1]), float(sys.argv[2]), 0


def metrics(self, step, numbers):
    global written
    plain(self, step, numbers)
    written += 1
    if written == line:
        # At zero it would never come.
        signal.setitimer(signal.ITIMER_PROF, max(seconds, 1e-4))
    if written == line + MORE_LINES:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    RunRecords.metrics = metrics
    main(sys.argv[3:])
