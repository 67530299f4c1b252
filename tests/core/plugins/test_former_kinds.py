"""The kind ``dialogue_environment`` by the name that it had in 0.1, ``environment``."""

from __future__ import annotations

import json

import forking
import gymnasium
import pettingzoo
import pytest
import torchrl.envs

import plugrl
from plugrl.commands._probe import examine
from plugrl.commands.ls import command as ls
from plugrl.commands.plugins import _rows
from plugrl.core.config.sources.compose import compose
from plugrl.core.errors import PluginError, PlugrlDeprecationWarning, UnknownComponentError
from plugrl.core.plugins.kinds import Record
from plugrl.core.plugins.packages import installed
from plugrl.core.plugins.packages.installed import EntryPoint, PluginSelection, group_problem
from plugrl.core.plugins.registry import Registry, default_registry
from plugrl.core.run.records.environment import plugin_changes

OLD, NEW = "plugrl.environments", "plugrl.dialogue_environments"


class Talks(plugrl.DialogueEnvironment):
    """Nothing differs."""


class Swings(gymnasium.Env):
    """Learned by small networks."""


class Plays(pettingzoo.ParallelEnv):
    """The same, with several agents."""


class Steps(torchrl.envs.EnvBase):
    """The same, of TorchRL."""


CONTROL = [
    (Swings, r"scenario: \{type: gymnasium, id: \.\.\.\}"),
    (Plays, r"scenario: \{type: pettingzoo, environment: \.\.\.\}"),
    (Steps, r"scenario: \{type: torchrl, environment: \.\.\.\}"),
]


def entry(group, target="Talks"):
    return EntryPoint(
        distribution="rl-x",
        group=group,
        name="talks",
        target=f"{__name__}:{target}",
        version="1.0",
        location="nowhere",
    )


@pytest.fixture
def registry():
    kept = default_registry().snapshot()
    yield default_registry()
    default_registry().restore(kept)


def test_the_former_decorator_registers_and_says_the_new_name(registry):
    with pytest.warns(PlugrlDeprecationWarning, match="write @plugrl.register_dialogue_env"):
        plugrl.register_environment("talks")(Talks)
    assert registry.get("dialogue_environment", "talks") is Talks


@pytest.mark.parametrize(("cls", "scenario"), CONTROL)
def test_environments_of_small_networks_are_sent_to_their_scenario(registry, cls, scenario):
    with pytest.warns(PlugrlDeprecationWarning), pytest.raises(PluginError, match=scenario):
        plugrl.register_environment("swings")(cls)
    with pytest.raises(UnknownComponentError):
        registry.resolve("dialogue_environment", "swings")
    plugrl.register_dialogue_environment("swings")(cls)
    with pytest.raises(PluginError, match=scenario):
        registry.get("dialogue_environment", "swings")
    packages = Registry([entry(NEW, cls.__name__)], PluginSelection())
    with pytest.raises(PluginError, match=scenario):
        packages.get("dialogue_environment", "talks")


def test_packages_may_declare_the_former_group():
    packages = Registry([entry(OLD)], PluginSelection())
    with pytest.warns(PlugrlDeprecationWarning, match=r"\[plugrl.environments\] is now called"):
        assert packages.get("dialogue_environment", "talks") is Talks
    assert group_problem(OLD) is None
    assert examine(entry(OLD)).warnings == [
        "the group [plugrl.environments] is now called [plugrl.dialogue_environments]; rename it "
        "in setup.cfg or pyproject.toml"
    ]
    assert examine(entry(NEW)).status == "ok"


@pytest.mark.parametrize("groups", [(OLD, NEW), (NEW, OLD)])
def test_packages_may_declare_both_groups(groups):
    """Nobody is warned: the package is ready, and serves earlier versions too."""
    packages = Registry([entry(group) for group in groups], PluginSelection())
    assert [record.name for record in packages.records("dialogue_environment")] == ["talks"]
    assert packages.get("dialogue_environment", "talks") is Talks


@pytest.mark.parametrize(
    ("groups", "shown"), [((OLD, NEW), [NEW]), ((OLD,), [OLD]), ((NEW,), [NEW])]
)
def test_listings_show_a_component_of_both_groups_once(groups, shown, monkeypatch):
    monkeypatch.setattr(installed, "scan", lambda: [entry(group) for group in groups])
    assert [row.entry.group for row in _rows()] == shown


def test_misspelt_groups_are_told_the_new_name():
    assert "write [plugrl.dialogue_environments]" in group_problem("plugrl.dialogue_environment")


def test_code_may_name_the_former_kind():
    packages = Registry([entry(NEW)], PluginSelection())
    for ask in (
        lambda: packages.resolve("environment", "talks"),
        lambda: packages.records("environment")[0],
        lambda: packages.register("environment", "more", Talks),
    ):
        with pytest.warns(PlugrlDeprecationWarning, match="'environment' is now called 'dialogue"):
            assert ask().kind == "dialogue_environment"


@pytest.mark.parametrize("kind", ["environment", "environments"])
def test_listings_take_the_former_kind(kind, capsys):
    with pytest.warns(PlugrlDeprecationWarning):
        ls(kind, as_json=True)
    rows = json.loads(capsys.readouterr().out)
    assert {row["kind"] for row in rows} == {"dialogue_environment"}


def test_records_of_earlier_versions_are_read():
    record = Record(kind="environment", name="dialogue", target="a:B").to_json()
    assert Record.from_json(record).kind == "dialogue_environment"
    before = {"kind": "environment", "name": "talks", "used": True, "target": "a:B"}
    after = {**before, "kind": "dialogue_environment", "target": "a:C"}
    own = {"distribution": None, "version": None}
    assert plugin_changes([before | own], [after | own]) == [
        "dialogue_environment talks was a:B and is now a:C"
    ]


def test_a_file_may_be_given_by_the_former_keys(tmp_path):
    file = tmp_path / "run.yaml"
    keys = "custom_environment_module_path: own.py, custom_environment_class_name: Talks"
    file.write_text(f"red_team: {{{keys}}}", "utf-8")
    with pytest.warns(PlugrlDeprecationWarning, match="now called red_team.custom_dialogue_env"):
        composed = compose(str(file))
    assert composed.tree["red_team"] == {
        "custom_dialogue_environment_module_path": "own.py",
        "custom_dialogue_environment_class_name": "Talks",
    }


def test_the_command_line_prints_what_goes_away(tmp_path):
    """Python itself shows such warnings to the authors of programs alone."""
    done = forking.run(["-m", "plugrl", "ls", "environments"], cwd=tmp_path)
    line = "warning: the kind 'environments' is now called 'dialogue_environment'; "
    assert (done.returncode, done.stderr) == (0, f"{line}write 'dialogue_environment'\n")
