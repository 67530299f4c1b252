"""What travels, and the program that unpacks it at the other end, run as there."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys

import pytest
from launched import FILES, write_project

from plugrl.__about__ import __version__
from plugrl.core.errors import ConfigError
from plugrl.core.launch.launcher import LaunchJob
from plugrl.core.launch.payload import payload

#: Stands in for ``plugrl``: prints where it is, with what.
STAND_IN = """\
import json, os, sys
print(json.dumps([sys.argv[1:], os.getcwd(), os.environ.get("PLAIN")]))
"""


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    write_project(folder)
    return folder


def job_of(project, **changes):
    given = {
        "name": "j",
        "words": ("train", "mini.yaml", "a=b\n\"c'$(d)"),
        "folder": project,
        "files": tuple(sorted(project / name for name in FILES)),
        "packages": {"plugrl": __version__},
    }
    return LaunchJob(**{**given, **changes})


def arrive(sent, folder, **variables):
    """Run what was sent, with a stand-in for plugrl, in an environment that has nothing else."""
    folder.mkdir()
    for name, content in sent.items():
        (folder / name).write_bytes(content)
    there = folder / "site" / "plugrl"
    there.mkdir(parents=True)
    (there / "__init__.py").write_text("")
    (there / "__main__.py").write_text(STAND_IN)
    metadata = folder / "site" / f"plugrl-{__version__}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: plugrl\nVersion: {variables.pop('version', __version__)}\n"
    )
    # A relative path: the program changes its folder, but is found by what it was given.
    return subprocess.run(
        [sys.executable, "-S", "launch.py"],
        cwd=folder,
        env={"PYTHONPATH": str(folder / "site"), **variables},
        capture_output=True,
        text=True,
        encoding="utf-8",
    )


def test_the_files_arrive_once_beside_the_runs(project, tmp_path):
    runs = tmp_path / "runs"
    job = job_of(project, variables={"PLAIN": "a 'b' $c"})
    sent = payload(job, str(runs), 10**6)
    assert payload(job, str(runs), 10**6) == sent
    ran = arrive(sent, tmp_path / "there")
    assert ran.returncode == 0, ran.stderr
    words, folder, plain = json.loads(ran.stdout)
    assert words == [*job.words, f'settings.runs_folder="{runs}"']
    assert plain == "a 'b' $c"
    assert os.path.dirname(folder) == str(runs / ".launched")
    for name in FILES:
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            assert file.read() == (project / name).read_text()
    os.remove(os.path.join(folder, "base.yaml"))
    again = arrive(sent, tmp_path / "again")
    # A resume finds the folder that the run had.
    assert json.loads(again.stdout)[1] == folder
    assert not os.path.exists(os.path.join(folder, "base.yaml"))


def test_files_above_the_working_directory_stay_above_it(project, tmp_path):
    below = project / "data"
    job = job_of(project, folder=below)
    ran = arrive(payload(job, str(tmp_path / "runs"), 10**6), tmp_path / "there")
    folder = json.loads(ran.stdout)[1]
    assert os.path.isfile(os.path.join(folder, "..", "code", "judge.py"))
    assert os.path.isfile(os.path.join(folder, "train.jsonl"))


def test_changed_files_arrive_beside_the_earlier_ones(project, tmp_path):
    first = json.loads(payload(job_of(project), "/r", 10**6)["launch.json"])["digest"]
    (project / "base.yaml").write_text("a: 1\n")
    assert json.loads(payload(job_of(project), "/r", 10**6)["launch.json"])["digest"] != first


@pytest.mark.parametrize(
    ("changes", "version", "said"),
    [
        ({"packages": {"plugrl": "0.0.1"}}, __version__, "launched with plugrl 0.0.1"),
        ({}, "0.0.1", f"has plugrl 0.0.1 for {sys.executable}"),
        ({"packages": {"plugrl": __version__, "plugrl-x": "2"}}, __version__, "has no plugrl-x"),
        ({"secrets": ("MY_API_KEY",)}, __version__, "no value for MY_API_KEY"),
    ],
)
def test_another_environment_is_refused_in_one_line(project, tmp_path, changes, version, said):
    sent = payload(job_of(project, **changes), str(tmp_path / "runs"), 10**6)
    ran = arrive(sent, tmp_path / "there", version=version)
    assert ran.returncode == 2
    assert said in ran.stderr
    assert ran.stderr.startswith(f"error: {platform.node()} has ")
    assert ran.stderr.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_another_python_is_refused(project, tmp_path):
    sent = payload(job_of(project), str(tmp_path / "runs"), 10**6)
    about = json.loads(sent["launch.json"])
    sent["launch.json"] = json.dumps({**about, "python": "3.99"}).encode()
    ran = arrive(sent, tmp_path / "there")
    assert ran.returncode == 2
    assert f"has Python {platform.python_version().rpartition('.')[0]} (" in ran.stderr
    assert "with Python 3.99" in ran.stderr


def test_a_folder_that_cannot_be_made_is_named(project, tmp_path):
    (tmp_path / "file").write_text("")
    sent = payload(job_of(project), str(tmp_path / "file" / "runs"), 10**6)
    ran = arrive(sent, tmp_path / "there")
    assert ran.returncode == 2
    assert f"{tmp_path}/file/runs: " in ran.stderr
    assert "settings.runs_folder" in ran.stderr


def test_too_large_files_name_the_largest(project):
    (project / "data" / "train.jsonl").write_bytes(os.urandom(20_000))
    with pytest.raises(ConfigError, match=r"larger than the 0\.01 MB.*data/train\.jsonl"):
        payload(job_of(project), "/r", 10_000)
    # Before they are read.
    with (project / "data" / "train.jsonl").open("wb") as file:
        file.truncate(10**13)
    with pytest.raises(ConfigError, match="absolute path"):
        payload(job_of(project), "/r", 10**6)


def test_a_file_that_is_gone_is_named(project):
    (project / "base.yaml").unlink()
    with pytest.raises(ConfigError, match=r"base\.yaml: cannot be read"):
        payload(job_of(project), "/r", 10**6)
