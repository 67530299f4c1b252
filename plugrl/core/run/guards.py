"""Guards: checks of every step of a run, and what happens when one fails."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from plugrl.core.config.schemas.sections import RuntimeMonitorConfig
from plugrl.core.errors import NonFiniteError, RunError
from plugrl.core.plugins.user_code.working_folder import display_path
from plugrl.core.run.checkpoints.dumps import Dumps

log = logging.getLogger("plugrl.run")

#: Metrics that are checked by name, so that trainers that call no guard are guarded too.
_GUARDED = re.compile(r"loss|grad|logp|log_prob", re.IGNORECASE)
#: Larger rewards give losses near or beyond the range of float32, whatever the learning rate.
MAX_PLAUSIBLE_REWARD = 1e9


class Guards:
    """The checks of one run, with the policy of the section ``runtime_monitor``.

    Args:
        policy: what happens when a check fails.
        dumps: the folder that batches with non-finite values are written to; None: nowhere.
        about: further entries for the manifests of dumps, such as the configuration.
    """

    def __init__(
        self,
        policy: RuntimeMonitorConfig | None = None,
        dumps: Path | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        self.policy = policy or RuntimeMonitorConfig()
        self.skipped = 0
        self._kept: int | None = None
        self._dumps = Dumps(dumps, about)
        self._last_skipped: int | None = None
        self._skipped_in_a_row = 0
        self._invalid_in_a_row = 0
        self._reason = ""
        self._equal_in_a_row = 0
        self._warned_equal = False
        self._absurd_reward: Callable[[], str | None] = lambda: None

    def watch_rewards(self, absurd: Callable[[], str | None]) -> None:
        """Set the function that points at a reward as the likely cause of a non-finite loss.

        It is called only when a check fails, and describes the first reward that is not finite or
        exceeds :data:`MAX_PLAUSIBLE_REWARD`; None: all rewards are plausible.
        """
        self._absurd_reward = absurd

    def _remedy(self) -> str:
        found = self._absurd_reward()
        if found is None:
            return "lower the learning rate"
        return f"its rewards are the likely cause: {found}; correct or scale them"

    def check_finite(self, what: str, value: Any, *, step: int, batch: Any = None) -> bool:
        """Check a number, tensor, array or nested mapping of them.

        Returns:
            True if everything is finite; False if not and the policy is ``skip``, in which case
            the caller leaves the update out.

        Raises:
            NonFiniteError: the policy is ``stop``.
            RunError: too many steps in a row were skipped.
        """
        if _all_finite(value):
            return True
        dumped = self._dumps.write(what, step, batch)
        where = f"; the batch is in {display_path(dumped)}" if dumped else ""
        if self.policy.non_finite == "stop":
            raise NonFiniteError(
                f"{what} is not finite in step {step}{where}; {self._remedy()}, or set "
                "runtime_monitor.non_finite=skip"
            )
        self._skip(what, step, where)
        return False

    def _skip(self, what: str, step: int, where: str) -> None:
        # Loss and gradient of one step may both fail; it is one skipped step.
        if step == self._last_skipped:
            return
        follows = self._last_skipped is not None and step == self._last_skipped + 1
        self._skipped_in_a_row = self._skipped_in_a_row + 1 if follows else 1
        self._last_skipped = step
        self.skipped += 1
        log.warning("%s is not finite in step %d: skipped%s", what, step, where)
        if self._skipped_in_a_row >= self.policy.max_skipped_steps:
            raise RunError(
                f"{what} was not finite in {self._skipped_in_a_row} steps in a row, up to step "
                f"{step} (runtime_monitor.max_skipped_steps); {self._remedy()}"
            )

    def keep(self, step: int, what: str, contents: Any) -> None:
        """Dump ``contents`` if ``step`` is among ``runtime_monitor.dump_steps``.

        Args:
            step: the run's step.
            what: distinguishes several dumps of one step.
            contents: a mapping, or a function that returns one and is called only if needed.
        """
        if step in self.policy.dump_steps:
            self._dumps.write(what, step, contents)
            self._kept = step

    def end_step(self, step: int) -> None:
        """Explain a missing dump of a step that ``runtime_monitor.dump_steps`` names."""
        if step in self.policy.dump_steps and self._kept != step:
            log.warning(
                "step %d leaves no dump (runtime_monitor.dump_steps): it made no update, "
                "because no trajectory was valid or all advantages were 0",
                step,
            )

    def metrics(self, step: int, metrics: Mapping[str, float | int]) -> None:
        """Check the metrics named after losses, gradients and log-probabilities."""
        for name, value in metrics.items():
            if not math.isfinite(value) and _GUARDED.search(name):
                self.check_finite(f"metric {name}", value, step=step)

    def rewards(
        self, step: int, rewards: Any, valid: Any, *, batch: Any = None, reason: str = ""
    ) -> None:
        """Check the rewards of one step: shape, validity, spread and finiteness, in this order.

        Args:
            step: the step that they belong to.
            rewards: one number for each trajectory.
            valid: one truth value for each trajectory; false: the agent or evaluator failed.
            batch: dumped when a valid reward is not finite.
            reason: why one of the invalid ones failed, for the message.

        Raises:
            RunError: lengths differ, or no reward was valid for ``max_invalid_steps`` steps.
            NonFiniteError: a valid reward is NaN or infinite and the policy is ``stop``.
        """
        numbers, truths = _as_floats("rewards", rewards), _as_floats("valid", valid)
        if len(numbers) != len(truths):
            raise RunError(
                f"step {step} has {len(numbers)} rewards and {len(truths)} validity marks; an "
                "evaluator must give one result for each trajectory"
            )
        kept = [number for number, truth in zip(numbers, truths, strict=True) if truth]
        self.failures(step, len(numbers) - len(kept), len(numbers), reason)
        self._count_invalid(step, len(numbers), len(kept), reason)
        self._count_equal(step, kept)
        self.watch_rewards(lambda: _implausible_reward(numbers, truths))
        self.check_finite("reward", kept, step=step, batch=batch)

    def failures(self, step: int, failed: int, total: int, reason: str = "") -> None:
        """Report attempts that failed.

        Raises:
            RunError: an attempt failed and ``exception_handling`` has the policy ``stop_on_error``.
        """
        if failed and self.policy.exception_handling.effective == "stop_on_error":
            raise RunError(
                f"{failed} of {total} attempts failed in step {step}"
                + (f": {reason}" if reason else "")
                + " (runtime_monitor.exception_handling.policy=stop_on_error; with "
                "stop_on_critical such attempts are left out)"
            )

    def _count_invalid(self, step: int, total: int, kept: int, reason: str) -> None:
        self._invalid_in_a_row = self._invalid_in_a_row + 1 if total and not kept else 0
        self._reason = reason
        too_many = self._invalid_in_a_row >= self.policy.max_invalid_steps
        if too_many and not self._continues_on_failure:
            raise RunError(
                f"no reward was valid in {self._invalid_in_a_row} steps in a row, up to step "
                f"{step} (runtime_monitor.max_invalid_steps)"
                + (f"; one of the failures: {reason}" if reason else "")
            )

    def dead_coefficients(self, path: str, dead: Mapping[str, float]) -> None:
        """Report coefficients of the configuration that do not influence the gradient.

        Args:
            path: the section of the configuration that holds them.
            dead: their values by key.

        Raises:
            RunError: there is one and the policy is ``stop``.
        """
        policy = self.policy.dead_coefficients
        if not dead or policy == "ignore":
            return
        keys = ", ".join(f"{path}.{key}={value:g}" for key, value in dead.items())
        message = (
            f"{keys}: the gradient does not depend on it; use it in the loss, remove it from "
            "the loss's Config, or set runtime_monitor.dead_coefficients=warn"
        )
        if policy == "stop":
            raise RunError(message)
        log.warning("%s", message)

    def any_valid(self, steps: int) -> None:
        """Check at the end of a training of ``steps`` steps that at least one reward was valid.

        A training shorter than ``max_invalid_steps`` would otherwise succeed without having learned
        anything.

        Raises:
            RunError: no reward was valid.
        """
        if 0 < steps <= self._invalid_in_a_row:
            message = f"no reward was valid in any of {steps} steps, so nothing was learned" + (
                f"; one of the failures: {self._reason}" if self._reason else ""
            )
            if not self._continues_on_failure:
                raise RunError(message)
            log.warning("%s", message)

    @property
    def _continues_on_failure(self) -> bool:
        return self.policy.exception_handling.effective == "continue"

    def _count_equal(self, step: int, kept: list[float]) -> None:
        # A single reward equals itself and says nothing about spread.
        if len(kept) > 1:
            self._equal_in_a_row = self._equal_in_a_row + 1 if len(set(kept)) == 1 else 0
        if self._equal_in_a_row >= self.policy.dead_reward_steps and not self._warned_equal:
            self._warned_equal = True
            log.warning(
                "all rewards were equal in %d steps in a row, up to step %d: nothing is learned "
                "from them; check the evaluator and the difficulty of the data",
                self._equal_in_a_row,
                step,
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the counters, for a checkpoint."""
        names = ("skipped", "_last_skipped", "_skipped_in_a_row", "_invalid_in_a_row")
        return {name: getattr(self, name) for name in (*names, "_equal_in_a_row", "_warned_equal")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the counters."""
        for name in self.state_dict():
            setattr(self, name, state[name])


def _all_finite(value: Any) -> bool:
    if isinstance(value, (int, float)):
        return math.isfinite(value)
    if isinstance(value, Mapping):
        return all(_all_finite(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return all(_all_finite(item) for item in value)
    if hasattr(value, "isfinite"):
        return bool(value.isfinite().all())
    import numpy as np

    return bool(np.isfinite(value).all())


def _implausible_reward(rewards: list[float], valid: list[float]) -> str | None:
    for number, (reward, counts) in enumerate(zip(rewards, valid, strict=True)):
        # Written with "not", so that NaN, which compares false with everything, is caught too.
        if counts and not abs(reward) <= MAX_PLAUSIBLE_REWARD:
            return f"trajectory {number} of {len(rewards)} has {reward:g}"
    return None


def _as_floats(name: str, values: Any) -> list[float]:
    shape = getattr(values, "shape", None)
    if shape is not None and len(shape) != 1:
        raise RunError(
            f"{name} have shape {tuple(shape)}, but one number for each trajectory is needed"
        )
    listed = values.tolist() if hasattr(values, "tolist") else list(values)
    try:
        return [float(value) for value in listed]
    except (TypeError, ValueError):
        raise RunError(f"{name} must be numbers, one for each trajectory") from None
