"""``TensorDictTrainer``: trainers whose agents are small networks that run here."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from plugrl.core.config.view import ConfigView, ExperimentSettings, HyperParameters
from plugrl.core.errors import ConfigError
from plugrl.core.run.saved_state import refuse_state
from plugrl.core.tensordict.agents.distributions.choice import Squash
from plugrl.core.tensordict.agents.loading import TrainedWeights
from plugrl.core.tensordict.progress import total_num_iterations
from plugrl.core.tensordict.sections import TENSORDICT
from plugrl.core.tensordict.standalone import StandaloneRun, default_hyper_params
from plugrl.core.trainer import Trainer

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight
    from plugrl.core.run.run import Run
    from plugrl.core.scenario import ScenarioInstance
    from plugrl.core.tensordict.agents.agent import Agent, Policies


@dataclass
class TensorDictTrainerConfig:
    """Nothing: the sections ``rl``, ``agents`` and those of the algorithm say it all."""


class TensorDictTrainer(Trainer):
    """Base class of trainers of small networks; subclass it to write a whole training loop.

    ``train`` usually runs a training loop and a test loop, each in its own context::

        with ExitStack() as stack:
            self._build_train_context(stack)
            self._run_train_loop()

    Args:
        config: the ``trainer`` section.
        scenario_instance: the task; by default that of the run.
        settings: device and threads; by default those of the run.
        hyper_params: sections such as ``rl``; by default those of the run. With the task given,
            ``train`` needs no run and writes nothing.
    """

    Config: ClassVar[type] = TensorDictTrainerConfig
    sections: ClassVar[Mapping[str, Any]] = TENSORDICT
    #: Which parts agents are built with: ``rl`` gives policy heads and, for a critic, value heads.
    #: ``solo_agent`` gives one body and a head that guesses labels.
    trainer_type: ClassVar[str] = "rl"
    #: Whether agents have a value head.
    use_critic: ClassVar[bool] = True
    #: Whether continuous actions are squashed into their bounds by a tanh.
    squash_actions: ClassVar[Squash] = False

    def __init__(
        self,
        config: Any = None,
        scenario_instance: ScenarioInstance | None = None,
        settings: Mapping[str, Any] | None = None,
        *,
        hyper_params: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__({} if config is None else config)
        self._given_instance = scenario_instance
        self._given_settings = settings
        self._given_hyper_params = hyper_params
        self._standalone: StandaloneRun | None = None
        self._handed: TrainedWeights | None = None

    @classmethod
    def preflight(cls, check: Preflight) -> list[Finding]:
        """A task without environments, and runs to load from that are not there."""
        from plugrl.core.tensordict.agents.loading import loading_faults

        faults = loading_faults(
            check.root.get("agents") or {},
            check.root.experiment_name,
            check.validated.settings.runs_folder,
        )
        if check.root.get("scenario") is not None:
            return list(faults)
        example = "scenario: {type: gymnasium, id: CartPole-v1}"
        missing = f"is missing; {check.section.type} needs one, such as {example}"
        return [("scenario", missing), *faults]

    @classmethod
    def check_actions(cls, agent: Agent) -> None:
        """Refuse an agent whose actions are of a kind that cannot be learned in this way.

        Raises:
            ConfigError: they are; the text names a trainer that can.
        """

    @property
    def scenario_instance(self) -> ScenarioInstance:
        """The task.

        Raises:
            UsageError: there is neither a run nor a task given.
            ConfigError: the run has no scenario.
        """
        if self._given_instance is not None:
            return self._given_instance
        instance = self._bound("scenario_instance").scenario_instance
        if instance is None:
            raise ConfigError(
                "scenario is missing; give one, such as {type: gymnasium, id: CartPole-v1}"
            )
        return instance

    @property
    def hyper_params(self) -> HyperParameters:
        """The sections of the experiment; without a run those given, or their defaults."""
        if self._context is not None:
            return self._context.hyper_params
        if not isinstance(self._given_hyper_params, ConfigView):
            self._given_hyper_params = default_hyper_params(
                self.sections, self._given_hyper_params or {}
            )
        return HyperParameters(self._given_hyper_params, checked=True)

    @property
    def settings(self) -> ExperimentSettings:
        """Device and threads: what does not change the algorithm."""
        if self._context is not None:
            return self._context.settings
        return ExperimentSettings({"device": "cpu", **(self._given_settings or {})}, checked=True)

    @property
    def run(self) -> Run:
        """The run; without one a stand-in that keeps the metrics in memory."""
        if self._context is not None or self._given_instance is None:
            return self._bound("run").run
        if self._standalone is None:
            self._standalone = StandaloneRun()
        return self._standalone  # type: ignore[return-value]

    @property
    def device(self) -> torch.device:
        """Where the networks are."""
        return torch.device(self.settings.device)

    @property
    def agents(self) -> Mapping[str, Agent]:
        """The networks by policy name."""
        return self.scenario_instance.agents

    def export_weights(self) -> TrainedWeights | None:
        """The weights of all policies, for the next phase of a sequence."""
        weights = {name: dict(agent.state_dict()) for name, agent in self.agents.items()}
        return TrainedWeights(weights) if any(weights.values()) else None

    def import_weights(self, handed: Any) -> None:
        """Begin with the weights of the phase before, part by part; see :meth:`_receive`.

        Raises:
            UsageError: the phase before trained no small networks.
        """
        if not isinstance(handed, TrainedWeights):
            super().import_weights(handed)
        self._handed = handed

    def _receive(self, policies: Policies) -> None:
        """Give new policies the parts that the phase before has trained under their names.

        A policy with a ``load_from`` of its own keeps what it loaded.

        Raises:
            ConfigError: the phase before has none of their parts, or one of another shape.
        """
        if self._handed is not None:
            self._handed.give(policies.policies)

    def get_total_num_iterations(self) -> int:
        """The iterations of all loops that have a progress bar."""
        return total_num_iterations(self)

    def _build_train_context(self, stack: ExitStack) -> list[Any]:
        """Enter what training needs: on the CPU, attention that can be differentiated twice."""
        if self.device.type != "cpu":
            return []
        from torch.nn.attention import SDPBackend, sdpa_kernel

        return [stack.enter_context(sdpa_kernel([SDPBackend.MATH]))]

    def _build_test_context(self, stack: ExitStack) -> list[Any]:
        """Enter what evaluation needs: nothing is differentiated."""
        return [stack.enter_context(torch.no_grad())]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state_dict`` gave; a subclass with a state overrides it."""
        refuse_state(self, state, otherwise=", or declare Capabilities(resume=False)")
