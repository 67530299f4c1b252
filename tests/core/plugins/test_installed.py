"""Reading metadata, and which plugins may be used."""

from __future__ import annotations

import importlib.metadata
import os
import zipfile

import pytest

from plugrl.core.errors import PluginError
from plugrl.core.plugins.packages import installed
from plugrl.core.plugins.packages.installed import (
    EntryPoint,
    PluginSelection,
    normalize,
    owner_of,
    scan,
)


@pytest.fixture
def only_path(monkeypatch, tmp_path):
    """Makes ``tmp_path`` all of ``sys.path``, as far as the scan can see."""
    monkeypatch.setattr(installed.sys, "path", [str(tmp_path)])
    installed.clear_cache()
    yield tmp_path
    installed.clear_cache()


def write(folder, directory, entry_points, header="METADATA", text=None):
    (folder / directory).mkdir(parents=True)
    (folder / directory / "entry_points.txt").write_text(entry_points)
    if text:
        (folder / directory / header).write_text(text)


def test_scan_reads_what_importlib_metadata_reads():
    mine = {(e.distribution, e.version, e.group, e.name, e.target) for e in scan()}
    theirs = {
        (d.metadata["Name"], d.version, e.group, e.name, e.value)
        for d in importlib.metadata.distributions()
        for e in d.entry_points
        if e.group == "plugrl" or e.group.startswith("plugrl.")
    }
    assert mine == theirs
    assert len(mine) >= 14


def test_scan_of_a_hand_written_file(only_path):
    write(
        only_path,
        "rl_x-1.2.dist-info",
        "# a comment\n[console_scripts]\nx = a:b\n\n[plugrl.trainers]\n"
        "one = pkg.mod:One [extra]\ntwo=pkg.mod : Two\n[plugrl_other]\nno = a:b\n"
        "[ plugrl ]\nhooks = pkg.hooks\n",
        text="Metadata-Version: 2.1\nName: RL.x\nVersion: 1.2\n\nName: not-this\n",
    )
    found = [(e.distribution, e.version, e.group, e.name, e.target) for e in scan()]
    assert found == [
        ("RL.x", "1.2", "plugrl", "hooks", "pkg.hooks"),
        ("RL.x", "1.2", "plugrl.trainers", "one", "pkg.mod:One"),
        ("RL.x", "1.2", "plugrl.trainers", "two", "pkg.mod:Two"),
    ]


def test_damaged_metadata_harms_nobody(only_path):
    write(only_path, "~l_x-1.0.dist-info", "[plugrl]\nleft_over = a\n")
    (only_path / "broken-1.0.dist-info").mkdir()
    (only_path / "broken-1.0.dist-info" / "entry_points.txt").write_bytes(b"\xff[plugrl]\nx\n")
    write(only_path, "nameless-3.0.dist-info", "[plugrl]\nkept = a\n")
    write(only_path, "develop.egg-info", "[plugrl]\negg = b\n", "PKG-INFO", "Name: develop\n")
    found = [(e.distribution, e.version, e.name) for e in scan()]
    assert found == [("develop", "unknown", "egg"), ("nameless", "3.0", "kept")]


def test_the_first_of_two_copies_of_a_package_counts(only_path, monkeypatch):
    write(only_path / "a", "rl_x-2.0.dist-info", "[plugrl]\nnew = a\n")
    write(only_path / "b", "rl.x-1.0.dist-info", "[plugrl]\nold = a\n")
    monkeypatch.setattr(
        installed.sys, "path", [str(only_path / "a"), str(only_path / "b"), str(only_path / "no")]
    )
    assert [(e.name, e.version) for e in scan()] == [("new", "2.0")]


def test_packages_in_archives(only_path, monkeypatch):
    archive = only_path / "packages.zip"
    with zipfile.ZipFile(archive, "w") as stream:
        stream.writestr("rl_z-1.0.dist-info/METADATA", "Name: rl-z\nVersion: 1.0\n")
        stream.writestr("rl_z-1.0.dist-info/entry_points.txt", "[plugrl]\nzipped = a\n")
    monkeypatch.setattr(installed.sys, "path", [str(archive)])
    assert [(e.distribution, e.name) for e in scan()] == [("rl-z", "zipped")]


def test_a_scan_that_failed_is_not_kept(only_path, monkeypatch):
    write(only_path, "rl_x-1.0.dist-info", "[plugrl]\nx = a\n")
    with monkeypatch.context() as patch:
        patch.setattr(installed.os, "listdir", lambda path: (_ for _ in ()).throw(OSError(24, "")))
        with pytest.raises(PluginError, match="cannot be listed"):
            scan()
    assert [e.name for e in scan()] == ["x"]


def test_a_scan_follows_sys_path(only_path, monkeypatch):
    assert scan() == ()
    write(only_path / "more", "rl_x-1.0.dist-info", "[plugrl]\nx = a\n")
    monkeypatch.setattr(installed.sys, "path", [str(only_path), str(only_path / "more")])
    assert [e.name for e in scan()] == ["x"]


def test_owner_of_a_module():
    def entry(distribution, target):
        return EntryPoint(
            distribution=distribution,
            group="plugrl",
            name="n",
            target=target,
            version="1",
            location="",
        )

    entries = [entry("a", "org.a.x:X"), entry("b", "org.b"), entry("c", "single:C")]
    names = ["org.a.y", "org.a.x.deep", "org.b", "single.other", "org.new", "unrelated"]
    owners = [owner_of(name, entries) for name in names]
    assert [owner.distribution if owner else None for owner in owners] == [
        "a", "a", "b", "c", None, None,
    ]  # fmt: skip


def test_selection(monkeypatch):
    assert normalize("RL__x.-Y") == "rl-x-y"
    for name in ("PLUGRL_PLUGINS", "PLUGRL_PLUGINS_BLOCKED"):
        monkeypatch.delenv(name, raising=False)
    free = PluginSelection.from_environment()
    assert free.refusal("rl-x", "grpo") is None
    assert free.without(["RL_X"]).refusal("rl-x", "grpo") is not None
    assert free.without(["grpo"]).refusal("rl-x", "grpo") is not None
    assert free.without(["plugrl", "grpo"]).refusal("plugrl", "grpo") is None
    monkeypatch.setenv("PLUGRL_PLUGINS", " rl.x , other")
    some = PluginSelection.from_environment()
    assert some.refusal("rl-x", "grpo") is None
    assert some.refusal("rl-y", "other") is None
    assert some.refusal("rl-y", "grpo") == "not among PLUGRL_PLUGINS"
    assert some.refusal(None, "user_code") is None
    monkeypatch.setenv("PLUGRL_PLUGINS", "")
    assert PluginSelection.from_environment().refusal("rl-x", "grpo") is not None


def test_selection_reaches_the_environment(monkeypatch):
    for name in ("PLUGRL_PLUGINS", "PLUGRL_PLUGINS_BLOCKED"):
        monkeypatch.setenv(name, "overwritten")
    for selection in (
        PluginSelection(enabled=False, only=frozenset(), blocked=frozenset({"b"})),
        PluginSelection(only=frozenset({"rl-x", "y"}), blocked=frozenset({"a", "b"})),
    ):
        selection.export()
        assert PluginSelection.from_environment() == selection
    assert os.environ["PLUGRL_PLUGINS"] == "rl-x,y"


@pytest.mark.parametrize(
    ("group", "meant"),
    [
        ("plugrl-trainers", "plugrl.trainers"),
        ("plugrl_loss", "plugrl.losses"),
        ("Plugrl.trainers", "plugrl.trainers"),
        ("PLUGRL.recipe", "plugrl.recipes"),
        ("plugrl.trackrs", "plugrl.trackers"),
        ("Plugrl", "plugrl"),
    ],
)
def test_misspelt_groups_are_seen(only_path, group, meant):
    write(only_path, "x-1.dist-info", f"[{group}]\none = a:b\n")
    (entry,) = scan()
    assert (entry.group, entry.name) == (group, "one")
    assert installed.group_problem(group).endswith(f"no group [{group}]; write [{meant}]")


@pytest.mark.parametrize(
    "group", ["plugrl_x.parts", "plugrl-tasks.trainers", "plugrlx", "plugrl_x"]
)
def test_groups_of_other_packages_are_left_alone(only_path, group):
    write(only_path, "x-1.dist-info", f"[{group}]\none = a:b\n")
    assert scan() == ()
