"""Bindings of tools, schemas made of functions, and time limits."""

import asyncio
import time

import pytest

from plugrl.core.errors import ConfigError
from plugrl.core.text.agents.parsing import ToolCall
from plugrl.core.text.agents.tools import Tool, Toolbox, ToolFailedError, bind, parameters_of


def test_files_of_the_workspace_come_before_packages(tmp_path):
    (tmp_path / "numpy.py").write_text("def isnan(x): return 'mine'\n")
    assert bind("numpy:isnan", tmp_path)(1) == "mine"
    assert bind("math:sqrt", tmp_path)(9) == 3
    (tmp_path / "kit").mkdir()
    (tmp_path / "kit" / "deep.py").write_text(
        "class Box:\n    @staticmethod\n    def f(): return 7\n"
    )
    assert bind("kit.deep:Box.f", tmp_path)() == 7


def test_two_agents_have_modules_of_one_name(tmp_path):
    found = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "tools.py").write_text("from .helpers import word\ndef say(): return word\n")
        (folder / "helpers.py").write_text(f"word = {name!r}\n")
        found.append(bind("tools:say", folder))
    assert [function() for function in found] == ["one", "two"]


def test_a_plain_import_works_and_is_refused_where_it_would_find_another_agents_module(tmp_path):
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "tools.py").write_text("from helpers import word\ndef say(): return word\n")
        (folder / "helpers.py").write_text(f"word = {name!r}\n")
    assert bind("tools:say", tmp_path / "one")() == "one"
    with pytest.raises(ConfigError, match=r"line 1 imports helpers, .*; write from \. import hel"):
        bind("tools:say", tmp_path / "two")


@pytest.mark.parametrize(
    ("binding", "message"),
    [
        ("kit", "must be module:function, not 'kit'"),
        ("kit:", "must be module:function"),
        ("kti:f", r"there is no kti.py in .*, and no installed module 'kti'; did you mean kit\?"),
        ("kit:ff", r"kit.py has no 'ff'; did you mean f\?"),
        ("kit:word", "kit:word is a str, not a function"),
        ("broken:f", r"broken:f cannot be imported: ZeroDivisionError: .* at .*broken.py:1"),
        ("lost:f", r"lost:f cannot be imported: ModuleNotFoundError: No module named 'nowhere'"),
        ("leaves:f", r"leaves:f cannot be imported: SystemExit"),
    ],
)
def test_bindings_that_lead_nowhere(tmp_path, binding, message):
    (tmp_path / "kit.py").write_text("word = 'x'\ndef f(): pass\n")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    (tmp_path / "lost.py").write_text("import nowhere\n")
    (tmp_path / "leaves.py").write_text("raise SystemExit\n")
    with pytest.raises(ConfigError, match=message):
        bind(binding, tmp_path)


def example(a: int, b: "list[str]", c: float = 1.0, *more, d=None, **rest):
    raise AssertionError("it is never called")


def test_the_schema_of_a_function():
    assert parameters_of(example) == {
        "type": "object",
        "properties": {
            "a": {"type": "integer"},
            "b": {"type": "array"},
            "c": {"type": "number"},
            "d": {},
        },
        "required": ["a", "b"],
    }
    written = Tool("f", example, "Does", {"type": "object", "properties": {}})
    assert written.schema == {
        "type": "function",
        "function": {
            "name": "f",
            "description": "Does",
            "parameters": {"type": "object", "properties": {}},
        },
    }


async def stubborn():
    while True:
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            await asyncio.sleep(1)


async def cancels():
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (stubborn, "f took more than 0.1 seconds"),
        (cancels, "f failed: CancelledError: the tool was cancelled"),
        (lambda: time.sleep(3), "f took more than 0.1 seconds"),
    ],
)
def test_a_call_comes_back_whatever_the_tool_does(function, message):
    async def call():
        with pytest.raises(ToolFailedError, match=message):
            await Toolbox([Tool("f", function)], 0.1).call(ToolCall("f"))
        return time.monotonic()

    started = time.monotonic()
    assert asyncio.run(call()) - started < 2


def test_async_tools_wait_together_and_the_only_tool_needs_no_name():
    all_wait = asyncio.Barrier(10)

    async def slow(x):
        await all_wait.wait()
        return [x]

    async def both():
        box = Toolbox([Tool("f", slow)], 5)
        return await asyncio.gather(*(box.call(ToolCall("", [n])) for n in range(10)))

    assert asyncio.run(both()) == [f"[{n}]" for n in range(10)]
