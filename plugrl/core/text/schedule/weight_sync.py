"""Weight sync: copies trained weights to the sampler, and proves by a probe that they arrived."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from plugrl.core.errors import RunError
from plugrl.core.text.batch import Batch
from plugrl.core.text.trajectory import Trajectory

if TYPE_CHECKING:
    from plugrl.core.text.models import Model

logger = logging.getLogger(__name__)

#: Largest mean absolute difference of log-probabilities after a sync, by data type.
PARITY_TOLERANCE = {"float32": 1e-4, "bfloat16": 0.02, "float16": 0.02}
#: Sequences of the probe. A wrong weight of any layer changes every token, so few are enough.
PROBE_SIZE = 2


class WeightSync:
    """Copies the trained weights of a model to its inference service.

    Args:
        model: a trained model.
        tolerance: largest mean absolute difference between the log-probabilities of both
            services on the probe.
        shares: whether nothing is sampled while the model is trained, so that both services may
            hold the same weights and there is nothing to copy.
    """

    def __init__(self, model: Model, tolerance: float, *, shares: bool = False) -> None:
        self._model = model
        self._tolerance = tolerance
        self._shares = shares
        self._probe: list[list[int]] = []
        self._batch: Batch | None = None
        self._synced: int | None = None
        self._said = False
        #: That the last call took from other processes.
        self.moved_bytes = 0

    def observe(self, trajectories: Sequence[Trajectory]) -> None:
        """Keep the first trajectories that hold an answer as the probe's sequences."""
        # Answers of the run itself: their tokens are in the vocabulary and within the context.
        if not self._probe:
            answered = [t.tokens for t in trajectories if any(t.loss_mask) and len(t.tokens) > 1]
            self._probe = [list(tokens) for tokens in answered[:PROBE_SIZE]]

    def __call__(self) -> float | None:
        """Copy the weights, and return the parity of both services on the probe.

        Returns:
            The mean absolute difference of log-probabilities. None before there is a probe, for
            weights that the sampler has already, and for a sampler that gives no log-probabilities
            of prompts; a warning says so once.

        Raises:
            RunError: the services disagree by more than the tolerance.
        """
        service = self._model.service()
        self.moved_bytes = 0
        if service.version == self._synced:
            return None
        if self._shares and self._synced is None:
            service.share_with(self._model.inference)
        service.sync_to(self._model.inference)
        self.moved_bytes = service.moved_bytes
        self._synced = service.version
        if not self._model.inference.scores_prompts:
            self._say_unproven()
            return None
        return self._parity() if self._probe else None

    def _say_unproven(self) -> None:
        if not self._said:
            logger.warning(
                "model %r: its inference service gives no log-probabilities of prompts, so that "
                "nothing proves that it samples from the trained weights; sync/parity is absent",
                self._model.name,
            )
        self._said = True

    def _parity(self) -> float:
        if self._batch is None:
            self._batch = Batch.from_trajectories(
                [Trajectory(tokens, [0] + [1] * (len(tokens) - 1)) for tokens in self._probe]
            )
        trained = self._model.service().compute_log_prob(self._batch)
        difference, count = 0.0, 0
        for row, scores in zip(
            trained.tolist(), self._model.inference.score(self._probe), strict=True
        ):
            difference += sum(
                abs(a - b) for a, b in zip(row[1 : len(scores)], scores[1:], strict=True)
            )
            count += len(scores) - 1
        parity = difference / count
        # Written so that NaN fails too.
        if not parity <= self._tolerance:
            raise RunError(
                f"after the weight sync of model {self._model.name!r} the sampler's "
                f"log-probabilities differ from the trainer's by {parity:.2e} on average, more "
                f"than {self._tolerance:.0e} (weight.parity_tolerance); the sampler does not run "
                "the trained weights"
            )
        return parity

    def state_dict(self) -> dict[str, list[list[int]]]:
        """The probe."""
        return {"probe": self._probe}

    def load_state_dict(self, state: dict[str, list[list[int]]]) -> None:
        """Take back the probe."""
        self._probe = [list(tokens) for tokens in state["probe"]]
        self._batch = None
