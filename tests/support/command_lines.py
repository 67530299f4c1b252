"""Command lines that are tried, and those that messages tell."""

from __future__ import annotations

import contextlib
import io
import re
import shlex

from trials import Read, refused

from plugrl.cli import main


def command(line: str) -> None:
    """Run a command in this process; what it says when it fails is a refusal."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            main(shlex.split(line))
        except SystemExit as end:
            if end.code:
                refused(errors.getvalue().strip())


def told(command: str, **names: str) -> Read:
    """The command line that a message tells, with names for its words in capitals."""

    def line(text: str) -> str:
        return re.sub("|".join(names) or "(?!)", lambda found: names[found[0]], text)

    return Read(rf"(?:plugrl )?({command}.*?)$", line)


def meant(line: str, pattern: str = r"did you mean ([\w.-]+)[,?]") -> Read:
    """A command line with the first word that a message suggests."""
    return Read(pattern, lambda word: line.format(word))
