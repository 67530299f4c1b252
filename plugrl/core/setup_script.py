"""The shell script that ``environment.setup_script`` names, and what it exports."""

from __future__ import annotations

import os
import subprocess

from plugrl.core.errors import ConfigError

#: Seconds that a script may take.
TIME_LIMIT = 600.0
#: Variables of the shell itself.
_SHELL = frozenset({"_", "SHLVL", "PWD", "OLDPWD", "COLUMNS", "LINES"})


def exported(script: str) -> dict[str, str]:
    """Run a script in a shell of its own; give the variables that it sets or changes.

    Every assignment counts as exported. What the script prints goes to stderr.

    Raises:
        ConfigError: it fails, or takes longer than :data:`TIME_LIMIT`.
    """
    words = ["sh", "-c", 'set -ae; . "$1" >&2; env -0', "sh", os.path.abspath(script)]
    where = f"environment.setup_script {script}"
    try:
        done = subprocess.run(words, stdout=subprocess.PIPE, timeout=TIME_LIMIT, check=False)
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"{where} ran longer than {TIME_LIMIT:g} seconds; run long work before the run"
        ) from None
    except OSError as error:
        raise ConfigError(f"{where} cannot be run: {error.strerror or error}") from None
    if done.returncode:
        raise ConfigError(
            f"{where} failed with exit code {done.returncode}; run it with `sh` to see why"
        )
    pairs = (entry.partition("=") for entry in os.fsdecode(done.stdout).split("\0") if entry)
    return {
        name: value
        for name, _, value in pairs
        if name not in _SHELL and os.environ.get(name) != value
    }
