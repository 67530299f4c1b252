"""The texts of ``plugrl new plugin`` that differ between templates, and the table of templates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from plugrl.commands import _component_templates as more

#: The recipe of most templates; a template replaces some of its parts.
EXAMPLE = """\
# A model of a few thousand parameters learns a small task with $component; no download, no GPU.
experiment_name: $component

scenario:$scenario

models:
  policy:
    source:
      config:
        model_type: qwen3
        hidden_size: 32
        intermediate_size: 64
        num_hidden_layers: 1
        num_attention_heads: 2
        num_key_value_heads: 1
        head_dim: 16
        max_position_embeddings: 16
      tokenizer:
        characters: "0123456789+="$template
    train:
      type: local
      learning_rate: 3e-3

data:
  batch_size: 8
  rollout_repeat_n: 8

rollout_worker:$worker
  max_response_length: 3
  evaluator: $evaluator

trainer:
  type: $trainer
  total_train_steps: 50$algorithm$trackers
"""
#: These parts where a template says nothing of them.
PARTS = {
    "scenario": "\n  type: arithmetic\n  digits: 1\n  validation: 10\n  development: 0\n"
    "  demonstrations: 0",
    "worker": "",
    "evaluator": "exact_match",
    "trainer": "self_hosted_grpo",
    "algorithm": "",
    "trackers": "",
    "template": "",
    "train": "",
    "section": "",
}

TRAINER = '''\
"""The trainer ``$component``: reinforce answers that are better than the batch's mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from plugrl import (
    AlgorithmConfig,
    Batch,
    SelfHostedTrainer,
    SelfHostedTrainerConfig,
    described,
)


@dataclass
class ${cls}Algorithm(AlgorithmConfig):
    """Options under ``trainer.algorithm``."""

    scale: float = described(1.0, "factor of the advantages")


@dataclass
class ${cls}Config(SelfHostedTrainerConfig):
    """The trainer section of ``$component``."""

    # These options alone, in place of those that the base has.
    algorithm: ${cls}Algorithm = described(  # type: ignore[assignment]
        ${cls}Algorithm, "its options"
    )


class $cls(SelfHostedTrainer):
    """REINFORCE with the mean reward of the batch as baseline (Williams, 1992)."""

    Config: ClassVar[type] = ${cls}Config

    def _prepare_batch(self, batch: Batch) -> tuple[Batch, dict[str, float]]:
        rewards, valid = batch.metadata["rewards"], batch.metadata["valid"]
        baseline = rewards[valid].mean()
        advantages = self.config.algorithm.scale * (rewards - baseline) * valid
        batch.metadata["advantages"] = advantages
        return batch, {"baseline": float(baseline)}
'''

EVALUATOR = '''\
"""The evaluator ``$component``: how much of the reference an answer gets right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from plugrl import BaseEvaluationTarget, EvaluationRunResult, Evaluator, described


@dataclass
class ${cls}Config:
    """Options of the evaluator ``$component``."""

    answer_key: str = described("answer", "column with the reference answer")


class $cls(Evaluator):
    """Reward: the share of the reference's first letters that the answer begins with."""

    Config: ClassVar[type] = ${cls}Config

    def evaluate(
        self, data: Mapping[str, Any], evaluation_target: BaseEvaluationTarget
    ) -> EvaluationRunResult:
        """Compare the answer with the reference, letter by letter."""
        truth = str(data[self.config.answer_key])
        answer = evaluation_target.final_answer
        matched = 0
        for expected, given in zip(truth, answer, strict=False):
            if expected != given:
                break
            matched += 1
        return EvaluationRunResult(
            reward=matched / max(len(truth), 1),
            ground_truth=truth,
            metrics={"exact": float(answer == truth)},
        )
'''


ROLLOUT_WORKER = '''\
"""The rollout worker ``$component``: one prompt, one answer; long answers earn less."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from plugrl import (
    RolloutTask,
    RolloutWorker,
    RolloutWorkerConfig,
    Trajectory,
    described,
    trajectory_of,
)


@dataclass
class ${cls}Config(RolloutWorkerConfig):
    """Options of the rollout worker ``$component``."""

    token_cost: float = described(0.01, "taken from the reward for each token of the answer")


class $cls(RolloutWorker):
    """Asks the model once and takes a little from the reward for each token."""

    Config: ClassVar[type] = ${cls}Config

    async def rollout(self, task: RolloutTask) -> Trajectory:
        """Attempt ``task`` once."""
        model = self.config.model
        tokenizer = task.tokenizers[model]
        prompt = tokenizer.encode(task.prompt)
        completion = await task.ask(model, prompt, task.sampling)
        trajectory = trajectory_of(task, model, prompt, completion)
        trajectory = await self.judged(task, trajectory, tokenizer.decode(completion.tokens))
        if trajectory.valid:
            trajectory.reward -= self.config.token_cost * len(completion.tokens)
            trajectory.metrics["answer_tokens"] = float(len(completion.tokens))
        return trajectory
'''

SCENARIO = '''\
"""The scenario ``$component``: write the digits of the prompt in reverse order."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar

from plugrl import ConfigError, Scenario, ScenarioInstance, described


@dataclass
class ${cls}Config:
    """Options of the scenario ``$component``."""

    digits: int = described(2, "digits of a prompt, 1 to 4")
    validation: int = described(10, "held-out problems")

    def __post_init__(self) -> None:
        if not 1 <= self.digits <= 4:
            raise ConfigError("digits must be between 1 and 4")
        if not 0 <= self.validation < 10**self.digits:
            raise ConfigError("validation must leave problems to train on")


class $cls(Scenario):
    """Reversing digits: all numbers, split into training and held-out problems."""

    Config: ClassVar[type] = ${cls}Config

    def build(self, seed: int) -> ScenarioInstance:
        """Shuffle the problems with the seed and split them."""
        width = self.config.digits
        texts = [f"{number:0{width}d}" for number in range(10**width)]
        random.Random(seed).shuffle(texts)
        items = [{"prompt": f"{text}=", "answer": text[::-1]} for text in texts]
        held_out = self.config.validation
        return ScenarioInstance(
            name="$component",
            datasets={"validation": items[:held_out], "train": items[held_out:]},
        )
'''

ADVANTAGE = '''\
"""The advantage ``$component``: a reward against the mean of the others of its group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from plugrl import Batch, described, register_advantage


@dataclass
class ${cls}Config:
    """Options of the advantage ``$component``."""

    scale: float = described(1.0, "factor of the advantages")


# The entry point of the package names the function too: both are one component.
@register_advantage("$component", config=${cls}Config)
def $function(
    rewards: torch.Tensor,
    group: torch.Tensor,
    run: torch.Tensor,
    valid: torch.Tensor,
    batch: Batch | None,
    config: Any,
) -> torch.Tensor:
    """Leave-one-out advantages, [R] (arXiv 2402.14740); invalid trajectories get 0."""
    others = (group[:, None] == group[None, :]) & valid[None, :]
    others.fill_diagonal_(False)
    known = torch.where(valid, rewards, 0.0)
    count = others.sum(1)
    baseline = (others * known[None, :]).sum(1) / count.clamp_min(1)
    return torch.where(valid & (count > 0), config.scale * (known - baseline), 0.0)
'''

LOSS = '''\
"""The loss ``$component``: REINFORCE that learns less from bad answers than from good ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from plugrl import Batch, described, masked_sum, register_loss


@dataclass
class ${cls}Config:
    """Options of the loss ``$component``."""

    negative_weight: float = described(0.5, "weight of tokens with a negative advantage")


# The entry point of the package names the function too: both are one component.
@register_loss("$component", config=${cls}Config)
def $function(
    logp: torch.Tensor, batch: Batch, config: Any
) -> tuple[torch.Tensor, dict[str, tuple[torch.Tensor, torch.Tensor]]]:
    """REINFORCE per token, [B, T] (Williams, 1992), weighed by the sign of the advantage."""
    advantages, mask = batch.values["advantages"], batch.values["loss_mask"]
    weight = torch.where(advantages < 0, config.negative_weight, 1.0)
    return -weight * advantages * logp, {"surprise": masked_sum(-logp, mask)}
'''

TRACKER = '''\
"""The tracker ``$component``: metrics as rows of a CSV file in the run folder."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from plugrl import TrackedRun, Tracker, described


@dataclass
class ${cls}Config:
    """Options of the tracker ``$component``."""

    file: str = described("metrics.csv", "name of the file in the run folder")


class $cls(Tracker):
    """Appends one row (step, name, value) for each metric of a step."""

    Config: ClassVar[type] = ${cls}Config

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self._path: Path | None = None

    def start(self, run: TrackedRun) -> int | None:
        """Remember where the file is; a resumed run drops what came after its checkpoint."""
        self._path = run.folder / self.config.file
        rows: list[list[str]] = []
        if run.resumed and self._path.exists():
            with self._path.open(newline="", encoding="utf-8") as stream:
                rows = [row for row in list(csv.reader(stream))[1:] if int(row[0]) <= run.step]
        self._path.write_text("", encoding="utf-8")
        self._write([("step", "name", "value"), *map(tuple, rows)])
        return int(rows[-1][0]) if rows else -1

    def log(self, step: int, metrics: Mapping[str, float | int]) -> None:
        """Append the metrics of a step."""
        self._write([(step, name, value) for name, value in metrics.items()])

    def _write(self, rows: list[tuple[Any, ...]]) -> None:
        if self._path is not None:
            with self._path.open("a", newline="", encoding="utf-8") as stream:
                csv.writer(stream).writerows(rows)
'''

CONTRACT = '''\
"""$component keeps plugrl's contract for ${kind}s."""

from plugrl.testing.suite.test_$kind import ${contract}Contract


class Test$cls(${contract}Contract):
    __test__ = True
    plugrl_$kind = "$component"
'''

#: Begins the tests of what the contract of a kind does not know.
RUN_TEST = '''\
"""$component takes part in a short run, and does what it says."""

${standard}import json
from importlib.resources import files

import plugrl
import pytest
$imports
from $package.$module import $names

EXAMPLE = str(files("$package") / "$recipe")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return plugrl.train(EXAMPLE, [f"settings.runs_folder={folder}"$short])


def test_it_takes_part_in_a_run(run):
    lock = json.loads((run.folder / "plugins.lock.json").read_text("utf-8"))
    used = {(c["kind"], c["name"]): c["distribution"] for c in lock if c["used"]}
    assert used["$kind", "$component"] == "$name"
    assert run.status["state"] == "done"


'''
WORKER_CHECK = """\
def test_the_cost_of_tokens_is_taken_from_the_reward(run):
    metrics = run.last_metrics
    assert metrics["rollout/answer_tokens"] == metrics["rollout/response_length"] >= 1
    cost = $target().config.token_cost
    assert metrics["rollout/reward_max"] <= 1 - cost
    assert metrics["rollout/reward_min"] >= -cost * 3
"""

SCENARIO_CHECK = """\
def test_problems_depend_on_the_seed_and_splits_share_none():
    scenario = $target({"validation": 4})
    built = scenario.build(1)
    assert built.datasets == scenario.build(1).datasets != scenario.build(2).datasets
    held_out = {item["prompt"] for item in built.dataset("validation")}
    assert len(held_out) == 4
    assert held_out.isdisjoint(item["prompt"] for item in built.dataset("train"))
    assert all(i["answer"] == i["prompt"][1::-1] for i in built.dataset("train"))
"""

ADVANTAGE_CHECK = """\
def test_a_reward_is_compared_with_the_others_of_its_group():
    rewards = torch.tensor([1.0, 0.0, 0.5, 3.0, 9.0])
    group = torch.tensor([0, 0, 0, 1, 0])
    valid = torch.tensor([True, True, True, True, False])
    config = ${cls}Config(scale=2.0)
    advantages = $target(rewards, group, torch.arange(5), valid, None, config)
    assert advantages.tolist() == [1.5, -1.5, 0.0, 0.0, 0.0]


def test_advantages_reach_the_loss(run):
    assert run.last_metrics["train/advantage_abs"] >= 0
"""

LOSS_CHECK = """\
def test_the_loss_pushes_towards_the_advantage():
    logp = torch.tensor([[-1.0, -3.0]], requires_grad=True)
    values = {"advantages": torch.tensor([[2.0, -2.0]]), "loss_mask": torch.ones(1, 2)}
    config = ${cls}Config(negative_weight=0.25)
    loss, metrics = $target(logp, plugrl.Batch(values, {}), config)
    loss.sum().backward()
    assert logp.grad.tolist() == [[-2.0, 0.5]]
    total, count = metrics["surprise"]
    assert (float(total), float(count)) == (4.0, 2.0)


def test_its_metric_is_one_of_the_run(run):
    assert run.last_metrics["train/surprise"] > 0
"""

TRACKER_CHECK = """\
def test_every_step_is_in_the_file(run):
    name = $target().config.file
    with (run.folder / name).open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert {row["step"] for row in rows} >= {"1", "2"}
    value = run.last_metrics["rollout/reward"]
    last = [row for row in rows if row["name"] == "rollout/reward"][-1]
    assert float(last["value"]) == pytest.approx(value)
"""


#: Overrides that keep a run of a recipe short, by what its trainer counts.
STEPS = ', "trainer.total_train_steps=2"'
ITERATIONS = ', "rl.num_iterations=2"'


@dataclass(frozen=True, kw_only=True)
class Kit:
    """What differs between the packages of two templates.

    Attributes:
        kind: of the component; None: hooks, which are no component.
        body: the module.
        check: what is tested besides the contract of the kind and taking part in a run, with what
            it ``imports``, and ``standard`` from the standard library. Empty: the contract trains.
        function: whether the component is a function.
        names: what tests import besides it, from its module.
        example: the recipe; its ``parts`` are those of the component.
        short: overrides that keep its run short.
        sampler: whether the inference service of letters stands beside it.
        data: further files of the package, by path.
    """

    kind: str | None
    body: str
    check: str = ""
    imports: str = ""
    standard: str = ""
    function: bool = False
    names: str = ""
    example: str = EXAMPLE
    parts: Mapping[str, str] = field(default_factory=dict)
    short: str = STEPS
    sampler: bool = False
    data: Mapping[str, str] = field(default_factory=dict)


#: All templates, by the name that ``--kind`` and ``--add`` take.
KITS = {
    "trainer": Kit(kind="trainer", body=TRAINER, parts={"trainer": "$component"}),
    "network_trainer": Kit(
        kind="trainer",
        body=more.NETWORK_TRAINER,
        check=more.NETWORK_TRAINER_CHECK,
        example=more.NETWORK_EXAMPLE,
        parts={"trainer": "$component", "section": "\n\n$component: {temperature: 0.5}"},
        short=ITERATIONS,
    ),
    "evaluator": Kit(kind="evaluator", body=EVALUATOR, parts={"evaluator": "$component"}),
    "rollout_worker": Kit(
        kind="rollout_worker",
        body=ROLLOUT_WORKER,
        check=WORKER_CHECK,
        parts={"worker": "\n  type: $component"},
    ),
    "two_turn_worker": Kit(
        kind="rollout_worker",
        body=more.TWO_TURN_WORKER,
        check=more.TWO_TURN_CHECK,
        parts={
            "worker": "\n  type: $component",
            "template": "\n        chat_template: >-\n          {% for m in messages %}"
            "{{ m.content }}{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}",
        },
    ),
    "scenario": Kit(
        kind="scenario",
        body=SCENARIO,
        check=SCENARIO_CHECK,
        parts={"scenario": "\n  type: $component\n  digits: 2"},
    ),
    "advantage": Kit(
        kind="advantage",
        body=ADVANTAGE,
        check=ADVANTAGE_CHECK,
        imports="import torch\n",
        function=True,
        parts={"algorithm": "\n  algorithm:\n    advantage: $component"},
    ),
    "loss": Kit(
        kind="loss",
        body=LOSS,
        check=LOSS_CHECK,
        imports="import torch\n",
        function=True,
        parts={"algorithm": "\n  algorithm:\n    loss: $component"},
    ),
    "body": Kit(
        kind="body",
        body=more.BODY,
        check=more.BODY_CHECK,
        example=more.NETWORK_EXAMPLE,
        parts={
            "trainer": "vanilla_ppo",
            "section": "\n\nagents: {agent: {body: {type: $component, width: 32}}}",
        },
        short=ITERATIONS,
    ),
    "protocol": Kit(
        kind="protocol",
        body=more.PROTOCOL,
        check=more.PROTOCOL_CHECK,
        example=more.PROTOCOL_EXAMPLE,
    ),
    "scorer": Kit(
        kind="scorer",
        body=more.SCORER,
        check=more.SCORER_CHECK,
        example=more.RED_TEAM_EXAMPLE,
        short=', "trainer.training_steps=2"',
    ),
    "inference_service": Kit(
        kind="inference_service",
        body=more.INFERENCE_SERVICE,
        check=more.INFERENCE_CHECK,
        imports="import torch\n",
        names="Letters",
        example=more.LETTERS_EXAMPLE,
        parts={"trainer": "\ntrainer: evaluation"},
        short="",
    ),
    "train_service": Kit(
        kind="train_service",
        body=more.TRAIN_SERVICE,
        check=more.TRAIN_CHECK,
        example=more.LETTERS_EXAMPLE,
        parts={
            "train": "\n    train: $component",
            "trainer": "\ntrainer: {type: self_hosted_grpo, total_train_steps: 50}",
        },
        sampler=True,
    ),
    "fine_tune_service": Kit(
        kind="fine_tune_service",
        body=more.FINE_TUNE_SERVICE,
        check=more.FINE_TUNE_CHECK,
        example=more.FINE_TUNE_EXAMPLE,
        short=', "text_rl.num_iterations=2"',
        sampler=True,
        data={"claims.jsonl": more.CLAIMS, "prompts/verifier.txt": more.PROMPT},
    ),
    "tracker": Kit(
        kind="tracker",
        body=TRACKER,
        check=TRACKER_CHECK,
        standard="import csv\n",
        parts={"trackers": "\n\ntrackers:\n  - $component"},
    ),
    "hook": Kit(
        kind=None,
        body=more.HOOK,
        check=more.HOOK_CHECK,
        names="FILE",
    ),
}
