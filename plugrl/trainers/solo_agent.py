"""``solo_agent``: each agent learns the labels of a task alone, before or instead of talking."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import nn
from torch.nn import functional

from plugrl.core.config.schemas.schema import component, described
from plugrl.core.errors import ConfigError
from plugrl.core.tensordict.agents.agent import Agent
from plugrl.core.tensordict.agents.config import AgentConfig
from plugrl.core.tensordict.agents.loading import learning_state, restore_learning, restore_policies
from plugrl.core.tensordict.agents.preflight import trained_of
from plugrl.core.tensordict.learn.learner import Learner
from plugrl.core.tensordict.learn.optimizer import AgentOptimizer, ParameterGroup
from plugrl.core.tensordict.seeding import generator_of
from plugrl.core.tensordict.trainer import IterationContext, TensorDictTrainer, attach_progress_bar
from plugrl.core.trainer import TrainingResult

if TYPE_CHECKING:
    from plugrl.core.tensordict.environment.labelled_dataset import Labelled
    from plugrl.core.tensordict.environment.layout import Layout

logger = logging.getLogger(__name__)
#: Items that are evaluated at a time.
_EVALUATION_BATCH = 4096


@dataclass
class SoloAgentConfig:
    """Supervised training of each agent on the labels."""

    num_epochs: int = described(100, "passes over the training items", at_least=0, at_most=10**9)
    batch_size: int = described(256, "items of one optimizer step", at_least=1, at_most=10**6)
    learning_rate: float = described(1e-3, "learning rate of Adam", above=0, at_most=10)
    body_lr_factor_override: bool = described(
        False, "let bodies learn at the full rate, whatever agents.NAME.body_lr_factor says"
    )
    max_grad_norm: float | None = described(
        None, "largest gradient norm of an agent; null: any", above=0, at_most=1e9
    )
    test_size: float = described(
        0.2,
        "part of the training items that is held out, to be evaluated on after each epoch",
        at_least=0,
        below=1,
    )


class LabelLoss(nn.Module):
    """Cross-entropy of an agent's solo head on rows with ``observation`` and ``label``."""

    def __init__(self, agent: Agent) -> None:
        super().__init__()
        self.agent = agent

    def forward(self, rows: TensorDictBase) -> dict[str, torch.Tensor]:
        """``loss_label``, and the ``accuracy`` on the rows."""
        logits, labels = self.agent.label_logits(rows["observation"]), rows["label"]
        accuracy = (logits.detach().argmax(-1) == labels).float().mean()
        return {"loss_label": functional.cross_entropy(logits, labels), "accuracy": accuracy}


class SoloAgentTrainer(TensorDictTrainer):
    """Cross-entropy on the label, through a head of its own above each agent's body.

    Bodies learn too. Their weights can begin a run of reinforcement learning, by
    ``agents.NAME.load_from`` or as the next phase of a ``sequence``.
    """

    sections: ClassVar[Mapping[str, Any]] = {
        "scenario": component("scenario", help="the task, one with labels"),
        "agents": dict[str, AgentConfig],
        "solo_agent": SoloAgentConfig,
    }
    trainer_type: ClassVar[str] = "solo_agent"
    #: Sections with which the conformance kit trains it.
    conformance: ClassVar[Mapping[str, Any]] = {
        "models": None,
        "data": None,
        "rollout_worker": None,
        "validate": None,
        "scenario": {"type": "image_classification", "num_envs": 2, "max_train_size": 64},
        "solo_agent": {"num_epochs": 2, "batch_size": 16},
        "trainer": {"total_train_steps": None},
    }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._epoch = -1
        self._last_metrics: dict[str, float] = {}
        self._learners: dict[str, Learner] = {}

    @classmethod
    def check_actions(cls, agent: Agent) -> None:
        """Refuse an agent that sees no items with labels."""
        labelled_layout(agent)

    def train(self) -> TrainingResult:
        """Run all epochs and the test; after a resume, the remaining ones."""
        with closing(self.scenario_instance), ExitStack() as stack:
            self._set_up()
            self._build_train_context(stack)
            self._run_train_loop()
        return TrainingResult(steps=self._epoch, metrics=dict(self._last_metrics))

    @property
    def complete(self) -> bool:
        """Whether the last epoch has ended."""
        return self._epoch >= self.hyper_params.solo_agent.num_epochs

    # -- building ---------------------------------------------------------------------------

    def _set_up(self) -> None:
        seed, section = self.hyper_params.seed, self.hyper_params.solo_agent
        labelled = self.scenario_instance.labelled("train")
        train, held_out = split_of(len(labelled), section.test_size, seed)
        self._train_items, self._held_out = labelled.take(train), labelled.take(held_out)
        self._policies = self._build_policies()
        self._orders = {name: generator_of(seed, "order", name) for name in self._policies.policies}
        for name, agent in trained_of(self._policies).items():
            optimizer = AgentOptimizer(self._groups(agent))
            loss = LabelLoss(agent)
            self._learners[name] = Learner(agent, loss, None, optimizer, section.max_grad_norm)
        if self._pending_state is None:
            return
        policies = self._policies.policies
        restore_learning(self._pending_state, policies, self._learners, self._orders)
        self._pending_state = None

    def _groups(self, agent: Agent) -> list[ParameterGroup]:
        section = self.hyper_params.solo_agent
        factor = float(agent.config["agent_lr_factor"]["actor"])
        return [
            ParameterGroup(
                agent.name,
                group.part,
                group.parameters,
                section.learning_rate
                * (factor if section.body_lr_factor_override else group.lr_factor),
            )
            for group in agent.parameter_groups()
        ]

    # -- training ---------------------------------------------------------------------------

    @attach_progress_bar(lambda self: self.hyper_params.solo_agent.num_epochs)
    def _run_train_loop(self, iteration_context: IterationContext) -> None:
        """Run the epochs that are left; the last one ends with the test."""
        iteration_context.set_description("Training alone")
        total = self.hyper_params.solo_agent.num_epochs
        if self._epoch < 0:
            self._end_epoch(0, {})
        self._rows = {
            name: TensorDict(
                {
                    "observation": labelled_observation(learner.agent, self._train_items),
                    "label": torch.from_numpy(np.asarray(self._train_items.labels, np.int64)),
                },
                [len(self._train_items)],
            ).to(self.device)
            for name, learner in self._learners.items()
        }
        while self._epoch < total:
            epoch = self._epoch + 1
            metrics = self._run_epoch(epoch) | self._scores(self._held_out, "validation")
            # Of a phase it would be compared with scores of another kind.
            if "validation/accuracy" in metrics and not self.run.phase_number:
                self.run.report_score(metrics["validation/accuracy"], "validation/accuracy")
            if epoch == total:
                metrics |= self._run_test_loop()
            self._end_epoch(epoch, metrics)
            shown = metrics.get("validation/accuracy", metrics.get("train/accuracy"))
            iteration_context.step(epoch, **({} if shown is None else {"accuracy": shown}))

    def _run_epoch(self, epoch: int) -> dict[str, float]:
        """Pass over the training items once; give the metrics."""
        metrics: dict[str, float] = {}
        guards = self.run.guards
        with self.run.phase("train"):
            for name, learner in self._learners.items():
                if not learner.agent.is_updated(epoch):
                    continue
                learner.agent.train()
                report = learner.learn(
                    self._rows[name],
                    self._orders[name],
                    epochs=1,
                    minibatch_size=self.hyper_params.solo_agent.batch_size,
                    not_finite=lambda what, value: guards.check_finite(what, value, step=epoch),
                )
                prefix = "train" if len(self._learners) == 1 else f"train/{name}"
                metrics |= {f"{prefix}/{key}": value for key, value in report.items()}
        return metrics

    @attach_progress_bar(lambda self: len(self._learners))
    def _run_test_loop(self, iteration_context: IterationContext) -> dict[str, float]:
        """Evaluate on the items that are kept for tests."""
        iteration_context.set_description("Testing")
        with ExitStack() as stack:
            self._build_test_context(stack)
            items = self.scenario_instance.labelled("test")
            return self._scores(items, "test", iteration_context)

    def _scores(
        self, items: Labelled, prefix: str, iteration_context: IterationContext | None = None
    ) -> dict[str, float]:
        """Metrics of each agent that has a solo head on items, and their mean accuracy."""
        metrics: dict[str, float] = {}
        heads = {n: a for n, a in self._policies.policies.items() if a.solo_head is not None}
        for number, (name, agent) in enumerate(heads.items() if len(items) else (), start=1):
            agent.eval()
            scores = accuracies(agent, items)
            metrics |= {f"{prefix}/{name}/{key}": value for key, value in scores.items()}
            if iteration_context is not None:
                iteration_context.step(number)
        means = [metrics[f"{prefix}/{name}/accuracy"] for name in heads if metrics]
        return metrics | ({f"{prefix}/accuracy": float(np.mean(means))} if means else {})

    def evaluate(self) -> dict[str, float]:
        """How often each agent of the loaded state is right about the test items."""
        with closing(self.scenario_instance) as instance:
            self._policies = self._build_policies()
            if self._pending_state is not None:
                restore_policies(self._policies.policies, self._pending_state["policies"])
            return self._scores(instance.labelled("test"), "validation")

    # -- state ------------------------------------------------------------------------------

    def _end_epoch(self, epoch: int, metrics: dict[str, float]) -> None:
        self._epoch = epoch
        self._last_metrics |= metrics
        self.run.end_step(epoch, metrics)

    def state_dict(self) -> dict[str, Any]:
        """Policies, optimizers, the orders of items and the epoch."""
        return {
            "epoch": self._epoch,
            "last_metrics": dict(self._last_metrics),
            **learning_state(self._policies.policies, self._learners, self._orders),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave; it is applied when training goes on."""
        self._pending_state = state
        self._epoch = state["epoch"]
        self._last_metrics = dict(state["last_metrics"])


def split_of(count: int, test_size: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The items to train on and those held out, which depend on the seed alone.

    Args:
        count: of all items.
        test_size: part of them that is held out, rounded down.
        seed: of the run.
    """
    shuffled = generator_of(seed, "split").permutation(count)
    held_out = int(count * test_size)
    return np.sort(shuffled[held_out:]), np.sort(shuffled[:held_out])


def labelled_layout(agent: Agent, items: Labelled | None = None) -> Layout:
    """The parts of what ``agent`` sees.

    Raises:
        ConfigError: there are none, or none of the arrays of ``items`` is among them.
    """
    layout = agent.spaces.layout
    if layout is None or (items is not None and not set(layout.fields) & set(items.arrays)):
        raise ConfigError(
            f"agent {agent.name!r} sees no items that have labels; take a scenario whose agents "
            "do, such as {type: image_classification}"
        )
    return layout


def labelled_observation(agent: Agent, items: Labelled) -> torch.Tensor:
    """What ``agent`` sees of items about which nothing was said yet, ``[M, size]``.

    Raises:
        ConfigError: it sees nothing of them.
    """
    layout = labelled_layout(agent, items)
    fields = {
        name: items.arrays[name]
        if name in items.arrays
        else np.broadcast_to(np.float32(0), (len(items), *shape))
        for name, shape in layout.fields.items()
    }
    return torch.from_numpy(layout.pack(fields))


@torch.no_grad()
def accuracies(agent: Agent, items: Labelled) -> dict[str, float]:
    """``accuracy`` and ``loss`` of an agent, and ``accuracy/GROUP`` of each group that has items.

    Args:
        agent: with a solo head.
        items: at least one.
    """
    device = next(agent.parameters()).device
    labels = torch.from_numpy(np.asarray(items.labels, np.int64))
    logits = torch.cat(
        [
            agent.label_logits(rows.to(device)).cpu()
            for rows in labelled_observation(agent, items).split(_EVALUATION_BATCH)
        ]
    )
    right = (logits.argmax(-1) == labels).numpy()
    metrics = {
        "accuracy": float(right.mean()),
        "loss": float(functional.cross_entropy(logits, labels)),
    }
    for number, name in enumerate(items.group_names):
        if items.groups is not None and (members := items.groups == number).any():
            metrics[f"accuracy/{name}"] = float(right[members].mean())
    return metrics
