"""``python -m plugrl``: the same as the ``plugrl`` command."""

from plugrl.cli import main

if __name__ == "__main__":
    main()
