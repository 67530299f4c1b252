"""``TensorDictTrainer``: trainers of small networks that run here, and their loops."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch

from plugrl.core.config.pick import shown_name
from plugrl.core.config.view import ExperimentSettings, HyperParameters, is_validated
from plugrl.core.errors import ConfigError, PlugrlError
from plugrl.core.factory import Factory
from plugrl.core.plugins.registry import default_registry
from plugrl.core.tensordict.agents.building import build_agents
from plugrl.core.tensordict.agents.distributions.choice import Squash
from plugrl.core.tensordict.agents.loading import TrainedWeights
from plugrl.core.tensordict.agents.preflight import agent_faults
from plugrl.core.tensordict.metric_names import metric_fault
from plugrl.core.tensordict.sections import TENSORDICT
from plugrl.core.tensordict.standalone import StandaloneRun, default_hyper_params
from plugrl.core.trainer import Trainer

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight
    from plugrl.core.run.progress import Bar
    from plugrl.core.run.run import Run
    from plugrl.core.scenario import ScenarioInstance
    from plugrl.core.tensordict.agents.agent import Agent, Policies
    from plugrl.core.tensordict.environment.vector_environment import VectorEnvironment
    from plugrl.core.trainer import TrainerContext


Result = TypeVar("Result")

_COUNT = "plugrl_num_iterations"


class IterationContext:
    """What a loop tells of its progress.

    Args:
        trainer: whose run shows the bar.
        num_iterations: how many iterations the loop has in all.
    """

    def __init__(self, trainer: Trainer, num_iterations: int) -> None:
        self._trainer = trainer
        self.num_iterations = num_iterations
        self._description = "Running"
        self._done = 0
        self._bar: Bar | None = None

    def set_description(self, description: str) -> None:
        """Name the bar; before the first :meth:`step`."""
        self._description = description

    def step(self, completed: int | None = None, **numbers: float | int | str) -> None:
        """One iteration is done; after a resume ``completed`` says how many are."""
        self._done = self._done + 1 if completed is None else completed
        if self._bar is None:
            self._bar = self._trainer.run.progress(self._description, self.num_iterations)
        self._bar.update(self._done, **numbers)

    def close(self) -> None:
        """Take the bar down."""
        if self._bar is not None:
            self._bar.close()


def attach_progress_bar(
    count: Callable[[Any], int],
) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Give a method of a trainer a progress bar, as the keyword ``iteration_context``.

    Args:
        count: called with the trainer; how many iterations the method will run.
    """

    def attach(loop: Callable[..., Result]) -> Callable[..., Result]:
        @functools.wraps(loop)
        def wrapped(self: Any, *args: Any, **kwargs: Any) -> Result:
            with closing(IterationContext(self, count(self))) as context:
                return loop(self, *args, iteration_context=context, **kwargs)

        setattr(wrapped, _COUNT, count)
        return wrapped

    return attach


def total_num_iterations(trainer: Any) -> int:
    """The iterations of all loops of a trainer that have a progress bar."""
    methods = (member for _, member in inspect.getmembers(type(trainer), inspect.isfunction))
    return sum(getattr(m, _COUNT)(trainer) for m in methods if hasattr(m, _COUNT))


class _UnbuiltAgents(Mapping[str, "Agent"]):
    """The networks by policy name, which are built when they are first asked for."""

    def __init__(self, build: Callable[[], Policies]) -> None:
        self._build = build
        self.built: Mapping[str, Agent] | None = None

    def _agents(self) -> Mapping[str, Agent]:
        if self.built is None:
            self.built = self._build().policies
        return self.built

    def __getitem__(self, name: str) -> Agent:
        return self._agents()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._agents())

    def __len__(self) -> int:
        return len(self._agents())


@dataclass
class TensorDictTrainerConfig:
    """Nothing: the sections ``rl``, ``agents`` and those of the algorithm say it all."""


class TensorDictTrainer(Trainer):
    """Base class of trainers of small networks; subclass it to write a whole training loop.

    :attr:`agents` are built when they are first asked for, with the parts that
    :attr:`trainer_type` names. ``train`` usually runs a training loop and a test loop, each in its
    own context::

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
    #: ``solo_agent`` gives one body and a head that guesses labels. For parts of another kind
    #: override :meth:`_agent_parts`.
    trainer_type: ClassVar[str] = "rl"
    #: Whether agents have a value head.
    use_critic: ClassVar[bool] = True
    #: Whether continuous actions are squashed into their bounds by a tanh.
    squash_actions: ClassVar[Squash] = False
    #: A state that was loaded and is yet to be applied.
    _pending_state: Mapping[str, Any] | None = None

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
        if scenario_instance is not None:
            scenario_instance.agents = _UnbuiltAgents(self._build_policies)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = cls._agent_parts is not TensorDictTrainer._agent_parts
        if cls.trainer_type not in TRAINER_TYPES and not own:
            raise TypeError(
                f"{cls.__name__}.trainer_type is {cls.trainer_type!r}; write "
                f"{' or '.join(TRAINER_TYPES)}, or a method _agent_parts(self) that gives the parts"
            )

    def bind(self, context: TrainerContext) -> None:
        """Take the collaborators of a run, whose task has the networks from now on."""
        super().bind(context)
        if context.scenario_instance is not None:
            context.scenario_instance.agents = _UnbuiltAgents(self._build_policies)

    @classmethod
    def known_agents(cls, check: Preflight) -> Collection[str] | None:
        """The agents of the environments; None: the task has none, or cannot be built."""
        scenario = check.component("scenario")
        if scenario is None:
            return None
        try:
            spaces: Mapping[str, Any] | None = scenario(check.root["scenario"]).preview_agents(
                int(check.root.seed)
            )
        except PlugrlError:
            return None
        return spaces

    @classmethod
    def metric_fault(cls, check: Preflight, name: str) -> str | None:
        """Why neither iterations nor evaluations give a metric of this name; None: they may."""
        agents = (cls.known_agents(check) or ()) if name.count("/") > 1 else ()
        scenario = check.component("scenario")
        known = str(getattr(scenario, "__module__", "")).startswith("plugrl.")
        closed = cls.__module__.startswith("plugrl.")
        return metric_fault(name, agents, closed=closed, known_environment=known)

    @classmethod
    def preflight(cls, check: Preflight) -> list[Finding]:
        """A task without environments, agents that do not fit it, and missing runs to load from."""
        from plugrl.core.tensordict.agents.loading import loading_faults

        faults = loading_faults(
            check.root.get("agents") or {},
            check.root.experiment_name,
            check.validated.settings.runs_folder,
        )
        if check.root.get("scenario") is not None:
            return [*faults, *agent_faults(check, cls)]
        example = "scenario: {type: gymnasium, id: CartPole-v1}"
        missing = f"is missing; {shown_name(check.section, 'trainer')} needs one, such as {example}"
        return [("scenario", missing), *faults]

    @classmethod
    def check_actions(cls, agent: Agent) -> None:
        """Refuse an agent whose actions are of a kind that cannot be learned in this way.

        Raises:
            ConfigError: they are; the text names a trainer that can.
        """

    @classmethod
    def turns_fault(cls, params: Any) -> str | None:
        """Why it cannot learn where agents take turns, and what can; None: it can.

        Args:
            params: the sections of the configuration, such as ``params.rl``.
        """
        return None

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
        if not is_validated(self._given_hyper_params):
            self._given_hyper_params = default_hyper_params(
                self.sections, self._given_hyper_params or {}
            )
        return HyperParameters(self._given_hyper_params or {}, checked=True)

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

    def _build_policies(self, environment: VectorEnvironment | None = None) -> Policies:
        """Build the networks of all policies, with the weights that they begin with.

        Args:
            environment: whose agents they are; None: those of the training environments.

        Raises:
            ConfigError: the section ``agents`` does not fit them, or the task has no environments.
        """
        environment = (
            self.scenario_instance.train_environment if environment is None else environment
        )
        params = self.hyper_params
        factory = Factory(default_registry()) if self._context is None else self._context.factory
        policies = build_agents(
            environment.spaces,
            params.agents,
            factory,
            seed=params.seed,
            device=self.device,
            # What goes on brings its weights itself.
            load=self._pending_state is None,
            runs_folder=self.settings.get("runs_folder", "runs"),
            **self._agent_parts(),
        )
        if self._pending_state is None:
            self._receive(policies)
        self.scenario_instance.agents = policies.policies
        return policies

    def _agent_parts(self) -> dict[str, Any]:
        """Which parts :attr:`trainer_type` names, as arguments of ``build_agents``."""
        return TRAINER_TYPES[self.trainer_type](self)

    def export_weights(self) -> TrainedWeights | None:
        """The weights of all policies, for the next phase of a sequence."""
        agents = self.agents
        if isinstance(agents, _UnbuiltAgents) and agents.built is None:
            return None
        weights = {name: dict(agent.state_dict()) for name, agent in agents.items()}
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


def _policy_parts(trainer: TensorDictTrainer) -> dict[str, Any]:
    return {
        "shared_body": trainer.hyper_params.rl.use_shared_body,
        "critic": trainer.use_critic,
        "squash": trainer.squash_actions,
    }


def _label_parts(trainer: TensorDictTrainer) -> dict[str, Any]:
    labels = trainer.scenario_instance.labelled("train").labels
    return {"labels": max(2, int(labels.max(initial=0)) + 1)}


#: What agents are built with, by ``trainer_type``.
TRAINER_TYPES: Mapping[str, Callable[[TensorDictTrainer], dict[str, Any]]] = {
    "rl": _policy_parts,
    "solo_agent": _label_parts,
}
