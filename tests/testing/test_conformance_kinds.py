"""Every built-in component of the kinds that train nothing by themselves passes the kit."""

import json
from contextlib import closing

import pytest

# So that no test pays for the import.
import plugrl.plugins.transformers.train_service  # noqa: F401
from plugrl.core.factory import make_component
from plugrl.core.plugins.registry import default_registry
from plugrl.testing.plugin import KINDS
from plugrl.testing.suite.test_advantage import AdvantageContract
from plugrl.testing.suite.test_body import BodyContract
from plugrl.testing.suite.test_data_map import DataMapContract
from plugrl.testing.suite.test_dialogue_environment import DialogueEnvironmentContract
from plugrl.testing.suite.test_executor import ExecutorContract
from plugrl.testing.suite.test_fine_tune_service import FineTuneServiceContract
from plugrl.testing.suite.test_harness_algorithm import HarnessAlgorithmContract
from plugrl.testing.suite.test_hub import HubContract
from plugrl.testing.suite.test_inference_service import InferenceServiceContract
from plugrl.testing.suite.test_launcher import LauncherContract
from plugrl.testing.suite.test_loss import LossContract
from plugrl.testing.suite.test_parser import ParserContract
from plugrl.testing.suite.test_protocol import ProtocolContract
from plugrl.testing.suite.test_rollout_worker import RolloutWorkerContract
from plugrl.testing.suite.test_scenario import ScenarioContract
from plugrl.testing.suite.test_searcher import SearcherContract
from plugrl.testing.suite.test_tracker import TrackerContract
from plugrl.testing.suite.test_train_service import TrainServiceContract

CONTRACTS = {
    contract.kind: contract
    for contract in (
        AdvantageContract,
        BodyContract,
        DataMapContract,
        DialogueEnvironmentContract,
        ExecutorContract,
        FineTuneServiceContract,
        HarnessAlgorithmContract,
        HubContract,
        InferenceServiceContract,
        LauncherContract,
        LossContract,
        ParserContract,
        ProtocolContract,
        RolloutWorkerContract,
        ScenarioContract,
        SearcherContract,
        TrackerContract,
        TrainServiceContract,
    )
}
#: What cannot run here, and is tested where its server or software is stood in for.
ELSEWHERE = {
    "rollout_worker": {"external", "agent_demonstration", "protocol_demonstration", "protocol"},
    "inference_service": {"openai", "server", "ray", "tinker", "weaver"},
    "train_service": {"tinker", "weaver", "fsdp"},
    "fine_tune_service": {"openai", "tinker"},
    "tracker": {"wandb", "mlflow", "trackio"},
    "hub": {"huggingface"},
    "executor": {"ray"},
}
#: What is fast enough for the fast tier, of kinds whose tests build models or environments.
FAST = {
    "body": {"mlp", "nature_cnn"},
    "scenario": {"arithmetic", "calculator", "gymnasium"},
    "dialogue_environment": set(),
    "fine_tune_service": set(),
    "harness_algorithm": set(),
}


def spaces_of(scenario):
    """The spaces of the first agent of a scenario's environments."""

    def spaces():
        made = make_component("scenario", scenario).build(0)
        with closing(made.environment("test")) as environment:
            return next(iter(environment.spaces.values()))

    return spaces


EXAMPLES = {
    ("parser", "hermes"): {
        "text": 'So.<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>',
        "calls": ["add"],
    },
    ("parser", "json"): {"text": '{"name": "add", "arguments": {"a": 1}}', "calls": ["add"]},
    ("parser", "pythonic"): {"text": "[add(a=1)]", "calls": ["add"]},
    ("parser", "think_tag"): {
        "text": "<think>two</think>2",
        "reasoning": "two",
        "content": "2",
    },
    ("data_map", "gsm8k"): {"row": {"question": "1+1?", "answer": "It is 2. #### 2"}},
    ("loss", "kto"): {
        "prepare": lambda batch: batch.metadata.update(kl_reference=0.1),
    },
    ("body", "graph_pair"): {"spaces": spaces_of("graph_isomorphism"), "unfit": (4,)},
    ("body", "image_latent"): {"spaces": spaces_of("image_classification"), "unfit": (4,)},
    ("body", "nature_cnn"): {"shape": (1, 36, 36), "unfit": (4,)},
    ("scenario", "gymnasium"): {"config": {"id": "CartPole-v1", "num_envs": 2}},
    ("scenario", "torchrl"): {
        "config": {
            "environment": "torchrl.envs:GymEnv",
            "env_kwargs": {"env_name": "CartPole-v1"},
            "num_envs": 2,
        }
    },
    ("scenario", "tensor"): {"config": {"environment": "CartPole-v1", "num_envs": 2}},
    ("scenario", "pettingzoo"): {"config": {"environment": "mpe2.simple_spread_v3"}},
    ("scenario", "reasoning_gym"): {"config": {"tasks": [{"name": "chain_sum"}]}},
    ("rollout_worker", "preference"): {
        "config": {"chosen_key": "answer", "rejected_key": "other"},
        "data": {"prompt": "ab", "answer": "a", "other": "b"},
    },
    # Beside the working directory, which has to stay empty.
    ("tracker", "jsonl"): {
        "config": {"path": "../stored.jsonl"},
        "read": lambda folder: rows_of_jsonl(folder),
    },
}


def rows_of_jsonl(folder):
    """The numbers that the tracker ``jsonl`` stored of a run."""
    file = folder.parents[2] / "stored.jsonl"
    rows = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    metrics = [r for r in rows if (r["run"], r["event"]) == (folder.name, "metrics")]
    return [(r["step"], k, v) for r in metrics for k, v in r.items() if isinstance(v, float | int)]


def built_in(kind):
    return {r.name for r in default_registry().records(kind) if r.distribution == "plugrl"}


class InThisProcess:
    """A new process would import torch for seconds; the trainers' suite tries that."""

    @pytest.mark.integration
    def test_a_new_process_finds_the_same(self, record, cls, plugrl_new_process):
        super().test_a_new_process_finds_the_same(record, cls, plugrl_new_process)


for _kind, _contract in CONTRACTS.items():
    for _name in sorted(built_in(_kind) - ELSEWHERE.get(_kind, set())):
        _title = "".join(part.capitalize() for part in f"{_name}_{_kind}".split("_"))
        globals()[f"Test{_title}"] = type(
            f"Test{_title}",
            (InThisProcess, _contract),
            {
                "__test__": True,
                f"plugrl_{_kind}": _name,
                "conformance": EXAMPLES.get((_kind, _name), {}),
                "__module__": __name__,
                "pytestmark": []
                if _name in FAST.get(_kind, {_name})
                else [pytest.mark.integration],
            },
        )


def test_every_kind_has_a_suite():
    assert {*CONTRACTS, "trainer", "evaluator", "scorer", "sandbox"} == set(KINDS)


def test_every_kind_of_the_table_is_one_of_the_kit():
    from plugrl.core.plugins.kinds import KINDS as TABLE

    assert set(KINDS) == set(TABLE)


@pytest.mark.parametrize("kind", ELSEWHERE)
def test_what_is_left_out_is_there(kind):
    assert ELSEWHERE[kind] <= built_in(kind)
