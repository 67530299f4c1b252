"""``python -m plugrl.validator recipe=task/task``: another spelling of ``plugrl validate``."""

import sys

from plugrl.cli import main

if __name__ == "__main__":
    main(["validate", *sys.argv[1:]])
