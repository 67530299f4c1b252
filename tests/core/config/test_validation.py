# ruff: noqa: E501
from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass

import pytest
import yaml

from plugrl.core.config.schemas.schema import component
from plugrl.core.config.sources.compose import compose
from plugrl.core.config.sources.writer import dump_yaml
from plugrl.core.config.validation import validate
from plugrl.core.errors import (
    ConfigError,
    PluginError,
    PlugrlDeprecationWarning,
)
from plugrl.core.trainer import Trainer

TOY = "trainer: {type: toy}\n"


def test_all_defaults_are_filled_in_schema_order(files, check):
    files(a=TOY)
    validated = check("a.yaml")
    assert validated.tree["trainer"] == {
        "type": "toy",
        "lr": 0.5,
        "steps": 10,
        "mode": "fast",
        "threads": "auto",
        "limit": None,
        "folder": "here",
        "names": [],
        "weights": {},
        "share": 0.5,
        "counts": [1],
        "rates": {},
        "flag": False,
        "title": "t",
        "algorithm": {"loss": {"type": "clipped", "low": 0.2, "high": 0.2}, "epochs": 1},
        "losses": [],
    }
    assert list(validated.tree)[:3] == ["project_name", "experiment_name", "seed"]
    assert validated.tree["data"]["batch_size"] == 32
    assert validated.tree["settings"]["runs_folder"] == "runs"
    assert "notes" not in validated.tree
    assert set(validated.records) == {"trainer", "trainer.algorithm.loss"}
    assert str(validated.origins[("trainer", "type")]) == "a.yaml:1"
    assert str(validated.origins[("data", "batch_size")]) == "default"
    json.dumps(validated.tree, allow_nan=False)


def test_the_written_tree_validates_to_itself(files, check):
    files(a=TOY + "algorithm: {loss: plain, epochs: 3}\nexperiment_name: 1e-3\nseed: 4\n")
    first = check("a.yaml")
    files(b=dump_yaml(first.tree))
    assert check("b.yaml").tree == first.tree
    assert check(yaml.safe_load(dump_yaml(first.tree))).tree == first.tree


@pytest.mark.parametrize(
    ("override", "line"),
    [
        # Unknown keys at each depth.
        ("dat.batch_size=1", "dat (command line): unknown section; did you mean data?"),
        (
            "zzz=1",
            "zzz (command line): unknown section; toy reads: project_name, experiment_name, seed, "
            "plugins, environment, settings, runtime_monitor, resource, sweep, trackers, trainer, "
            "data, notes",
        ),
        (
            "data.batch_siz=1",
            "data.batch_siz (command line): unknown key; did you mean batch_size?",
        ),
        ("trainer.lrr=1", "trainer.lrr (command line): unknown key; did you mean lr?"),
        (
            "trainer.algorithm.epoch=1",
            "trainer.algorithm.epoch (command line): unknown key; did you mean epochs?",
        ),
        (
            "trainer.algorithm.loss.qqq=1",
            "trainer.algorithm.loss.qqq (command line): unknown key; keys: low, high",
        ),
        # Wrong types, kind by kind.
        ("trainer.lr=high", "trainer.lr (command line): must be a number, not 'high'"),
        ("trainer.lr=true", "trainer.lr (command line): must be a number, not true"),
        ("trainer.lr=null", "trainer.lr (command line): must be a number, not null"),
        ("trainer.lr=[1]", "trainer.lr (command line): must be a number, not a list"),
        (
            "trainer.lr=.nan",
            "trainer.lr (command line): must be a number, not nan; use a finite number or null",
        ),
        (
            "trainer.lr=-.inf",
            "trainer.lr (command line): must be a number, not -inf; use a finite number or null",
        ),
        (
            "trainer.lr='nan'",
            "trainer.lr (command line): must be a number, not 'nan'; use a finite number or null",
        ),
        (
            "trainer.lr=1e999",
            "trainer.lr (command line): must be a number, not inf; use a finite number or null",
        ),
        ("trainer.steps=true", "trainer.steps (command line): must be a whole number, not true"),
        (
            "trainer.steps=5.0",
            "trainer.steps (command line): must be a whole number, not 5.0; write 5",
        ),
        ("trainer.steps=5.5", "trainer.steps (command line): must be a whole number, not 5.5"),
        ("trainer.flag=1", "trainer.flag (command line): must be true or false, not 1"),
        ("trainer.flag=maybe", "trainer.flag (command line): must be true or false, not 'maybe'"),
        ("trainer.title=true", "trainer.title (command line): must be text, not true"),
        ("trainer.title={a: 1}", "trainer.title (command line): must be text, not a mapping"),
        ("trainer.folder=5", "trainer.folder (command line): must be a path, not null"),
        (
            "trainer.mode=medium",
            "trainer.mode (command line): must be one of fast, slow, not 'medium'",
        ),
        ("trainer.limit=x", "trainer.limit (command line): must be a whole number, not 'x'"),
        (
            "trainer.threads=[1]",
            "trainer.threads (command line): must be a whole number or text, not a list",
        ),
        ("trainer.names=a", "trainer.names (command line): must be a list, not 'a'"),
        ("trainer.names=[[1]]", "trainer.names[0] (command line): must be text, not a list"),
        ("trainer.weights=[1]", "trainer.weights (command line): must be a mapping, not a list"),
        ("trainer.weights.a=b", "trainer.weights.a (command line): must be a number, not 'b'"),
        ("trainer.algorithm=5", "trainer.algorithm (command line): must be a mapping, not 5"),
        (
            "data=batch_size:5",
            "data (command line): must be a mapping, not 'batch_size:5'; write batch_size: 5, with "
            "a space",
        ),
        ("data=5", "data (command line): must be a mapping, not 5"),
        ("data=[1]", "data (command line): must be a mapping, not a list"),
        ("seed=x", "seed (command line): must be a whole number, not 'x'"),
        ("seed=-1", "seed (command line): must be from 0 to 2^63 - 1, not -1"),
        (
            "seed=9223372036854775808",
            "seed (command line): must be from 0 to 2^63 - 1, not 9223372036854775808",
        ),
        (
            "trainer.steps=9223372036854775808",
            "trainer.steps (command line): must be between -1e12 and 1e12, not 9223372036854775808",
        ),
        (
            "trainer.steps=1_000",
            "trainer.steps (command line): must be a whole number, not '1_000'; write 1000",
        ),
        (
            "trainer.steps=\N{FULLWIDTH DIGIT ONE}\N{FULLWIDTH DIGIT TWO}",
            "trainer.steps (command line): must be a whole number, not '\N{FULLWIDTH DIGIT ONE}"
            "\N{FULLWIDTH DIGIT TWO}'; write 12",
        ),
        (
            "trainer.lr=\N{ARABIC-INDIC DIGIT THREE}",
            "trainer.lr (command line): must be a number, not '\N{ARABIC-INDIC DIGIT THREE}'; write 3",
        ),
        (
            "trainer.steps=4611686018427387904",
            "trainer.steps (command line): must be between -1e12 and 1e12, not 4611686018427387904",
        ),
        ("trainer.lr=1e30", "trainer.lr (command line): must be between -1e12 and 1e12, not 1e+30"),
        (
            "trainer.share=1.5",
            "trainer.share (command line): must be at most 1, not 1.5",
        ),
        ("trainer.share=0", "trainer.share (command line): must be above 0, not 0.0"),
        ("trainer.counts=[1, 0]", "trainer.counts[1] (command line): must be at least 1, not 0"),
        (
            "trainer.rates={a: 0.5, b: 1}",
            "trainer.rates.b (command line): must be below 1, not 1.0",
        ),
        (
            "trainer.losses=[plain, clipped, plain]",
            "trainer.losses[2] (command line): is the same as trainer.losses[0]; leave one of them out",
        ),
        (
            "trainer.losses=[{tipe: plain}]",
            "trainer.losses[0].tipe (command line): unknown key; write type, which names the loss",
        ),
        (
            "environment.variables={A=B: x}",
            "environment (command line): variables has 'A=B', which is no name of an environment"
            " variable; leave out =, spaces and line breaks",
        ),
        ("seed=null", "seed (command line): must be a whole number, not null"),
        ("seed=???", "seed (command line): is still ???; write a value"),
        (
            "notes.x=.inf",
            "notes.x (command line): must be a number, not inf; use a finite number or null",
        ),
        # Components.
        (
            "trainer.algorithm.loss=cliped",
            "trainer.algorithm.loss (command line): unknown loss 'cliped'; did you mean clipped?"
            " installed: clipped, plain",
        ),
        (
            "trainer.algorithm.loss=[clipped]",
            "trainer.algorithm.loss (command line): must be the name of a loss or a mapping, not a list",
        ),
        (
            "trainer.algorithm.loss.type=5",
            "trainer.algorithm.loss (command line): type must be a name; installed loss types: clipped, plain",
        ),
        (
            "trainer.losses=[{low: 1}]",
            "trainer.losses[0] (command line): type is missing; installed loss types: clipped, plain",
        ),
        (
            "trainer.losses=[plain, 5]",
            "trainer.losses[1] (command line): must be the name of a loss or a mapping, not 5",
        ),
        # Rules of schemas.
        ("trainer.steps=-1", "trainer.steps (command line): must not be negative"),
        ("trainer.limit=11", "trainer (a.yaml:1): limit and steps disagree"),
        (
            "trainer.algorithm.loss.low=0.5",
            "trainer.algorithm.loss.low (command line): must not be above high",
        ),
        (
            "data.type=files",
            "data.type (command line): is files, so data_files must name at least one file",
        ),
        ("data.data_files=[no.jsonl]", "data.data_files[0] (command line): no such file: no.jsonl"),
        # Sections of others.
        ("rl.lr=1", "rl (command line): trainer toy does not read this section; read by other"),
        (
            "plugins.require=[plugrl-nope]",
            "plugins.require (command line): plugrl-nope is not installed;"
            ' run: pip install "plugrl-nope"',
        ),
    ],
)
def test_one_fault_is_one_line(files, faults, override, line):
    files(a=TOY)
    assert faults("a.yaml", override) == [line]


def test_all_faults_come_in_one_report(files, faults):
    files(
        a="trainer:\n  type: toy\n  lr: x\n  stps: 3\n  limit: 99\nseed: 1\nseed: 2\n"
        "data: {batch_size: 0}\ndat: {}\nnotes: ${nope}\nexperiment_name: [1]\n"
    )
    report = faults("a.yaml", "oops", "trainer.algorithm.loss.low=9")
    assert sorted(line.partition(": ")[0] for line in report) == [
        "(command line)",
        "dat (a.yaml:9)",
        "data.batch_size (a.yaml:8)",
        "experiment_name (a.yaml:11)",
        "notes (a.yaml:10)",
        "seed (a.yaml:7)",
        "trainer (a.yaml:1)",
        "trainer.algorithm.loss.low (command line)",
        "trainer.lr (a.yaml:3)",
        "trainer.stps (a.yaml:4)",
    ]


def test_the_summary_counts_the_faults(files, check):
    files(a=TOY + "dat: 1\nseed: x\n")
    with pytest.raises(ConfigError, match=r"^a.yaml is wrong: 2 faults\n") as caught:
        check("a.yaml")
    assert caught.value.exit_code == 2


def test_a_single_fault_is_the_message(files, check):
    files(a=TOY + "dat: 1\n")
    with pytest.raises(
        ConfigError, match=r"^dat \(a.yaml:2\): unknown section; did you mean data\?$"
    ):
        check("a.yaml")


def test_a_rule_does_not_judge_a_value_that_is_wrong_already(files, faults):
    files(a="trainer: {type: toy, steps: x, limit: 3}")
    assert faults("a.yaml") == ["trainer.steps (a.yaml:1): must be a whole number, not 'x'"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "seed: 1",
            "trainer (a.yaml): type is missing; installed trainer types: bare, checked, heir, other,"
            " phases, toy",
        ),
        (
            "trainer:",
            "trainer (a.yaml:1): type is missing; installed trainer types: bare, checked, heir,"
            " other, phases, toy",
        ),
        (
            "trainer: tyo",
            "trainer.type (a.yaml:1): unknown trainer 'tyo'; did you mean toy? installed: bare,"
            " checked, heir, other, phases, toy",
        ),
        (
            "trainer: [toy]",
            "trainer (a.yaml:1): must be the name of a trainer or a mapping, not a list",
        ),
    ],
)
def test_without_a_trainer(files, faults, text, line):
    files(a=text)
    assert faults("a.yaml") == [line]


def test_the_rest_is_checked_when_the_trainer_is_unknown(files, faults):
    files(a="trainer: nope\nseed: x\nrl: {}\nzzz: 1\ndata: {batch_siz: 1}\n")
    report = faults("a.yaml")
    assert any(line.startswith("seed (a.yaml:2)") for line in report)
    assert any(line.startswith("data.batch_siz (a.yaml:5)") for line in report)
    assert any(line.startswith("zzz (a.yaml:4): unknown section") for line in report)
    assert not any(line.startswith("rl ") for line in report)


@pytest.mark.parametrize("section", ["data", "settings", "trackers", "plugins", "environment"])
def test_a_null_section_has_its_defaults(files, check, section):
    files(a=f"{TOY}{section}:\n", b=TOY)
    assert check("a.yaml").tree == check("b.yaml").tree


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("trainer.lr=1e-3", "lr", 0.001),
        ("trainer.lr='1e-3'", "lr", 0.001),
        ("trainer.lr=2", "lr", 2.0),
        ("trainer.steps='12'", "steps", 12),
        ("trainer.flag=yes", "flag", True),
        ("trainer.title=12", "title", "12"),
        ("trainer.threads=4", "threads", 4),
        ("trainer.threads=many", "threads", "many"),
        ("trainer.limit=3", "limit", 3),
        ("trainer.names=[a, 1]", "names", ["a", "1"]),
        ("trainer.names=null", "names", []),
        ("trainer.weights={a: 1}", "weights", {"a": 1.0}),
    ],
)
def test_values_that_can_be_read_as_their_type(files, check, override, key, value):
    files(a=TOY)
    read = check("a.yaml", override).tree["trainer"][key]
    assert read == value
    assert type(read) is type(value)


def test_an_environment_variable_fills_a_number(files, check, monkeypatch):
    monkeypatch.setenv("PLUGRL_TEST_STEPS", "7")
    files(a="trainer: {type: toy, steps: '${env.PLUGRL_TEST_STEPS}'}")
    assert check("a.yaml").tree["trainer"]["steps"] == 7


def test_an_unresolved_value_has_one_fault(files, faults):
    files(a="trainer: {type: toy, steps: '${env.NOPE_}', limit: 3}\ndata: ${nope}\n")
    report = faults("a.yaml")
    assert [line.partition(":")[0] for line in report] == ["trainer.steps (a.yaml", "data (a.yaml"]


# What no schema describes.


def test_keys_under_algorithm_are_free_for_a_class_without_its_own_config(files, check):
    files(a="trainer: heir\nalgorithm: {epochs: 2, mine: 1}\nnotes: {a: 1}\n")
    validated = check("a.yaml")
    assert validated.tree["trainer"]["algorithm"]["mine"] == 1
    assert validated.tree["trainer"]["algorithm"]["epochs"] == 2
    assert validated.unchecked == ["trainer.algorithm.mine", "notes"]


def test_declared_keys_under_a_free_algorithm_are_still_checked(files, faults):
    files(a="trainer: heir\nalgorithm: {epochs: x, mine: 1}\n")
    assert faults("a.yaml") == ["algorithm.epochs (a.yaml:2): must be a whole number, not 'x'"]


def test_other_keys_of_such_a_class_are_not_free(files, faults):
    files(a="trainer: {type: heir, mine: 1}")
    assert faults("a.yaml")[0].startswith("trainer.mine (a.yaml:1): unknown key; keys: lr, ")


def test_a_trainer_without_any_config(files, check, faults):
    files(a="trainer: bare\nalgorithm: {x: 1}\n", b="trainer: {type: bare, x: 1}")
    assert check("a.yaml").unchecked == ["trainer.algorithm"]
    assert faults("b.yaml") == ["trainer.x (b.yaml:1): unknown key"]


# Rules over sections.


def test_a_trainer_may_check_the_whole(files, check, faults):
    files(a="trainer: {type: checked, steps: 40}", b="trainer: {type: checked, steps: 4}")
    assert check("a.yaml").tree["trainer"]["steps"] == 40
    assert faults("b.yaml") == ["data.batch_size: is more than trainer.steps"]


def test_phases_are_configurations_of_their_own(files, check, faults):
    phase = "{name: a, trainer: {type: toy, steps: %s}}"
    text = "trainer: {type: phases, phases: [" + phase + "]}\nseed: 4\n"
    files(a=text % 3, b=text % -3)
    (made,) = check("a.yaml").phases
    tree = made[1].tree
    assert (tree["trainer"]["steps"], tree["seed"]) == (3, 4)
    assert tree["data"]["batch_size"] == 32
    line = "trainer.phases[0].trainer.steps (b.yaml:1): must not be negative"
    assert faults("b.yaml") == [line]


def test_a_renamed_key_warns_and_works(files, check, faults):
    files(a="trainer: {type: toy, learning_rate: 2}")
    with pytest.warns(PlugrlDeprecationWarning, match="trainer.learning_rate is now called lr"):
        assert check("a.yaml").tree["trainer"]["lr"] == 2.0
    files(a="trainer: {type: toy, learning_rate: 2, lr: 3}")
    assert faults("a.yaml") == [
        "trainer.learning_rate (a.yaml:1): is the old name of lr; write only lr"
    ]


# Paths and user files.


def test_paths_are_beside_the_file_that_wrote_them_then_here(files, check):
    folder = files(conf__a=TOY + "data: {data_files: [x.yaml, y.yaml]}", conf__x="", y="", x="")
    assert check("conf/a.yaml").tree["data"]["data_files"] == [
        str(folder / "conf/x.yaml"),
        str(folder / "y.yaml"),
    ]
    assert check("conf/a.yaml", "data.data_files=[x.yaml]").tree["data"]["data_files"] == [
        str(folder / "x.yaml")
    ]


MINE = """
from plugrl.core.trainer import Trainer
from .helper import VALUE

class Mine(Trainer):
    value = VALUE
    def train(self): ...
"""


def user_code(folder):
    (folder / "code").mkdir()
    (folder / "code" / "mine.py").write_text(MINE)
    (folder / "code" / "helper.py").write_text("VALUE = 41\n")


def test_a_trainer_from_a_file(files, check):
    folder = files(
        conf__a="trainer:\n  custom_trainer_module_path: ../code/mine.py\n"
        "  custom_trainer_class_name: Mine\n  algorithm: {x: 1}\n  train_service: {backend: b}\n"
    )
    user_code(folder)
    validated = check("conf/a.yaml")
    assert validated.trainer.value == 41
    assert validated.records["trainer"].source == "path"
    path = validated.tree["trainer"]["custom_trainer_module_path"]
    assert path.startswith("/")
    assert path.endswith("code/mine.py")
    assert validated.section("trainer").train_service.backend == "b"
    assert check(validated.tree).tree == validated.tree


@pytest.mark.parametrize(
    ("section", "line"),
    [
        (
            "{custom_trainer_module_path: x.py}",
            "trainer (a.yaml:1): custom_trainer_module_path and"
            " custom_trainer_class_name are needed together, as text",
        ),
        (
            "{custom_trainer_module_path: x.py, custom_trainer_class_name: X}",
            "trainer.custom_trainer_module_path (a.yaml:1): no such file: x.py (looked beside the file that"
            " names it, then in the working directory)",
        ),
    ],
)
def test_a_trainer_from_a_missing_file(files, faults, section, line):
    files(a=f"trainer: {section}")
    assert faults("a.yaml") == [line]


def broken_file(folder):
    (folder / "bad.py").write_text("import not_there_at_all\n")
    return "trainer: {custom_trainer_module_path: bad.py, custom_trainer_class_name: X}\n"


def test_a_plugin_that_fails_alone_is_a_plugin_error(files, check):
    folder = files()
    files(a=broken_file(folder))
    with pytest.raises(PluginError, match="not_there_at_all") as caught:
        check("a.yaml")
    assert caught.value.exit_code == 3
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_what_cannot_be_imported_is_told_at_the_first_place_that_names_it(files, faults):
    """Two names of one file that fails are one fault; another file, and other faults, are more."""
    folder = files()
    (folder / "bad.py").write_text("import not_there_at_all\n")
    (folder / "worse.py").write_text("import neither_is_this\n")
    named = "custom_loss_module_path: {}.py, custom_loss_class_name: {}"
    losses = [named.format(*words) for words in (("bad", "a"), ("worse", "b"), ("bad", "c"))]
    written = "".join(f"    - {{{loss}}}\n" for loss in losses)
    files(a=f"trainer:\n  type: toy\n  steps: x\n  lr: x\n  losses:\n{written}")
    found = faults("a.yaml")
    assert [line.partition(" ")[0] for line in found] == [
        "trainer.lr",
        "trainer.steps",
        "trainer.losses[0].custom_loss_module_path",
        "trainer.losses[1].custom_loss_module_path",
    ]
    assert "not_there_at_all" in found[2]
    assert "neither_is_this" in found[3]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("Judgee", "did you mean Judge?"),
        ("Zzz", "it has: Judge, helper"),
        ("Judge.inner", "did you mean Judge?"),
    ],
)
def test_a_name_that_a_file_lacks_is_a_fault_of_its_key(files, check, name, hint):
    folder = files()
    text = "import os\nclass Judge: pass\ndef helper(): pass\n_hidden = Path = 1\n"
    (folder / "names.py").write_text(text)
    lines = ["custom_trainer_module_path: names.py", f"custom_trainer_class_name: {name}"]
    files(a="trainer:\n  " + "\n  ".join(lines) + "\n")
    with pytest.raises(ConfigError) as caught:
        check("a.yaml")
    assert caught.value.exit_code == 2
    assert list(caught.value.faults) == [
        f"trainer.custom_trainer_class_name (a.yaml:3): {folder / 'names.py'} has no {name!r}; "
        f"{hint}"
    ]


def test_a_file_that_refuses_to_be_imported_with_an_attribute_error_is_a_plugin_error(files, check):
    folder = files()
    files(a=broken_file(folder))
    (folder / "bad.py").write_text("import os\nos.no_such_name\n")
    with pytest.raises(PluginError, match="AttributeError: .*no_such_name") as caught:
        check("a.yaml")
    assert caught.value.exit_code == 3


def test_a_plugin_that_fails_among_other_faults_is_in_the_report(files, faults):
    folder = files()
    files(a=broken_file(folder) + "seed: x\n")
    report = faults("a.yaml")
    assert len(report) == 2
    assert "not_there_at_all" in report[0]
    assert report[1].startswith("seed (a.yaml:2)")


# Broken schemas of plugins.


class NotADataclass(Trainer):
    Config = dict

    def train(self):
        return None


class BadAnnotations(Trainer):
    @dataclass
    class Config:
        x: Missing = 1  # noqa: F821

    def train(self):
        return None


class NestedComponent(Trainer):
    @dataclass
    class Config:
        required: int
        loss: object = component("loss")

    def train(self):
        return None


@pytest.mark.parametrize(
    ("cls", "message"),
    [(NotADataclass, "Config of NotADataclass is not a dataclass"), (BadAnnotations, "'Missing'")],
)
def test_broken_schemas_are_plugin_errors(files, check, registry, cls, message):
    registry.register("trainer", "broken", cls)
    files(a="trainer: broken")
    with pytest.raises(PluginError, match=message):
        check("a.yaml")


def test_required_keys_and_absent_components(files, check, faults, registry):
    registry.register("trainer", "nested", NestedComponent)
    files(a="trainer: nested", b="trainer: {type: nested, required: 1}")
    assert faults("a.yaml") == ["trainer.required (a.yaml:1): is required; write a value"]
    assert check("b.yaml").tree["trainer"] == {"type": "nested", "required": 1, "loss": None}


# Views.


def test_views(files, check):
    files(a=TOY + "settings: {device: cpu}\nseed: 3\n")
    validated = check("a.yaml")
    assert validated.hyper_params.trainer.lr == 0.5
    assert validated.hyper_params.seed == 3
    assert "settings" not in validated.hyper_params
    assert validated.settings.device == "cpu"
    assert validated.section("data").batch_size == 32
    assert validated.section("trainer") == validated.tree["trainer"]
    with pytest.raises(KeyError):
        validated.section("nope")


def test_validation_changes_neither_the_composed_tree_nor_its_origins(files, registry):
    files(a=TOY + "data: {batch_size: 2}\n")
    composed = compose("a.yaml")
    tree, origins = json.dumps(composed.tree), dict(composed.origins)
    validate(composed, registry)
    assert json.dumps(composed.tree) == tree
    assert composed.origins == origins


def test_disabled_plugins_are_blocked_before_components_are_found(files, check, registry):
    files(a=TOY + "plugins: {disable: [some-plugin]}\n")
    check("a.yaml")
    assert registry.selection.refusal("some-plugin", "x") is not None


# Speed and imports.


USUAL = "\n".join(f"  key{i}: {{a: 1, b: [1, 2, 3], c: '${{seed}}'}}" for i in range(20))


def test_a_usual_file_takes_few_calls(files, check):
    """A count that no other work on the machine changes; the time is among the timings."""
    files(a=f"{TOY}seed: 1\ndata: {{batch_size: 4}}\nnotes:\n{USUAL}\n")
    check("a.yaml")
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        check("a.yaml")
    finally:
        sys.setprofile(before)
    # Some 53,000 of functions of Python.
    assert 10_000 < calls < 150_000


@pytest.mark.timing
def test_a_usual_file_takes_under_a_tenth_of_a_second(files, check):
    files(a=f"{TOY}seed: 1\ndata: {{batch_size: 4}}\nnotes:\n{USUAL}\n")
    check("a.yaml")
    times = []
    for _ in range(5):
        start = time.process_time()
        check("a.yaml")
        times.append(time.process_time() - start)
    assert min(times) < 0.1


def test_no_torch_is_imported():
    code = (
        "import sys, plugrl.core.config.validation, plugrl.core.config.plan, "
        "plugrl.core.config.schemas.describe, plugrl.core.config.phases\n"
        "print([m for m in ('torch', 'omegaconf', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_report_spells_out_a_hundred_faults(files, faults):
    keys = ", ".join(f"k{i}: {i}" for i in range(150))
    files(a=TOY)
    lines = faults("a.yaml", f"trainer.algorithm={{{keys}}}")
    assert len(lines) == 101
    assert lines[-1] == "... and 50 more"
