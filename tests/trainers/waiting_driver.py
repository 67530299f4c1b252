"""The command line in a process that is to be killed.

usage: waiting_driver.py LINES WORD ...: prints a line for each one of metrics that it has written.
After LINES of them it waits, so that the run cannot be over before its end comes.
"""

import sys
import time

from plugrl.cli import main
from plugrl.core.run.records import Records

plain, limit, written = Records.metrics, int(sys.argv[1]), 0


def metrics(self, step, numbers):
    global written
    plain(self, step, numbers)
    written += 1
    print("written", flush=True)
    if written == limit:
        time.sleep(600)


if __name__ == "__main__":
    Records.metrics = metrics
    main(sys.argv[2:])
