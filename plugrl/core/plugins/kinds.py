"""The table of kinds of components, and the record that describes one component."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Literal

from plugrl.core.errors import PlugrlDeprecationWarning

#: Name of plugrl's own distribution: its components are the built-in ones.
OWN = "plugrl"

Source = Literal["entry point", "decorator", "hook", "path", "argument"]
#: The source of what a Python program gives as an argument: it lives in its process alone.
ARGUMENT: Final = "argument"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One row of the table of kinds.

    Attributes:
        name: the name in configurations and messages.
        plural: the name of its entry-point group.
        summary: what a component of the kind does.
        stable: whether its contract stays unchanged over minor versions.
        base: the ``module:Class`` that every component subclasses; None: components are functions.
        adapter: the ``module:function`` that turns a function into such a class, if functions are
            allowed too.
        form: the signature to implement and its result: R trajectories, B rows, T tokens a row.
        former: the name of the kind in earlier versions, which is accepted with a warning.
    """

    name: str
    plural: str
    summary: str
    stable: bool = False
    base: str | None = None
    adapter: str | None = None
    form: str = ""
    former: str | None = None

    @property
    def group(self) -> str:
        """The entry-point group in which packages declare components of this kind."""
        return f"{OWN}.{self.plural}"

    @property
    def former_group(self) -> str | None:
        """The entry-point group of earlier versions."""
        return self.former and f"{OWN}.{self.former}s"


_ROWS = (
    Kind(
        name="trainer",
        plural="trainers",
        summary="a training algorithm",
        stable=True,
        base="plugrl.core.trainer:Trainer",
        form="train_step(self, trajectories) -> {metric: number}",
    ),
    Kind(
        name="evaluator",
        plural="evaluators",
        summary="gives an episode its reward",
        stable=True,
        base="plugrl.core.text.evaluate.evaluator:Evaluator",
        adapter="plugrl.core.text.evaluate.function_evaluator:as_evaluator",
        form="evaluate(self, data, evaluation_target) -> EvaluationRunResult; or f(data, target); "
        "or f(prompts, completions, **columns) -> a list of rewards",
    ),
    Kind(
        name="rollout_worker",
        plural="rollout_workers",
        summary="turns a data item into trajectories",
        stable=True,
        base="plugrl.core.text.rollout.worker:RolloutWorker",
        adapter="plugrl.core.text.rollout.function_worker:as_worker",
        form="rollout(self, task) -> Trajectory or a list of them; or f(task), f(task, worker)",
    ),
    Kind(
        name="scenario",
        plural="scenarios",
        summary="a task: its data or environment",
        stable=True,
        base="plugrl.core.scenario:Scenario",
        form="build(self, seed) -> ScenarioInstance",
    ),
    Kind(
        name="advantage",
        plural="advantages",
        summary="rewards to advantages, a function",
        form="f(rewards[R], group[R], run[R], valid[R], batch, config) -> [R] or [R, T]",
    ),
    Kind(
        name="loss",
        plural="losses",
        summary="log-probabilities to a loss, a function",
        form="f(logp[B, T], batch, config) -> (per_token[B, T], {name: (sum, count)})",
    ),
    Kind(
        name="body",
        plural="bodies",
        summary="the network of an agent below its heads",
        base="plugrl.core.tensordict.agents.parts:Body",
        form="build(self, shape) -> (module from [..., *shape] to [..., F], F)",
    ),
    Kind(
        name="protocol",
        plural="protocols",
        summary="who speaks, who decides, and what it is worth",
        base="plugrl.core.protocol.protocol:Protocol",
        form="turns(self) -> [{agent: channels}, ...]",
    ),
    Kind(
        name="parser",
        plural="parsers",
        summary="finds tool calls and reasoning in a reply",
        base="plugrl.core.text.agents.parsing:Parser",
        form="parse(self, text) -> ParsedReply",
    ),
    Kind(
        name="sandbox",
        plural="sandboxes",
        summary="runs programs that nobody has read",
        base="plugrl.core.sandboxes:Sandbox",
        form="run(self, job, limits) -> ProgramOutcome; and fault",
    ),
    Kind(
        name="inference_service",
        plural="inference_services",
        summary="answers requests to a model",
        base="plugrl.core.text.inference.services:InferenceService",
        form="generate(self, requests) -> one Completion a request; and load, tokenizer",
    ),
    Kind(
        name="executor",
        plural="executors",
        summary="where the processes of rollout workers live",
        base="plugrl.core.text.rollout.processes.executor:Executor",
        form="start(self, name) -> WorkerHandle; and prepare, is_outdated, close, as needed",
    ),
    Kind(
        name="train_service",
        plural="train_services",
        summary="holds the trained weights and their optimizer",
        base="plugrl.core.text.inference.services:BaseTrainService",
        form="forward_backward(self, batch, loss) -> {name: (sum, count)}; and optimizer_step",
    ),
    Kind(
        name="fine_tune_service",
        plural="fine_tune_services",
        summary="trains a model by jobs, on examples as a whole",
        base="plugrl.core.text.jobs.fine_tuning:FineTuneService",
        form="create(self, name, examples, base) -> job; and find, status, cancel",
    ),
    Kind(
        name="hub",
        plural="hubs",
        summary="where models and data sets are published",
        base="plugrl.core.hub.hub:Hub",
        form="model(self, name, revision, *, weights) -> Snapshot; and data sets, files, push",
    ),
    Kind(
        name="data_map",
        plural="data_maps",
        summary="a row of data to problems, a function",
        form="f(row) -> a row, a list of rows, or None",
    ),
    Kind(
        name="tracker",
        plural="trackers",
        summary="where metrics go",
        base="plugrl.core.run.tracking.tracker:Tracker",
        form="log(self, step, metrics) -> None; and start, sample, finish, as needed",
    ),
    Kind(
        name="launcher",
        plural="launchers",
        summary="starts runs on a cluster",
        base="plugrl.core.launch.launcher:Launcher",
        form="preview(self, job) -> text; start(self, job) -> name; and jobs, logs, stop",
    ),
    Kind(
        name="searcher",
        plural="searchers",
        summary="proposes the values of a sweep",
        base="plugrl.core.searcher:Searcher",
        form="ask(self) -> Trial; report(self, number, step, value) -> whether it ends; and open, "
        "trials, tell",
    ),
    Kind(
        name="dialogue_environment",
        plural="dialogue_environments",
        summary="grows the rollout trees of red-teaming",
        base="plugrl.core.text.dialogue.environment:Environment",
        form="rollouts(self, seeds) -> one RolloutTree a seed",
        former="environment",
    ),
    Kind(
        name="harness_algorithm",
        plural="harness_algorithms",
        summary="rollout trees to a loss",
        base="plugrl.core.text.dialogue.algorithm:HarnessAlgorithm",
        form="flatten(self, tree) -> steps; step(self, batch) -> (loss, {name: number})",
    ),
    Kind(
        name="scorer",
        plural="scorers",
        summary="how far dialogues went wrong",
        base="plugrl.core.text.dialogue.scorer:Scorer",
        adapter="plugrl.core.text.dialogue.scorer:as_scorer",
        form="score(self, dialogues) -> a Score or number each; or f(dialogue) -> number",
    ),
)

#: All kinds of components, by name. A new kind is one more row.
KINDS: dict[str, Kind] = {row.name: row for row in _ROWS}

#: Kinds by the names and plurals that they had in earlier versions.
FORMER_KINDS: dict[str, str] = {
    former: row.name for row in _ROWS if row.former for former in (row.former, f"{row.former}s")
}

#: The kind of each entry-point group that holds components, groups of earlier versions last.
KIND_OF_GROUP: dict[str, str] = {row.group: row.name for row in _ROWS} | {
    row.former_group: row.name for row in _ROWS if row.former_group
}


def current_kind(name: str) -> str:
    """The current name of a kind; a name of an earlier version is translated with a warning."""
    if name not in FORMER_KINDS:
        return name
    new = KINDS[FORMER_KINDS[name]]
    warnings.warn(
        f"the kind {name!r} is now called {new.name!r}; write {new.name!r}",
        PlugrlDeprecationWarning,
        stacklevel=3,
    )
    return new.name


def former_group_warning(group: str) -> str | None:
    """The message about an entry-point group of an earlier version; None: the group is current."""
    row = KINDS[KIND_OF_GROUP[group]] if group in KIND_OF_GROUP else None
    if row is None or group != row.former_group:
        return None
    return (
        f"the group [{group}] is now called [{row.group}]; rename it in setup.cfg or pyproject.toml"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Describes one component so that any process can find it.

    A record holds plain strings only. It is sent to worker processes instead of the class, and
    stored in ``plugins.lock.json``.

    Attributes:
        kind: a key of :data:`KINDS`.
        name: the name that a configuration writes as ``type``.
        target: ``package.module:Attribute``.
        distribution: the installed package that provides it; ``None`` for user code.
        version: the version of that package.
        file: the Python file, for user code that is not an importable module.
        source: how it was found.
    """

    kind: str
    name: str
    target: str
    distribution: str | None = None
    version: str | None = None
    file: str | None = None
    source: Source = "entry point"

    @property
    def reference(self) -> str:
        """The spelling that is never ambiguous: ``distribution/name``, or the bare name."""
        return f"{self.distribution}/{self.name}" if self.distribution else self.name

    @property
    def provider(self) -> str:
        """Who provides the component, for messages: ``rl-x 1.0``, a file or ``this process``."""
        if self.distribution:
            return f"{self.distribution} {self.version or ''}".rstrip()
        return self.file or "this process"

    @property
    def place(self) -> str:
        """Where it is defined: the target, with the file in place of the module for user code."""
        return f"{self.file}:{self.target.partition(':')[2]}" if self.file else self.target

    def to_json(self) -> dict[str, Any]:
        """The record as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Record:
        """The record that :meth:`to_json` wrote; keys of later versions are ignored."""
        known = {field.name for field in fields(cls)}
        values = {key: value for key, value in data.items() if key in known}
        return cls(**values | {"kind": FORMER_KINDS.get(values["kind"], values["kind"])})
