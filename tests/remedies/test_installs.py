"""What messages say to install is there: extras, and in them the package that is missing."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import pytest
from remedies import ROOMS, texts

import plugrl

#: ``pip install "NAME[EXTRA]"`` in a text; what varies stands as ``{}``.
_INSTALL = re.compile(r"""pip install (?:-U )?["']?(\w[\w-]*)\[([\w-]+)\]["']?""")
COMMANDS = sorted(
    {
        (*found.groups(), text)
        for room in ROOMS
        for _, text in texts(room, "install")
        for found in _INSTALL.finditer(text)
    }
)

#: Extras that the source names anywhere, such as in a table of them.
NAMED = sorted(
    set().union(
        *(
            re.findall(
                r"\b(plugrl|gymnasium|pettingzoo)\[([a-z][a-z-]+)\]", path.read_text("utf-8")
            )
            for path in Path(plugrl.__file__).parent.rglob("*.py")
        )
    )
)


def requirements(package: str, extra: str) -> set[str]:
    """The names of packages that an extra of a package installs."""
    names = set()
    for line in importlib.metadata.requires(package) or ():
        requirement, _, marker = line.partition(";")
        if re.search(rf"""extra == ["']{extra}["']""", marker):
            own = re.match(rf"{package}\[([\w,-]+)\]", requirement)
            inner = own[1].split(",") if own else []
            names |= set().union(*(requirements(package, each) for each in inner))
            names |= {re.split(r"[\[ ~<>=!(]", requirement, maxsplit=1)[0].lower()}
    return names


@pytest.mark.parametrize(("package", "extra"), NAMED)
def test_an_extra_that_the_source_names_is_there(package, extra):
    assert extra in importlib.metadata.metadata(package).get_all("Provides-Extra")


@pytest.mark.parametrize(("package", "extra", "text"), COMMANDS)
def test_an_extra_has_what_is_missing(package, extra, text):
    held = requirements(package, extra)
    assert held
    missing = re.match(r"(?:.*needs )?([a-z][\w-]+)(?:, which)? (?:is|are) not installed", text)
    if missing:
        assert missing[1].replace("_", "-") in {name.replace("_", "-") for name in held}
