"""Where the kit's new process finds components: one for all, and none fails for another."""

import distributions
import pytest

from plugrl.core.plugins.registry import default_registry
from plugrl.testing.processes import NewProcess

MODULE = """
import os
from pathlib import Path
from plugrl import Evaluator
with Path(__file__).with_suffix(".loaded").open("a") as file:
    file.write(f"{{os.getpid()}} ")
{then}

class Outer:
    class Inner(Evaluator):
        def evaluate(self, data, evaluation_target): ...

Found = Outer.Inner
"""
MODULES = {
    "one": "",
    "two": "",
    "broken": "import package_that_is_not_there",
    "leaves": "raise SystemExit(0)",
    "killed": "os._exit(0)",
    "failed": "import atexit; atexit.register(os._exit, 7)",
}


@pytest.fixture
def record(tmp_path, monkeypatch):
    """Gives the record of one of these modules, which nothing imports here."""
    for name, then in MODULES.items():
        (tmp_path / f"elsewhere_{name}.py").write_text(MODULE.format(then=then))
    targets = {name: f"elsewhere_{name}:Found" for name in MODULES}
    distributions.write_metadata(tmp_path, "rl-elsewhere", "1.0", {"plugrl.evaluators": targets})
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return lambda name: default_registry().resolve("evaluator", name)


def test_one_process_finds_all_that_are_known_beforehand(tmp_path, record):
    elsewhere = NewProcess([record("one"), record("two"), record("one")])
    for name in ("two", "one", "two"):
        assert elsewhere.location(record(name)) == f"elsewhere_{name}:Outer.Inner"
    one, two = (
        (tmp_path / f"elsewhere_{name}.loaded").read_text().split() for name in ("one", "two")
    )
    assert one == two
    assert len(one) == 1


def test_what_is_not_known_beforehand_is_found_too(record):
    assert NewProcess().location(record("one")) == "elsewhere_one:Outer.Inner"


def test_one_that_cannot_be_imported_fails_alone(tmp_path, record):
    elsewhere = NewProcess([record("broken"), record("leaves"), record("one")])
    assert elsewhere.location(record("one")) == "elsewhere_one:Outer.Inner"
    for name, reason in (("broken", "package_that_is_not_there"), ("leaves", "SystemExit: 0")):
        with pytest.raises(AssertionError, match=rf"(?s)cannot load {name}: Trace.*{reason}"):
            elsewhere.location(record(name))
    # It was tried beside the others, and then in a process of its own.
    assert len(set((tmp_path / "elsewhere_broken.loaded").read_text().split())) == 2
    assert len((tmp_path / "elsewhere_one.loaded").read_text().split()) == 1


@pytest.mark.integration
@pytest.mark.parametrize(("name", "code"), [("killed", 0), ("failed", 7)])
def test_one_that_ends_its_process_fails_alone(record, name, code):
    elsewhere = NewProcess([record(name), record("one")])
    assert elsewhere.location(record("one")) == "elsewhere_one:Outer.Inner"
    with pytest.raises(AssertionError, match=f"cannot load {name}: it ended with code {code}"):
        elsewhere.location(record(name))
