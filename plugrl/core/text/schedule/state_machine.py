"""When rollouts may begin and when weights move: the state machine of ``weight.sync_mode``.

It holds versions and counts, no tensors and no threads. The trainer reports each event; the machine
says what is allowed next, and refuses any transition that its table does not have. So the promises
about staleness can be tested without a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from plugrl.core.errors import UsageError

SyncMode = Literal["sync", "batch-async", "fully-async"]
InFlight = Literal["finish", "restart", "continue"]
SYNC: Final = "sync"
BATCH_ASYNC: Final = "batch-async"
FULLY_ASYNC: Final = "fully-async"
FINISH: Final = "finish"
RESTART: Final = "restart"
CONTINUE: Final = "continue"

#: Every state with what happens in it.
STATES: Final[dict[str, str]] = {
    "idle": "between two steps; the only state in which a checkpoint is saved",
    "collecting": "attempts run until a training batch is ready",
    "training": "the train service works on the batch; allowed attempts run meanwhile",
    "trained": "the step's update is made; nothing begins until it is decided what follows",
    "draining": "open attempts end, and none begins",
    "syncing": "the sampler takes the trained weights, and the probe compares both",
    "validating": "the sampler, which has the trained weights, answers held-out problems alone",
    "closed": "attempts that are open are given up; a checkpoint has them as prompts",
}


@dataclass(frozen=True, slots=True)
class Transition:
    """``event`` leads from ``state`` to ``target``, and is refused unless ``when`` holds."""

    state: str
    event: str
    target: str
    when: str = "always"


#: What may follow what. ``when`` is checked by :meth:`WeightStates.fault`.
TRANSITIONS: Final = (
    Transition("idle", "begin", "collecting"),
    Transition("collecting", "take", "training", "no token of the batch passes the bound"),
    Transition("training", "train", "trained"),
    Transition("trained", "drain", "draining", "attempts are open"),
    Transition("draining", "drained", "trained", "no attempt is open"),
    Transition("trained", "sync", "syncing", "a sync is due, and none is open that must not be"),
    Transition("syncing", "synced", "trained"),
    Transition("trained", "validate", "validating", "the weights are synced, and none is open"),
    Transition("validating", "validated", "trained"),
    Transition("trained", "end", "idle", "no sync is due"),
    *(Transition(state, "close", "closed") for state in STATES if state != "closed"),
)
_TABLE = {(entry.state, entry.event): entry for entry in TRANSITIONS}


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings that decide when rollouts begin and weights move.

    Attributes:
        mode: ``weight.sync_mode``.
        threshold: largest version gap of a trained token.
        in_flight: what happens to open attempts when weights move.
        batch_size: trajectories of a training batch, for ``fully-async``.
    """

    mode: SyncMode = SYNC
    threshold: int = 0
    in_flight: InFlight = FINISH
    batch_size: int = 1


@dataclass(slots=True)
class Versions:
    """Two versions of one model: of the trained weights, and of those that are sampled from."""

    train: int = 0
    sampler: int = 0

    @property
    def gap(self) -> int:
        """How far the sampler is behind."""
        return self.train - self.sampler


class WeightStates:
    """The state machine of one training.

    Args:
        rules: the settings.
        models: the trained models by name.

    Attributes:
        state: a key of :data:`STATES`.
        models: the versions of each model; whoever drives the machine keeps ``train`` true.
    """

    def __init__(self, rules: Rules, models: Mapping[str, Versions]) -> None:
        self.rules = rules
        self.models = dict(models)
        self.state = "idle"
        self._holds = False

    # -- events -----------------------------------------------------------------------------

    def begin(self, *, holds: bool = False) -> None:
        """A step begins; ``holds``: it ends with synced weights, as for a validation."""
        self._enter("begin")
        self._holds = holds

    def take(self, oldest: Mapping[str, int]) -> None:
        """A batch is trained; ``oldest`` has the oldest version of each model's trained tokens."""
        self._enter("take", oldest=oldest)

    def train(self, versions: Mapping[str, int]) -> None:
        """The update is made; models have these versions now."""
        self._enter("train")
        for name, version in versions.items():
            self.models[name].train = version

    def drain(self, open_attempts: int) -> None:
        """Wait for the open attempts to end."""
        self._enter("drain", open_attempts=open_attempts)

    def drained(self, open_attempts: int) -> None:
        """All open attempts have ended."""
        self._enter("drained", open_attempts=open_attempts)

    def sync(self, open_attempts: int) -> None:
        """The weights begin to move."""
        self._enter("sync", open_attempts=open_attempts)

    def synced(self) -> None:
        """The sampler has the trained weights."""
        self._enter("synced")
        for versions in self.models.values():
            versions.sampler = versions.train

    def validate(self, open_attempts: int) -> None:
        """A validation begins."""
        self._enter("validate", open_attempts=open_attempts)

    def validated(self) -> None:
        """The validation has ended."""
        self._enter("validated")

    def end(self) -> None:
        """The step ends."""
        self._enter("end")

    def close(self) -> None:
        """The training ends, or fails; calling it again does nothing."""
        if self.state != "closed":
            self._enter("close")

    def _enter(
        self,
        event: str,
        *,
        open_attempts: int = 0,
        oldest: Mapping[str, int] | None = None,
    ) -> None:
        entry = _TABLE.get((self.state, event))
        fault = (
            "the table has no such transition"
            if entry is None
            else self.fault(event, open_attempts=open_attempts, oldest=oldest or {})
        )
        if entry is None or fault:
            raise UsageError(f"weight sync: {event!r} in state {self.state!r}: {fault}")
        self.state = entry.target

    def fault(self, event: str, *, open_attempts: int, oldest: Mapping[str, int]) -> str:
        """Why ``event`` is refused, which the table allows here; "" when it is not."""
        if event == "take":
            for name, version in oldest.items():
                if version < self.bound(name):
                    return (
                        f"the batch of model {name!r} has a token of version {version}, and "
                        f"version {self.models[name].train} may train none before "
                        f"{self.bound(name)}"
                    )
        if event in ("drained", "validate") and open_attempts:
            return f"{open_attempts} attempts are open"
        if event == "drain" and not open_attempts:
            return "no attempt is open"
        if event == "validate" and self._behind:
            return "the sampler does not have the trained weights"
        if event == "sync":
            if not self.sync_due:
                return "no sync is due"
            if self.must_drain and open_attempts:
                return f"{open_attempts} attempts are open"
        if event == "end" and self.sync_due:
            return "a sync is due"
        return ""

    # -- what is allowed --------------------------------------------------------------------

    @property
    def _behind(self) -> bool:
        return any(versions.gap for versions in self.models.values())

    def bound(self, model: str) -> int:
        """The oldest version whose tokens ``model`` may be trained on as it is now."""
        return self.models[model].train - self.rules.threshold

    @property
    def sync_due(self) -> bool:
        """Whether the step that was trained has to end with a sync.

        ``batch-async`` syncs when the next batch, which the sampler as it is would answer, would
        pass the bound, and wherever the step ends with synced weights; the others always.
        """
        if self.rules.mode != BATCH_ASYNC or self._holds:
            return self._behind
        return any(versions.gap > self.rules.threshold for versions in self.models.values())

    @property
    def must_drain(self) -> bool:
        """Whether a sync waits for the open attempts."""
        return not (self.rules.mode == FULLY_ASYNC and self.rules.in_flight != FINISH)

    @property
    def _ahead(self) -> int:
        """Updates before the next batch can be trained: one while a batch is being trained."""
        return int(self.state == "training")

    def admits_batch(self, open_attempts: int) -> bool:
        """Whether the next loaded batch may be attempted now (``sync`` and ``batch-async``)."""
        if open_attempts or self.state not in ("collecting", "training"):
            return False
        if self.state == "training" and (self.rules.mode == SYNC or self._holds):
            return False
        return all(v.gap + self._ahead <= self.rules.threshold for v in self.models.values())

    def admits(self, waiting: Mapping[str, int], *, batches_left: int) -> bool:
        """Whether attempts may begin now (``fully-async``).

        A trajectory that begins now is trained after those that wait, in batches of
        ``batch_size``; it may begin if the version that trains it is within the bound of the
        version that samples it (AReaL, arXiv 2505.24298, equation 3).

        Args:
            waiting: trajectories by model, in the pool or being made, the new ones among them.
            batches_left: batches that are still to be taken.
        """
        if self.state not in ("collecting", "training"):
            return False
        size = self.rules.batch_size
        return all(
            (count - 1) // size < batches_left
            and self.models[name].gap + self._ahead + (count - 1) // size <= self.rules.threshold
            for name, count in waiting.items()
        )

    def overdue(self, model: str, begun: int) -> bool:
        """Whether an open attempt that began with version ``begun`` cannot be trained any more."""
        return begun < self.bound(model)
