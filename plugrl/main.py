"""``python -m plugrl.main recipe=my_task/my_task``: another spelling of ``plugrl train``."""

import sys

from plugrl.cli import main

if __name__ == "__main__":
    main(["train", *sys.argv[1:]])
