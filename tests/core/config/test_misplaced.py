"""Keys and names in the wrong place, and files that are no configuration, with the remedy."""

# ruff: noqa: E501
from __future__ import annotations

from typing import Any, ClassVar

import pytest

from plugrl.core.config.misplaced import say_who_was_meant, with_places
from plugrl.core.config.schemas.schema import component
from plugrl.core.config.schemas.sections import DataConfig, ModelConfig
from plugrl.core.config.sources.compose import compose
from plugrl.core.config.sources.origins import Fault
from plugrl.core.errors import ConfigError
from plugrl.core.run.tracking.tracker import Tracker
from plugrl.core.text.inference.services import InferenceService
from plugrl.core.trainer import Trainer

from .conftest import ToyConfig

SOURCE = "source: {config: {model_type: qwen3}}"


class ModelTrainer(Trainer):
    Config = ToyConfig
    sections: ClassVar[dict[str, Any]] = {
        "models": dict[str, ModelConfig],
        "data": DataConfig,
        "loss": component("loss"),
    }

    def train(self):
        return None


class Board(Tracker):
    pass


Embedded = type(
    "Embedded",
    (InferenceService,),
    {name: lambda self, *_: None for name in InferenceService.__abstractmethods__}
    | {"__module__": __name__},
)


@pytest.fixture
def registry(registry):
    registry.register("trainer", "models", ModelTrainer)
    registry.register("inference_service", "transformers", Embedded)
    registry.register("tracker", "board", Board)
    return registry


BASE = f"trainer: models\nmodels: {{policy: {{{SOURCE}}}}}\nloss: clipped\n"


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("steps=3", "steps (command line): unknown section; did you mean trainer.steps?"),
        (
            "epochs=3",
            "epochs (command line): unknown section; did you mean trainer.algorithm.epochs?",
        ),
        (
            "dtype=float16",
            "dtype (command line): unknown section; did you mean models.policy.source.dtype?",
        ),
        ("data.steps=3", "data.steps (command line): unknown key; did you mean trainer.steps?"),
        (
            "trainer.batch_size=3",
            "trainer.batch_size (command line): unknown key; did you mean data.batch_size?",
        ),
        (
            "data.high=1",
            "data.high (command line): unknown key; did you mean loss.high or trainer.algorithm.loss.high?",
        ),
        (
            "models.policy.source.keep_checkpoints=1",
            "models.policy.source.keep_checkpoints (command line): unknown key; did you mean settings.keep_checkpoints?",
        ),
        (
            "save_freq=1",
            "save_freq (command line): unknown section; did you mean settings.checkpoint_every?",
        ),
        # A very close key of the same section is what was meant.
        (
            "data.batch_siz=1",
            "data.batch_siz (command line): unknown key; did you mean batch_size?",
        ),
    ],
)
def test_a_key_in_the_wrong_section(files, faults, word, line):
    files(a=BASE)
    found = sorted(faults("a.yaml", word))
    assert found == [line]


def test_a_key_in_the_wrong_section_of_a_file(files, faults):
    files(a=BASE + "steps: 3\n")
    assert faults("a.yaml") == ["steps (a.yaml:4): unknown section; did you mean trainer.steps?"]


def test_keys_that_no_schema_describes_are_no_place(files, faults):
    files(a="trainer: {type: bare, algorithm: {gain: 1}}\ngain: 2\n")
    assert faults("a.yaml")[0].startswith("gain (a.yaml:2): unknown section; bare reads: ")


@pytest.mark.parametrize(
    ("phase", "line"),
    [
        (
            "{name: a, trainer: toy, steps: 3}",
            "trainer.phases[0].steps (a.yaml:4): unknown section; did you mean trainer.phases[0].trainer.steps?",
        ),
        (
            "{name: a, trainer: toy, data: {steps: 3}}",
            "trainer.phases[0].data.steps (a.yaml:4): unknown key; did you mean trainer.phases[0].trainer.steps?",
        ),
    ],
)
def test_phases(files, faults, phase, line):
    files(a=f"trainer:\n  type: phases\n  phases:\n    - {phase}\n")
    assert faults("a.yaml") == [line]


def test_a_phase_is_told_its_own_keys(files, faults):
    files(
        a="trainer:\n  type: phases\n  phases:\n    - {name: a, trainer: toy}\n"
        "    - {name: b, trainer: toy, steps: 3}\n"
    )
    assert faults("a.yaml") == [
        "trainer.phases[1].steps (a.yaml:5): unknown section; did you mean trainer.phases[1].trainer.steps?"
    ]


def test_a_root_key_that_a_phase_reads(files, faults):
    files(a="steps: 3\ntrainer: {type: phases, phases: [{name: a, trainer: toy}]}\n")
    assert faults("a.yaml") == [
        "steps (a.yaml:1): unknown section; did you mean trainer.phases[0].trainer.steps?"
    ]


# Names of models.

NEW = "no file names it; to add it, write it in a file; did you mean models.policy?"


@pytest.mark.parametrize(
    "word", ["source=x", "source.path=x", "inference.type=transformers", "train="]
)
def test_an_override_of_a_model_that_nobody_wrote(files, faults, word):
    files(a=BASE)
    assert faults("a.yaml", f"models.polcy.{word}") == [f"models.polcy (command line): {NEW}"]


def test_a_model_of_another_name_can_be_added(files, check):
    files(a=BASE)
    words = [f"models.{name}.source.config.model_type=qwen3" for name in ("judge", "policy_2")]
    assert list(check("a.yaml", *words).tree["models"]) == ["policy", "judge", "policy_2"]
    files(a=BASE.replace(f"{{{SOURCE}}}}}", f"{{{SOURCE}}}, polcy: {{{SOURCE}}}}}"))
    assert list(check("a.yaml", "models.polcy.source.dtype=float16").tree["models"]) == [
        "policy",
        "polcy",
    ]


def test_a_model_of_a_file_that_lacks_its_source(files, faults):
    files(base=BASE, a="defaults: [base]\nmodels:\n  polcy: {inference: {type: transformers}}\n")
    assert faults("a.yaml") == [
        "models.polcy.source (a.yaml:3): path (a model folder) or config (with model_type) is"
        " required; did you mean models.policy?"
    ]


GIVEN = {"policy": {}, "polcy": {}, "judge": {}}


@pytest.mark.parametrize(
    ("path", "message", "suggestion", "said"),
    [
        ("models.polcy.source", "path is required", None, "; did you mean models.policy?"),
        ("models.polcy.train", "type is missing", None, "; did you mean models.policy?"),
        # What is there and wrong was meant for this model.
        ("models.polcy.source.dtype", "must be one of float16, float32", None, ""),
        # A remedy of its own is the better one.
        ("models.polcy.source", "path is required", "config", "; did you mean config?"),
        # No other model has a name like this, or the fault is elsewhere.
        ("models.judge.source", "path is required", None, ""),
        ("models", "path is required", None, ""),
    ],
)
def test_a_model_that_lacks_keys_may_be_a_slip_for_another(path, message, suggestion, said):
    earlier = Fault("models.polcy.source", None, "path is required", None)
    faults = [earlier, Fault(path, None, message, suggestion)]
    say_who_was_meant(faults, 1, GIVEN, "models")
    assert [str(fault) for fault in faults] == [str(earlier), f"{path}: {message}{said}"]


def test_a_reference_to_a_model_that_is_not_there(files, faults):
    files(a=BASE + "experiment_name: ${models.polcy.source.config.model_type}\n")
    assert faults("a.yaml")[0].endswith("did you mean models.policy.source.config.model_type?")


def test_trackers_are_a_list(files, faults):
    files(a=BASE)
    assert faults("a.yaml", "trackers.bord.x=1") == [
        "trackers (command line): must be a list of trackers such as [{type: board}];"
        " change one by its number: trackers.0"
    ]


# Files that are no configuration.

EMPTY = "the configuration is empty; write at least trainer: with a type, or begin with defaults: [quickstart]"


@pytest.mark.parametrize("text", ["", "# only a comment\n", "null\n", "---\n", "{}\n"])
def test_empty_files(files, faults, text):
    files(a=text)
    assert faults("a.yaml") == [f"trainer (a.yaml): {EMPTY}"]


def test_an_empty_file_under_another_one_is_fine(files, check):
    files(base="", a="defaults: [base]\ntrainer: toy\n")
    assert check("a.yaml").tree["trainer"]["type"] == "toy"
    assert check("base.yaml", "trainer=toy").tree["trainer"]["type"] == "toy"


@pytest.mark.parametrize(
    ("text", "begin", "remedy"),
    [
        ("- a\n", "a.yaml: the root must be a mapping of sections, not a list", "write sections such as trainer: and indent what belongs to them"),
        ("hello\n", "a.yaml: the root must be a mapping of sections, not a single value", "write sections such as trainer: and indent what belongs to them"),
        ("x: 1\na: [1,\nb: 2\n", "a.yaml:", "close the bracket that is opened in line 2"),
        ("x: 1\na: {b: 1\n", "a.yaml:", "close the bracket that is opened in line 2"),
        ("x: 1\na: [\n", "a.yaml:", "close the bracket that is opened in line 2"),
        ("a: {\nb: [1, {c: 1}\n}\n", "a.yaml:", "close the bracket that is opened in line 2"),
        ("a: b: c\n", "a.yaml:1:5: not YAML", "quote text with a colon, and give each key its own line"),
        ("x: 1\na: \"b\n", "a.yaml:3:1: not YAML", "close the quote that is opened in line 2"),
        ("a: 'b\n", "a.yaml:2:1: not YAML", "close the quote that is opened in line 1"),
        ("a: *x\n", "a.yaml:1:4: not YAML", "quote text that starts with *, or define the anchor above"),
        ("a: 1\n---\nb: 2\n", "a.yaml:2:1: not YAML", "keep one document; remove the --- line"),
        ("a:\n\tb: 1\n", "a.yaml:2:1: not YAML", "indent with spaces; quote text that starts with this character"),
        ("a: @b\n", "a.yaml:1:4: not YAML", "quote text that starts with this character"),
        ("a:\n   b: 1\n  c: 1\n", "a.yaml:3:3: not YAML", "check the indentation, quotes and brackets before it"),
        ("a: 1\nb\nc: 1\n", "a.yaml:", "write key: value"),
        ("a: \x01\n", "a.yaml: not YAML", "remove it, or write it as an escape in double quotes"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read_names_itself_and_the_remedy(files, text, begin, remedy):
    files(a=text, over="defaults: [a]\ntrainer: toy\n")
    for name in ("a.yaml", "over.yaml"):
        with pytest.raises(ConfigError) as caught:
            compose(name)
        line = str(caught.value)
        assert line.startswith(begin)
        assert line.endswith(remedy)
        assert "\n" not in line
        assert "<" not in line


@pytest.mark.parametrize(
    ("word", "line"),
    [
        (
            "data.batch_size: 3",
            "(command line): override 'data.batch_size: 3' is not key=value; write data.batch_size=3",
        ),
        ("seed", "(command line): override 'seed' is not key=value"),
    ],
)
def test_an_override_that_is_yaml(files, faults, word, line):
    files(a=BASE)
    assert faults("a.yaml", word) == [line]


def test_an_override_of_bad_yaml_names_itself(files, faults):
    files(a=BASE)
    (line,) = faults("a.yaml", "data.batch_size=[1")
    assert line.startswith("(command line): override 'data.batch_size=[1': not YAML at column ")
    assert line.endswith("; close the bracket")


FILLED = {"data": {"repeat": 1, "rollout_repeat_n": 1}, "other": {"repeat_n": 1}, "data2": {}}


@pytest.mark.parametrize(
    ("path", "suggestion", "line"),
    [
        # A similar key of the same section comes before an equal one of another.
        ("data.repeat_n", "rollout_repeat_n", "data.repeat_n: no; did you mean rollout_repeat_n?"),
        ("data.repeat_n", None, "data.repeat_n: no; did you mean other.repeat_n?"),
        ("other.repeat", None, "other.repeat: no; did you mean data.repeat?"),
        # Never the key itself, which a configuration of phases holds as it was written.
        ("data.repeat", None, "data.repeat: no"),
        ("data.nothing", None, "data.nothing: no"),
    ],
)
def test_a_key_of_the_same_section_is_suggested_first(path, suggestion, line):
    unknown = path.rpartition(".")[2]
    fault = Fault(path, None, "no", suggestion, unknown=unknown)
    assert [str(found) for found in with_places([fault], FILLED, ())] == [line]
