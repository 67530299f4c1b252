"""What a component is for is read from its source, and nothing is imported for it."""

from __future__ import annotations

import sys

import pytest

from plugrl.core.plugins.kinds import Record
from plugrl.core.plugins.packages.summaries import folders_of, source_of, summary

MODULE = '''"""What the module is for. And more."""
raise SystemExit("imported")


class Mine(Base):
    """Rewards what ``counts``
    most. Details.

    More.
    """

    class Inner:
        """Inside."""


async def roll(task):
    """Rolls"""


class Bare: ...
'''


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "rl_summed"
    (folder / "deep").mkdir(parents=True)
    (folder / "__init__.py").write_text("from .deep import mine as again\nraise SystemExit(1)\n")
    (folder / "deep" / "__init__.py").write_text("from ..deep.mine import Mine as Other\n")
    (folder / "deep" / "mine.py").write_text(MODULE)
    (folder / "loop.py").write_text("from .loop import Round\n")
    (folder / "broken.py").write_text("class (:\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder
    assert not [name for name in sys.modules if name.startswith("rl_summed")]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("rl_summed.deep.mine:Mine", "Rewards what `counts` most"),
        ("rl_summed.deep.mine:Mine.Inner", "Inside"),
        ("rl_summed.deep.mine:roll", "Rolls"),
        ("rl_summed.deep.mine:Bare", "What the module is for"),
        ("rl_summed.deep.mine:gone", "What the module is for"),
        ("rl_summed.deep:Other", "Rewards what `counts` most"),
        ("rl_summed.loop:Round", ""),
        ("rl_summed.broken:X", ""),
        ("rl_summed.gone:X", ""),
        ("no_such_package_here.a.b:X", ""),
        ("sys:X", ""),
    ],
)
def test_the_summary_of_a_target(package, target, expected):
    assert summary(Record(kind="evaluator", name="x", target=target)) == expected


def test_the_summary_of_a_file_of_a_user(tmp_path):
    (tmp_path / "x.py").write_text(MODULE)
    record = Record(
        kind="evaluator", name="x", target="plugrl_user_0.x:Mine", file=str(tmp_path / "x.py")
    )
    assert summary(record) == "Rewards what `counts` most"


def test_modules_are_found_where_python_finds_them():
    import plugrl.core.text.batch

    assert source_of("plugrl.core.text.batch") == plugrl.core.text.batch.__file__
    assert folders_of("plugrl.core.text") == list(plugrl.core.text.__path__)
    assert folders_of("plugrl.core.text.batch") == []
    assert folders_of("no_such_package_here.a") == []


def test_a_folder_without_an_init_file_is_a_package(package):
    (package / "data" / "more").mkdir(parents=True)
    assert folders_of("rl_summed.data.more") == [str(package / "data" / "more")]


def test_every_own_component_says_what_it_is_for():
    from plugrl.core.plugins.registry import default_registry

    own = [r for r in default_registry().records() if r.distribution == "plugrl"]
    assert len(own) >= 14
    assert [r.name for r in own if not summary(r)] == []
    by_name = {r.name: summary(r) for r in own}
    assert by_name["exact_match"] == "Reward 1 for an answer that equals the reference, else 0"
