"""What a wrong call from Python is told."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

import plugrl
from plugrl.cli import main
from plugrl.core.config.sources.compose import compose
from plugrl.core.errors import ConfigError, UsageError

TWO_FAULTS = "seed: x\ntrainer: toy\ndata: {batch_siz: 1}\n"
SEED = "seed (a.yaml:1): must be a whole number, not 'x'"
BATCH = "data.batch_siz (a.yaml:3): unknown key; did you mean batch_size?"


def test_the_text_of_an_error_has_every_fault(files, check):
    files(a=TWO_FAULTS)
    with pytest.raises(ConfigError) as caught:
        check("a.yaml")
    assert str(caught.value) == f"a.yaml is wrong: 2 faults\n  {SEED}\n  {BATCH}"
    assert caught.value.faults == (SEED, BATCH)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.faults) == (str(caught.value), caught.value.faults)


def test_one_fault_stays_one_line(files, check):
    files(a="trainer: toy\nseed: x\n")
    with pytest.raises(ConfigError) as caught:
        check("a.yaml")
    assert str(caught.value) == "seed (a.yaml:2): must be a whole number, not 'x'"


def test_train_tells_every_fault(files):
    files(a="seed: x\ntrainer: {type: self_hosted_grpo, total_train_steps: y}\n")
    with pytest.raises(ConfigError, match="'x'") as caught:
        plugrl.train("a.yaml")
    assert "total_train_steps (a.yaml:2): must be a whole number, not 'y'" in str(caught.value)


def test_the_command_prints_each_fault_once(files, capsys):
    files(a="seed: x\nproject_name: [1]\ntrainer: self_hosted_cross_entropy\n")
    with pytest.raises(SystemExit):
        main(["validate", "a.yaml"])
    error = capsys.readouterr().err
    assert error.count("seed (a.yaml:1)") == error.count("project_name (a.yaml:2)") == 1
    assert error.startswith("error: a.yaml is wrong: ")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"overrides": "seed=1"}, "overrides must be a list such as [\"seed=1\"], not 'seed=1'"),
        ({"overrides": {"seed": 1}}, 'overrides must be a list such as ["seed=1"], not a dict'),
        (
            {"overrides": [("seed", 1)]},
            "overrides must be a list such as [\"seed=1\"]; it holds ('seed', 1)",
        ),
        ({"overrides": None}, 'overrides must be a list such as ["seed=1"], not a NoneType'),
        (
            {"config_path": "configs"},
            "config_path must be a list such as [\"configs\"], not 'configs'",
        ),
        (
            {"config_path": Path("c")},
            f'config_path must be a list such as ["configs"], not {Path("c")!r}',
        ),
        ({"config_path": [3]}, 'config_path must be a list such as ["configs"]; it holds 3'),
    ],
)
def test_lists_of_texts_are_not_read_as_letters(files, arguments, line):
    files(a="trainer: toy\n")
    for call in (compose, plugrl.train):
        with pytest.raises(ConfigError) as caught:
            call("a.yaml", **arguments)
        assert str(caught.value) == line


@pytest.mark.parametrize("source", [["a.yaml"], None, 3])
def test_a_configuration_is_a_file_or_a_mapping(source):
    with pytest.raises(ConfigError, match="must be a file, the name of a recipe or a mapping"):
        plugrl.train(source)


def test_one_name_is_not_read_as_letters_when_plugins_are_blocked(registry):
    with pytest.raises(UsageError, match=r"names must be a list such as \['rl-x'\]"):
        registry.disable("rl-x")


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("seed=\udcff", r"not Unicode at column 1: '\udcff'; write the text in UTF-8"),
        ("experiment_name='a\udcff'", r"not Unicode at column 3: '\udcff'"),
        ("\udcff=1", "unknown section"),
    ],
)
def test_bytes_of_a_command_line_that_are_no_text_are_refused(files, check, word, said):
    """They come as halves of surrogate pairs, which neither YAML nor a run folder can hold."""
    files(a="trainer: toy\n")
    with pytest.raises(ConfigError) as caught:
        check("a.yaml", word)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_mapping_with_what_is_no_text_is_refused(check):
    with pytest.raises(ConfigError) as caught:
        check({"trainer": "toy", "experiment_name": "\udcff"})
    said = r"experiment_name (Python): '\udcff' is no Unicode; give text in UTF-8"
    assert str(caught.value) == said


@pytest.mark.parametrize("section", ["environment", "settings.cluster"])
@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ('{"A B": x}', "is no name of an environment variable"),
        ('{"A=B": x}', "is no name of an environment variable"),
        ('{A: "x\\0y"}', "variables.A has a null character"),
    ],
)
def test_variables_that_no_process_can_have_are_refused(files, check, section, variables, said):
    files(a="trainer: toy\n")
    with pytest.raises(ConfigError) as caught:
        check("a.yaml", f"{section}.variables={variables}")
    assert said in str(caught.value)
