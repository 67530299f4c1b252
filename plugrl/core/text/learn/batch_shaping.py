"""What the options of a policy-gradient trainer do to a batch before its loss is taken.

Reference log-probabilities, the correction for the sampler and the mask of answers that were cut
off come before the trainer's own preparation; penalties go into rewards before they become
advantages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from plugrl.core.errors import ConfigError, ContractError
from plugrl.core.text.learn.advantages import add_at_the_end, add_to_tokens
from plugrl.core.text.learn.importance_correction import correct_for_sampler
from plugrl.core.text.learn.kl import AdaptiveKl, KlController, kl_estimate
from plugrl.core.text.learn.reference import FrozenModels

if TYPE_CHECKING:
    from plugrl.core.text.batch import Batch
    from plugrl.core.text.models import Models

REF_LOG_PROBS = "ref_log_probs"
_KL = "trainer.algorithm.kl"


class Shaper:
    """Applies the sections ``kl``, ``sampler_correction`` and ``overlong`` of an algorithm.

    Args:
        algorithm: the section; what it lacks is off.
        length: tokens of the longest answer, for ``overlong`` without a length of its own.
    """

    def __init__(self, algorithm: Mapping[str, Any], length: int | None) -> None:
        self._kl: Any = algorithm.get("kl")
        self._correction: Any = algorithm.get("sampler_correction")
        self._overlong: Any = algorithm.get("overlong")
        self._length = length
        self._controllers: dict[str, KlController] = {}
        self._frozen: FrozenModels | None = None
        self._shaped = False

    def prepare(self, batch: Batch, models: Models) -> dict[str, float]:
        """Add the reference's log-probabilities and correct for the sampler; gives metrics.

        Raises:
            ConfigError: the reference is no model, or no other one, or has another tokenizer.
            ContractError: the sampler's log-probabilities are unknown.
        """
        metrics: dict[str, float] = {}
        self._shaped = False
        if self._overlong is not None and self._overlong.filter:
            cut = torch.tensor([reason == "length" for reason in batch.metadata["finish_reason"]])
            batch.values["loss_mask"] = batch.values["loss_mask"] * ~cut[:, None]
            metrics["overlong_filtered"] = float(cut.float().mean())
        if self._correction is not None and self._correction.level != "none":
            metrics |= self._correct(batch, models)
        if self._kl is not None and (self._kl.reward.coefficient or self._kl.loss.coefficient):
            batch.values[REF_LOG_PROBS] = self._score_rows(batch, models)
        return metrics

    def _correct(self, batch: Batch, models: Models) -> dict[str, float]:
        if "old_log_probs" not in batch.values:
            raise ContractError(
                "trainer.algorithm.sampler_correction needs the log-probabilities of sampling, and "
                "the rollout worker gives trajectories without logprobs; set its level to none"
            )
        trained = models[batch.metadata["model"]].trained()
        return correct_for_sampler(batch, trained.compute_log_prob(batch), self._correction)

    def _score_rows(self, batch: Batch, models: Models) -> torch.Tensor:
        name = self._kl.model
        if name == batch.metadata["model"]:
            raise ConfigError(
                f"{_KL}.model={name} is the trained model itself; name another entry of models"
            )
        if self._frozen is None:
            self._frozen = FrozenModels(models)
        return self._frozen.score(name, batch)

    def shape_rewards(self, batch: Batch) -> dict[str, float]:
        """Take the penalties from the rewards of ``batch``; gives metrics.

        Raises:
            ContractError: the batch lacks what a penalty is made of.
        """
        metrics: dict[str, float] = {}
        self._shaped = True
        if self._overlong is not None and self._overlong.buffer:
            penalty = overlong_penalty(
                batch.values["loss_mask"].sum(1), self._longest, self._overlong.buffer
            )
            add_at_the_end(batch, self._overlong.penalty * penalty)
            metrics["overlong_penalty"] = float(self._overlong.penalty * penalty.mean())
        if self._kl is not None and self._kl.reward.coefficient:
            metrics |= self._penalise(batch)
        return metrics

    @property
    def _longest(self) -> int:
        length = self._overlong.length or self._length
        if length is None:
            raise ConfigError("trainer.algorithm.overlong.length is needed outside a run")
        return int(length)

    def _penalise(self, batch: Batch) -> dict[str, float]:
        section = self._kl.reward
        for name in ("old_log_probs", REF_LOG_PROBS):
            if name not in batch.values:
                raise ContractError(
                    f"{_KL}.reward needs batch.values[{name!r}], which the trainer did not set"
                )
        mask = batch.values["loss_mask"] != 0
        estimate = kl_estimate(
            batch.values["old_log_probs"], batch.values[REF_LOG_PROBS], section.kind
        )
        estimate = torch.where(mask, estimate, 0.0)
        name = batch.metadata.get("model", "")
        controller = self._controllers.setdefault(name, KlController.of(section))
        add_to_tokens(batch, -controller.value * estimate)
        sequences = int(mask.any(1).sum())
        divergence = float(estimate.sum()) / max(sequences, 1)
        metrics = {
            "kl_reward": float(estimate.sum()) / max(int(mask.sum()), 1),
            "kl_sequence": divergence,
            "kl_coefficient": controller.value,
        }
        if sequences:
            controller.update(divergence, sequences)
        return metrics

    def check_shaped(self, trainer: str) -> None:
        """Refuse a trainer that made advantages without the penalties.

        Raises:
            ContractError: there are penalties and :meth:`shape_rewards` was not called.
        """
        settings = []
        if self._kl is not None and self._kl.reward.coefficient:
            settings.append(f"{_KL}.reward.coefficient")
        if self._overlong is not None and self._overlong.buffer:
            settings.append("trainer.algorithm.overlong.buffer")
        if settings and not self._shaped:
            raise ContractError(
                f"{settings[0]} changes rewards, and {trainer}._prepare_batch makes no advantages "
                "of them; call `batch = self._compute_advantage(batch)` there, or set it to 0"
            )

    def state_dict(self) -> dict[str, float]:
        """The coefficient of each trained model."""
        return {name: controller.value for name, controller in self._controllers.items()}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Take back what :meth:`state_dict` gave."""
        for name, value in state.items():
            controller = KlController.of(self._kl.reward)
            # A fixed coefficient is that of the configuration, which may have been edited.
            if isinstance(controller, AdaptiveKl):
                controller.value = value
            self._controllers[name] = controller


def overlong_penalty(lengths: torch.Tensor, longest: int, buffer: int) -> torch.Tensor:
    """The soft punishment of DAPO (arXiv 2503.14476), equation 13, for answers of ``lengths`` [B].

    0 up to ``longest - buffer`` tokens, then falling along a line to -1 at ``longest``.
    """
    return ((longest - buffer - lengths) / buffer).clamp(-1.0, 0.0)
