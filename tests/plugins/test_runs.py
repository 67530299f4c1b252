"""Plugins in real runs: named ones must work, merely installed ones only warn."""

from __future__ import annotations

import json

import pytest


def write_config(folder, name):
    (folder / "run.yaml").write_text(f"trainer: {{type: {name}}}\n")


def test_an_installed_trainer_runs_among_broken_plugins(process, tmp_path):
    write_config(tmp_path, "good")
    done = process(
        "-m", "plugrl", "train", "run.yaml", only="good,misspelt,import_error", forked=True
    )
    assert done.returncode == 0, done.stderr
    assert "good saw step 1\n" in done.stdout
    warnings = [line for line in done.stderr.splitlines() if "was not loaded" in line]
    assert [line.split()[2] for line in sorted(warnings)] == ["'import_error'", "'misspelt'"]
    [lock] = tmp_path.glob("runs/*/*/plugins.lock.json")
    used = json.loads(lock.read_text())
    assert "plugrl-test-good" in json.dumps(used)


@pytest.mark.parametrize(
    ("name", "code"),
    [("import_error", 3), ("wrong_base", 3), ("nothing", 3), ("twin", 2), ("goood", 2)],
)
@pytest.mark.parametrize("command", ["train", "validate"])
def test_a_bad_trainer_in_the_configuration_ends_the_command(plugrl, tmp_path, command, name, code):
    write_config(tmp_path, name)
    done = plugrl(command, "run.yaml", only="good,import_error,wrong_base,nothing,twin")
    assert done.returncode == code, done.stderr
    assert any(line.startswith("error: ") for line in done.stderr.splitlines())
    assert name in done.stderr
    assert not (tmp_path / "runs").exists()


def test_strict_and_required_plugins(plugrl, tmp_path):
    write_config(tmp_path, "good")
    done = plugrl("train", "run.yaml", "plugins.strict=true", only="good,misspelt")
    assert done.returncode == 3, done.stderr
    assert "plugin 'misspelt' of plugrl-test-misspelt 1.0" in done.stderr
    done = plugrl("train", "run.yaml", 'plugins.require=["plugrl-test-good>=2"]', only="good")
    assert done.returncode in (2, 3), done.stderr
    assert "plugrl-test-good 1.0 is installed" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_disabled_in_the_configuration(plugrl, tmp_path):
    write_config(tmp_path, "good")
    done = plugrl("train", "run.yaml", "plugins.disable=[plugrl_test_good]", only="good")
    assert done.returncode == 2
    assert "which is disabled" in done.stderr
