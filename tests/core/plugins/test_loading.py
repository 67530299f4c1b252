"""User files become modules of a package made of their folder."""

from __future__ import annotations

import importlib
import re
import sys

import pytest

from plugrl.core.errors import PluginError
from plugrl.core.plugins.packages.installed import PluginSelection
from plugrl.core.plugins.registry import Registry
from plugrl.core.plugins.user_code.user_files import load_file, load_module, user_module_name

DEF = "def f(logp, batch, config):"


def load_loss(path, name="f"):
    registry = Registry([], PluginSelection())
    return registry, registry.load_path("loss", path, name)


def test_neighbours_are_imported_relatively(tmp_path):
    (tmp_path / "my-loss.py").write_text(f"from .near import two\n\n{DEF}\n    return two\n")
    (tmp_path / "near.py").write_text("two = 2\n")
    registry, record = load_loss(tmp_path / "my-loss.py")
    assert registry.load(record)(0, 0, 0) == 2
    assert record.file == str(tmp_path / "my-loss.py")
    assert (record.source, record.distribution, record.name) == ("path", None, "f")
    assert registry.used == {record}


def test_folders_with_files_of_one_name_stay_apart(tmp_path):
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "x.py").write_text(f"{DEF}\n    return {number}\n")
    assert [load_file(tmp_path / str(n) / "x.py").f(0, 0, 0) for n in (1, 2)] == [1, 2]


def test_one_file_is_one_module(tmp_path):
    (tmp_path / "x.py").write_text("import sys\n")
    (tmp_path / "link.py").symlink_to(tmp_path / "x.py")
    assert load_file(tmp_path / "x.py") is load_file(tmp_path / "link.py")
    assert user_module_name(tmp_path / "x.py") in sys.modules


def test_the_init_file_of_the_folder_is_run(tmp_path):
    (tmp_path / "__init__.py").write_text("three = 3\n")
    (tmp_path / "x.py").write_text(f"from . import three\n\n{DEF}\n    return three\n")
    registry, record = load_loss(tmp_path / "x.py")
    assert registry.load(record)(0, 0, 0) == 3


def test_a_failed_import_can_be_repeated(tmp_path):
    file = tmp_path / "x.py"
    file.write_text("import no_such_package_here\n")
    with pytest.raises(PluginError, match=r"No module named 'no_such_package_here'") as caught:
        load_loss(file)
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)
    assert caught.value.exit_code == 3
    file.write_text("def f(logp, batch, config):\n    return 'mended after the first failure'\n")
    registry, record = load_loss(file)
    assert registry.load(record)(0, 0, 0) == "mended after the first failure"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("raise SystemExit(0)", "SystemExit: 0 at {file}:1"),
        ("def g(): pass", "has no 'f'; it has: g"),
        ("def f(:", "SyntaxError: invalid syntax at {file}:1"),
        ("x = 1\n\n1 / 0", "ZeroDivisionError: division by zero at {file}:3"),
        ("from .gone import g", "No module named '{folder}/gone.py' at {file}:1"),
        ("from .sub.gone import g", "No module named '{folder}/sub.py' at {file}:1"),
        ("from .other import g", "cannot import name 'g' from '{folder}/other.py'"),
        ("from .failing import g", "KeyError: 3 at {folder}/failing.py:2"),
        ("f = 1", "is a int, not a function"),
    ],
)
def test_bad_files(tmp_path, text, message):
    (tmp_path / "x.py").write_text(text)
    (tmp_path / "other.py").write_text("")
    (tmp_path / "failing.py").write_text("\nraise KeyError(3)\n")
    with pytest.raises(PluginError) as caught:
        load_loss(tmp_path / "x.py")
    assert message.format(folder=tmp_path, file=tmp_path / "x.py") in str(caught.value)
    assert "plugrl_user_" not in str(caught.value)
    assert str(tmp_path / "x.py") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_and_foreign_files(tmp_path):
    with pytest.raises(PluginError, match="there is no file"):
        load_loss(tmp_path / "gone.py")
    (tmp_path / "x.txt").write_text("")
    with pytest.raises(PluginError, match=r"x.txt is not a Python file"):
        load_loss(tmp_path / "x.txt")


def test_a_misspelt_class_of_a_file_has_its_close_name(tmp_path):
    from plugrl.core.plugins.registry import Registry

    (tmp_path / "mine.py").write_text("class MyTrainer: ...\n")
    with pytest.raises(PluginError, match="has no 'MyTrainr'; did you mean MyTrainer?"):
        Registry().load_path("trainer", str(tmp_path / "mine.py"), "MyTrainr")


def test_messages_name_the_file_of_a_component_not_its_module(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "import plugrl\n\n@plugrl.register_loss('fine')\n"
        f"{DEF}\n    return 0\n\ndef g(logp): ...\n\nclass Worker: ...\n"
    )
    registry = Registry()
    with pytest.raises(PluginError) as wrong:
        registry.load_path("loss", file, "g")
    assert str(wrong.value).startswith(f"loss 'g' of {file}: g(logp) has the wrong parameters; ")
    with pytest.raises(PluginError) as wrong:
        registry.load_path("rollout_worker", file, "Worker")
    assert str(wrong.value).startswith(f"rollout_worker 'Worker' of {file} is a class ")
    f = load_file(file).f
    assert registry.register("loss", "another", f).place == f"{file}:f"
    with pytest.raises(PluginError) as taken:
        registry.register("loss", "another", lambda logp, batch, config: 0)
    assert f"already registered by {file}:f; " in str(taken.value)


def test_the_annotations_of_a_file_that_cannot_be_resolved_name_it(tmp_path):
    from plugrl.core.config.check import hints_of

    file = tmp_path / "annotated.py"
    file.write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass Options:\n    x: Gone = 1\n"
    )
    with pytest.raises(PluginError, match="name 'Gone' is not defined") as caught:
        hints_of(load_file(file).Options)
    assert f"the annotations of {file}:Options cannot" in str(caught.value)


def test_the_line_of_a_failing_import_of_an_installed_package(tmp_path, monkeypatch):
    from plugrl.core.plugins.packages.installed import EntryPoint

    site = tmp_path / "site-packages"
    site.mkdir()
    (site / "rl_broken_line.py").write_text("import json\n\njson.loads('{')\n")
    monkeypatch.syspath_prepend(str(site))
    entry = EntryPoint(
        distribution="rl-broken",
        group="plugrl.losses",
        name="f",
        version="1",
        target="rl_broken_line:f",
        location=str(site),
    )
    registry = Registry([entry], PluginSelection())
    with pytest.raises(PluginError, match="JSONDecodeError") as caught:
        registry.get("loss", "f")
    assert str(caught.value).endswith(f" at {site / 'rl_broken_line.py'}:3")


def write_agent(folder, word, dot=""):
    """Files that import one another: plainly, or relatively with ``dot`` a dot."""
    folder.mkdir(parents=True)
    helpers = f"from {dot} import helpers" if dot else "import helpers"
    (folder / "tools.py").write_text(
        f"{helpers}\nfrom {dot}more import deep\nword = helpers.word\n"
    )
    (folder / "helpers.py").write_text(f"word = {word!r}\n")
    (folder / "more").mkdir()
    (folder / "more" / "__init__.py").write_text("")
    up = f"from {dot}{dot} import helpers" if dot else "import helpers"
    (folder / "more" / "deep.py").write_text(
        f"import json\n{up}\n\ndef later():\n    {up} as again\n"
        "    return json.dumps([helpers.word, again.word])\n"
    )
    return folder


def test_a_plain_import_finds_the_file_beside_also_later(tmp_path):
    module = load_file(write_agent(tmp_path / "one", "one") / "tools.py")
    assert module.word == "one"
    assert module.deep.later() == '["one", "one"]'


def test_files_of_two_folders_import_their_own_neighbours_of_one_name(tmp_path):
    folders = [write_agent(tmp_path / name, name, dot=".") for name in ("one", "two")]
    modules = [load_file(folder / "tools.py") for folder in folders]
    assert [module.word for module in modules] == ["one", "two"]
    assert [m.deep.later() for m in modules] == ['["one", "one"]', '["two", "two"]']
    assert not {"helpers", "more", "tools"} & set(sys.modules)


def test_a_plain_import_that_would_find_the_file_of_another_folder_is_refused(tmp_path):
    first, second = (write_agent(tmp_path / name, name) for name in ("one", "two"))
    load_file(first / "tools.py")
    expected = f"line 1 imports helpers, which is {first / 'helpers.py'} and not the file beside it"
    with pytest.raises(ImportError, match=re.escape(f"{expected}; write from . import helpers")):
        load_file(second / "tools.py")
    # The same where only a function imports it.
    (second / "late.py").write_text("def later():\n    import helpers\n")
    with pytest.raises(ImportError, match="line 2 imports helpers"):
        load_file(second / "late.py")
    # What has no such neighbour may use the other's, and relative imports do not mind.
    (tmp_path / "three").mkdir()
    (tmp_path / "three" / "tools.py").write_text("import helpers\n")
    assert load_file(tmp_path / "three" / "tools.py").helpers.word == "one"
    relative = write_agent(tmp_path / "four", "four", dot=".")
    assert load_file(relative / "tools.py").word == "four"


def test_a_module_of_a_folder_is_the_one_that_its_files_import(tmp_path):
    folder = write_agent(tmp_path / "one", "one", dot=".")
    assert load_module(folder, "more.deep") is load_file(folder / "tools.py").deep
    with pytest.raises(ModuleNotFoundError):
        load_module(folder, "more.missing")


def test_a_neighbour_never_stands_for_plugrl_or_the_standard_library(tmp_path):
    (tmp_path / "json.py").write_text("raise RuntimeError('not this one')")
    (tmp_path / "plugrl.py").write_text("raise RuntimeError('nor this one')")
    (tmp_path / "agent.py").write_text("import json\nimport plugrl\nname = plugrl.__version__\n")
    assert load_file(tmp_path / "agent.py").name


def test_a_neighbour_on_the_path_is_one_module(tmp_path, monkeypatch):
    """A file of a project and the project installed from there share their classes."""
    (tmp_path / "shared_by_both.py").write_text("class Shared: pass\n")
    (tmp_path / "agent.py").write_text("from shared_by_both import Shared\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = load_file(tmp_path / "agent.py")
    assert module.Shared is importlib.import_module("shared_by_both").Shared
    monkeypatch.delitem(sys.modules, "shared_by_both")
