# ruff: noqa: E501
from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import ClassVar

import pytest

from plugrl.core.config import canonical
from plugrl.core.config.aliases import Key
from plugrl.core.config.schemas.schema import component
from plugrl.core.config.schemas.sections import DataConfig, ModelConfig, ValidateConfig
from plugrl.core.config.sources.compose import compose
from plugrl.core.errors import PlugrlDeprecationWarning
from plugrl.core.run.tracking.tracker import Tracker
from plugrl.core.text.evaluate.evaluator import Evaluator
from plugrl.core.text.inference.services import InferenceService, TrainService
from plugrl.core.text.rollout.worker import RolloutWorker
from plugrl.core.trainer import Trainer

SOURCE = "source: {config: {model_type: qwen3}}"


class TextTrainer(Trainer):
    sections: ClassVar = {
        "models": dict[str, ModelConfig],
        "data": DataConfig,
        "rollout_worker": component("rollout_worker", "single_turn"),
        "validate": ValidateConfig,
    }

    def train(self):
        return None


def concrete(name: str, base: type) -> type:
    """A subclass whose abstract methods do nothing: these components are only configured."""
    methods = {method: lambda self, *_: None for method in base.__abstractmethods__}
    return type(name, (base,), {**methods, "__module__": __name__})


Local = concrete("Local", TrainService)
Embedded = concrete("Embedded", InferenceService)
SingleTurn = concrete("SingleTurn", RolloutWorker)
Exact = concrete("Exact", Evaluator)


class Board(Tracker):
    pass


@pytest.fixture
def registry(registry):
    registry.register("trainer", "text", TextTrainer)
    registry.register("train_service", "local", Local)
    registry.register("inference_service", "transformers", Embedded)
    registry.register("rollout_worker", "single_turn", SingleTurn)
    registry.register("evaluator", "exact", Exact)
    registry.register("tracker", "board", Board)
    return registry


@pytest.mark.parametrize(
    ("given", "tree"),
    [
        ({"algorithm": {"x": 1}}, {"trainer": {"algorithm": {"x": 1}}}),
        (
            {"algorithm": {"x": 1}, "trainer": "toy"},
            {"trainer": {"type": "toy", "algorithm": {"x": 1}}},
        ),
        ({"algorithm": {"x": 1}, "trainer": None}, {"trainer": {"algorithm": {"x": 1}}}),
        ({"train_service": {"url": "u"}}, {"trainer": {"train_service": {"url": "u"}}}),
        (
            {"service": {"train_service": {"url": "u"}}},
            {"trainer": {"train_service": {"url": "u"}}},
        ),
        (
            {"algorithm": {"entropy_coeff": 0.1, "loss_agg_mode": "token-mean", "ppo_epochs": 2}},
            {
                "trainer": {
                    "algorithm": {
                        "entropy_coefficient": 0.1,
                        "aggregation": "token-mean",
                        "epochs": 2,
                    }
                }
            },
        ),
        (
            {"algorithm": {"loss": "clipped", "clip_ratio_high": 0.3, "clip_ratio_c": 3.0}},
            {
                "trainer": {
                    "algorithm": {
                        "loss": {
                            "type": "clipped",
                            "clip_ratio_high": 0.3,
                            "clip_ratio_dual": 3.0,
                        }
                    }
                }
            },
        ),
        (
            {"algorithm": {"distillation_coeff": 0.5, "distillation_epochs": 2}},
            {"trainer": {"algorithm": {"advantage": {"coefficient": 0.5}, "epochs": 2}}},
        ),
        ({"algorithm": {"use_kl_loss": False}}, {}),
        ({"trainer": {"save_freq": 5}}, {"settings": {"checkpoint_every": 5}}),
        ({"validate": {"eval": {"compute_interval": 5}}}, {"validate": {"every": 5}}),
        (
            {"validate": {"eval": {"type": "default", "compute_interval": 5}}},
            {"validate": {"every": 5}},
        ),
        ({"validate": {"validate_freq": 5}}, {"validate": {"every": 5}}),
        ({"data": {"type": "torch"}}, {"data": {"type": "files"}}),
        ({"logger": {"backend": "board"}}, {"trackers": ["board"]}),
        (
            {"logger": {"backend": ["console", "board"], "board": {"x": 1}}},
            {"trackers": [{"type": "board", "x": 1}]},
        ),
        ({"logger": [{"type": "board"}]}, {"trackers": [{"type": "board"}]}),
        ({"logger": "board"}, {"trackers": ["board"]}),
        ({"logger": None}, {"trackers": []}),
        (
            {"rollout_worker": {"evaluator_module_path": "a/b.py:Mine"}},
            {
                "rollout_worker": {
                    "evaluator": {
                        "custom_evaluator_module_path": "a/b.py",
                        "custom_evaluator_class_name": "Mine",
                    }
                }
            },
        ),
        (
            {"trainer": {"phases": [{"name": "a", "algorithm": {"x": 1}}]}},
            {"trainer": {"phases": [{"name": "a", "trainer": {"algorithm": {"x": 1}}}]}},
        ),
    ],
)
def test_second_spellings(files, given, tree):
    files()
    composed = compose(given)
    assert composed.faults == ()
    assert composed.tree == tree


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "algorithm: {x: 1}\ntrainer:\n  algorithm: {y: 1}\n",
            "algorithm (a.yaml:1): is the same as trainer.algorithm (a.yaml:3); write it in one place only",
        ),
        (
            "logger: board\ntrackers: []\n",
            "logger (a.yaml:1): is the same as trackers (a.yaml:2); write it in one place only",
        ),
        (
            "validate:\n  every: 1\n  validate_freq: 2\n",
            "validate.validate_freq (a.yaml:3): is the same as validate.every (a.yaml:2);"
            " write it in one place only",
        ),
        (
            "logger: {backend: board, bord: {}}",
            "logger (a.yaml:1): unknown keys: bord; write options as `trackers` does",
        ),
        (
            "rollout_worker: {evaluator_module_path: mine.py}",
            "rollout_worker.evaluator_module_path (a.yaml:1): must be file.py:ClassName, not 'mine.py'",
        ),
        # What has moved before is told by the key that stands in the file.
        (
            "algorithm:\n  do_old_log_prob_compute: 5\n",
            "algorithm.do_old_log_prob_compute (a.yaml:2): must be true or false, not 5",
        ),
        (
            "algorithm:\n  ppo_epochs: 2\n  epochs: 1\n",
            "algorithm.ppo_epochs (a.yaml:2): is the same as trainer.algorithm.epochs (a.yaml:3);"
            " write it in one place only",
        ),
    ],
)
def test_both_spellings_at_once_and_bad_ones(files, text, line):
    files(a=text)
    assert [str(fault) for fault in compose("a.yaml").faults] == [line]


@pytest.mark.filterwarnings("ignore::plugrl.core.errors.PlugrlDeprecationWarning")
@pytest.mark.parametrize("old", canonical.MOVES)
def test_no_layer_keeps_a_second_spelling(files, old):
    files()
    given = {"logger": "board", "rollout_worker.evaluator_module_path": "a.py:Mine"}.get(old, True)
    for part in reversed(old.split(".")):
        given = {part: given}
    composed = compose(given)
    assert composed.faults == ()
    left: object = composed.tree
    for part in old.split("."):
        left = left.get(part) if isinstance(left, dict) else None
    assert left is None
    # Messages name the key that stands in the file.
    assert old in {origin.key for origin in composed.origins.values()}


@pytest.mark.parametrize(
    "text",
    [
        "trainer: {save_freq: null}\nsettings: {checkpoint_every: 5}\n",
        "trainer: {save_freq: 5}\nsettings: {checkpoint_every: null}\n",
        "rollout_worker: {evaluator_module_path: null, evaluator: exact}\n",
    ],
)
def test_null_in_one_spelling_says_nothing_beside_the_other(files, text):
    files(a=text)
    composed = compose("a.yaml")
    assert composed.faults == ()
    assert list(composed.tree.values()) in ([{"checkpoint_every": 5}], [{"evaluator": "exact"}])


def test_a_section_that_nobody_wrote_as_a_whole_is_named_by_its_key(files):
    files(a="seed: 1\n")
    (fault,) = compose("a.yaml", ["logger.board.folder=x"]).faults
    assert fault.path == "logger"
    assert "has no `backend`" in fault.message


def test_precedence_does_not_depend_on_the_spelling(files):
    files(base="algorithm: {x: 1, y: 1}", a="defaults: [base]\ntrainer: {algorithm: {x: 2}}")
    composed = compose("a.yaml", ["algorithm.y=3"])
    assert composed.faults == ()
    assert composed.tree == {"trainer": {"algorithm": {"x": 2, "y": 3}}}
    assert str(composed.origins[("trainer", "algorithm", "x")]) == "a.yaml:2"
    assert str(composed.origins[("trainer", "algorithm", "y")]) == "command line"


def test_a_key_that_goes_away_warns(files, monkeypatch):
    renamed = Key("data.batchsize", "data.batch_size", warns=True)
    monkeypatch.setattr(canonical, "KEYS", [renamed])
    monkeypatch.setitem(canonical.MOVES, renamed.old, renamed.new)
    files(a="data: {batchsize: 3}")
    with pytest.warns(
        PlugrlDeprecationWarning, match="data.batchsize is now called data.batch_size"
    ):
        assert compose("a.yaml").tree == {"data": {"batch_size": 3}}


# Services and models.


def test_the_train_service_belongs_to_the_one_model(files, check):
    files(
        a=f"trainer: text\ntrain_service: {{backend: self-hosted}}\nmodels: {{policy: {{{SOURCE}}}}}\n"
    )
    validated = check("a.yaml")
    assert validated.tree["models"]["policy"]["train"] == {"type": "local"}
    assert "train_service" not in validated.tree["trainer"]
    assert validated.section("trainer").train_service == {"type": "local"}
    assert validated.hyper_params.trainer.train_service.type == "local"
    assert validated.records["models.policy.train"].name == "local"
    assert str(validated.origins[("models", "policy", "train", "type")]) == "a.yaml:2"
    assert check(validated.tree).tree == validated.tree


def test_the_inference_service_too(files, check):
    files(
        a="trainer: text\nservice: {inference_service: {backend: transformers}, train_service: local}\n"
        f"models: {{policy: {{{SOURCE}}}}}\n"
    )
    model = check("a.yaml").tree["models"]["policy"]
    assert model["inference"] == {"type": "transformers"}
    assert model["train"] == {"type": "local"}


@pytest.mark.parametrize(
    ("models", "line"),
    [
        (
            f"{{a: {{{SOURCE}}}, b: {{{SOURCE}}}}}",
            "train_service (a.yaml:2): fits one model only (a, b); write models.NAME.train instead",
        ),
        (
            f"{{a: {{{SOURCE}, train: local}}}}",
            "train_service (a.yaml:2): is the same as models.a.train (a.yaml:3);"
            " write it in one place only",
        ),
        (
            "{}",
            "train_service (a.yaml:2): fits one model only (none is named);"
            " write models.NAME.train instead",
        ),
    ],
)
def test_a_train_service_that_fits_no_model(files, faults, models, line):
    files(a=f"trainer: text\ntrain_service: local\nmodels: {models}\n")
    assert faults("a.yaml") == [line]


@pytest.mark.parametrize("keys", [("type", "backend"), ("backend", "type"), ("backend",) * 2])
@pytest.mark.parametrize(
    ("first", "second"),
    [*itertools.product(["train_service", "models.policy.train"], repeat=2)],
)
def test_the_later_layer_names_the_service(files, check, keys, first, second):
    service = f"{{{keys[0]}: nothing}}"
    models = f"trainer: text\nmodels: {{policy: {{{SOURCE}, train: {service}}}}}\n"
    if first == "train_service":
        models = f"trainer: text\nmodels: {{policy: {{{SOURCE}}}}}\ntrain_service: {service}\n"
    files(base=models, a="defaults: base\n")
    validated = check("a.yaml", f"{second}.{keys[1]}=self-hosted")
    assert validated.tree["models"]["policy"]["train"] == {"type": "local"}
    origin = validated.origins["models", "policy", "train", "type"]
    assert (str(origin), origin.key) == (
        "command line",
        None if (second, keys[1]) == ("models.policy.train", "type") else f"{second}.{keys[1]}",
    )


def test_a_model_without_weights(files, faults):
    files(
        a="trainer: text\nmodels:\n  policy:\n  other: {source: {path: x, config: {model_type: y}}}\n"
    )
    assert faults("a.yaml") == [
        "models.policy.source (a.yaml:3): path (a model folder) or config (with model_type) is required",
        "models.other.source (a.yaml:4): path and config exclude each other; leave one of them out",
    ]


@pytest.mark.parametrize(
    ("name", "meant"), [("nexau", "agent"), ("simple", "single_turn"), ("single_turn",) * 2]
)
def test_names_of_components(files, check, registry, name, meant):
    registry.register("rollout_worker", "agent", type("Agent", (SingleTurn,), {}))
    files(a=f"trainer: text\nrollout_worker: {name}\n")
    assert check("a.yaml").tree["rollout_worker"]["type"] == meant


def test_an_installed_component_keeps_its_name(files, check, registry):
    class Nexau(SingleTurn):
        pass

    registry.register("rollout_worker", "nexau", Nexau)
    files(a="trainer: text\nrollout_worker: nexau\n")
    assert check("a.yaml").tree["rollout_worker"]["type"] == "nexau"


def test_a_service_that_is_not_installed(files, faults):
    files(a=f"trainer: text\nmodels: {{policy: {{{SOURCE}, inference: tgi}}}}\n")
    assert faults("a.yaml") == [
        "models.policy.inference (a.yaml:2): unknown inference_service 'tgi'; installed: transformers;"
        " see plugrl ls inference_services; for your own write custom_inference_service_module_path:"
        " FILE with custom_inference_service_class_name: CLASS and no type, or register its name in a"
        " file and give -p FILE"
    ]


@dataclass
class Address:
    base_url: str | None = None


class Served(Embedded):
    Config = Address


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_servers_of_the_guides_are_asked_by_their_protocol(files, check, registry, name):
    registry.register("inference_service", "openai", Served)
    files(a=f"trainer: text\nmodels: {{policy: {{{SOURCE}, inference: {{backend: {name}}}}}}}\n")
    assert check("a.yaml").tree["models"]["policy"]["inference"]["type"] == "openai"


def test_a_remedy_depends_on_what_the_component_has(files, faults, registry):
    registry.register("inference_service", "openai", Served)
    for name, remedy in (("openai", "write base_url"), ("transformers", "type: openai")):
        files(
            a=f"trainer: text\nmodels: {{policy: {{{SOURCE}, inference: {{type: {name}, url: x}}}}}}\n"
        )
        (line,) = faults("a.yaml")
        assert remedy in line


@pytest.mark.parametrize(
    ("name", "path", "attribute"),
    [("mine.py:Csv", "mine.py", "Csv"), ("board.py", "board.py", "CLASS")],
)
def test_a_file_in_the_place_of_a_name(files, check, faults, name, path, attribute):
    folder = files(a=f"trainer: text\ntrackers: [{{type: '{name}'}}]\n")
    (line,) = faults("a.yaml")
    keys = f"custom_tracker_module_path: {path} with custom_tracker_class_name: {attribute}"
    assert f"for your own write {keys} and no type, or" in line
    assert line.endswith(f"give -p {path}")
    (folder / "mine.py").write_text("import plugrl\n\n\nclass Csv(plugrl.Tracker):\n    pass\n")
    keys = "custom_tracker_module_path: mine.py, custom_tracker_class_name: Csv"
    files(a=f"trainer: text\ntrackers: [{{{keys}}}]\n")
    assert check("a.yaml").records["trackers[0]"].name == "Csv"


def test_a_default_component_keeps_its_type_when_a_key_is_set(files, check):
    files(a="trainer: text\nrollout_worker: {max_prompt_length: 9}\n")
    worker = check("a.yaml").tree["rollout_worker"]
    assert worker["type"] == "single_turn"
    assert worker["max_prompt_length"] == 9


# The prompt limit.


@pytest.mark.parametrize(
    "text",
    [
        "data: {max_prompt_length: 7}\n",
        "data: {max_prompt_length: 7}\nrollout_worker: single_turn\n",
        "data: {max_prompt_length: '${rollout_worker.max_prompt_length}'}\n"
        "rollout_worker: {max_prompt_length: 7}\n",
    ],
)
def test_the_prompt_limit_is_the_workers(files, check, text):
    files(a=f"trainer: text\n{text}")
    validated = check("a.yaml")
    assert validated.tree["rollout_worker"]["max_prompt_length"] == 7
    assert "max_prompt_length" not in validated.tree["data"]


def test_two_prompt_limits_must_agree(files, faults):
    files(a="trainer: text\ndata: {max_prompt_length: 7}\nrollout_worker: {max_prompt_length: 8}\n")
    assert faults("a.yaml") == [
        "data.max_prompt_length (a.yaml:2): differs from rollout_worker.max_prompt_length, 8 (a.yaml:3);"
        " write it once, there"
    ]


def test_an_evaluator_from_a_file(files, check):
    folder = files(
        conf__a="trainer: text\nrollout_worker: {evaluator_module_path: 'mine.py:Mine'}\n"
    )
    (folder / "conf" / "mine.py").write_text(
        "from plugrl.core.text.evaluate.evaluator import Evaluator\n"
        "class Mine(Evaluator):\n    def evaluate(self, data, evaluation_target): ...\n"
    )
    validated = check("conf/a.yaml")
    assert validated.records["rollout_worker.evaluator"].name == "Mine"
    path = validated.tree["rollout_worker"]["evaluator"]["custom_evaluator_module_path"]
    assert path == str(folder / "conf" / "mine.py")


def test_trackers(files, check, faults):
    files(
        a="trainer: text\nlogger: {backend: [console, board]}\n",
        b="trainer: text\ntrackers: board\n",
    )
    assert check("a.yaml").tree["trackers"] == [{"type": "board"}]
    assert check("b.yaml").tree["trackers"] == [{"type": "board"}]
    assert check("b.yaml").records["trackers[0]"].name == "board"
    files(a="trainer: text\ntrackers: [{type: bord}]\n")
    assert faults("a.yaml") == [
        "trackers[0].type (a.yaml:2): unknown tracker 'bord'; did you mean board? installed: board"
    ]
