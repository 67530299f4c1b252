"""``hf_ast``: red-teaming with development evaluations and checkpoints of ``transformers``."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.run.atomic_writes import disk_error, replace_folder, restore_folder
from plugrl.core.run.progress import DETAIL
from plugrl.core.text.dialogue.evaluation.evaluation import held_out
from plugrl.core.text.evaluate.scores import headline
from plugrl.core.text.learn.optimizer import ScheduleConfig
from plugrl.trainers.harness import (
    HarnessTrainer,
    TrainingConfiguration,
    check_choices,
    refuses_unknown_fields,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plugrl.core.config.preflight import Finding, Preflight
    from plugrl.core.text.dialogue.environment import Environment
    from plugrl.core.text.dialogue.tree import RolloutTree
    from plugrl.core.trainer import TrainingResult

logger = logging.getLogger(__name__)
_BEST, _LAST = "best", "last"
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_FP16 = (
    "mixed_precision is fp16, and the tester is on the CPU, whose half precision is slow and has "
    "no scaling of gradients; write bf16 or no, or use a GPU"
)


@refuses_unknown_fields
@dataclass
class HFASTConfiguration(TrainingConfiguration):
    """The settings of the trainer ``hf_ast``; the defaults suit language models.

    Raises:
        ConfigError: as :class:`TrainingConfiguration`.
    """

    lr: float = described(1e-5, "learning rate", above=0, at_most=10)
    batch_size: int = described(
        4, "steps of the algorithm in a batch, such as pairs", at_least=1, at_most=10**6
    )
    training_steps: int = described(
        1000, "experiences, each a set of new rollouts", at_least=0, at_most=10**9
    )
    num_episodes_per_experience: int = described(
        2, "rollout trees of an experience", at_least=1, at_most=10**6
    )
    weight_decay: float = described(0.0, "of the optimizer", at_least=0, at_most=100)
    max_grad_norm: float | None = described(
        1.0, "gradients are scaled down to it; null: never", above=0, at_most=1e9
    )
    schedule: Literal["constant", "linear", "cosine"] = described(
        "constant", "how the learning rate falls after the warm-up, to 0 at the end"
    )
    warmup_steps: int = described(
        0, "training steps over which the learning rate grows to lr", at_least=0, at_most=10**9
    )
    mixed_precision: Literal["no", "bf16", "fp16"] = described(
        "no", "precision of the forward pass; fp16 on a GPU alone"
    )
    eval_every: int = described(
        100, "training steps between development evaluations; 0: never", at_least=0, at_most=10**9
    )
    dev_split: str = described("development", "split of the scenario that is evaluated on")
    best_by: Literal["reward", "score", "success"] = described(
        "reward", "which number of a development evaluation is its score"
    )
    early_stopping_patience: int | None = described(
        None,
        "evaluations without a better score after which training ends; null: never",
        at_least=1,
        at_most=10**9,
    )
    early_stopping_min_delta: float = described(
        0.0, "by how much a score must be better", at_least=0, at_most=1e6
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.training_steps and self.warmup_steps >= self.training_steps:
            raise ConfigError(
                f"warmup_steps is {self.warmup_steps}; it must be below training_steps, "
                f"{self.training_steps}"
            )
        check_choices(self, ("schedule", "mixed_precision", "best_by"))
        if self.early_stopping_patience is not None and not self.eval_every:
            raise ConfigError("early_stopping_patience needs eval_every above 0")


_DEFAULTS = {field.name: field.default for field in fields(HFASTConfiguration)}


class HFASTTrainer(HarnessTrainer):
    """Trains like ``harness``, looks at held-out prompts now and then, and keeps the best tester.

    Folders ``best`` and ``last`` hold the tester and its tokenizer as ``from_pretrained`` reads
    them, an adapter merged. ``last`` is written at every development evaluation and at the end,
    ``best`` only when the score is better than ever. A folder is always a whole one.

    Args:
        config: an :class:`HFASTConfiguration`, or another one; what it lacks has its defaults.
        environment: with its system; None: the one of the run.
        algorithm: from rollout trees to a loss: one that was made, a name, or a section; None: the
            one that ``config`` names.
        dev_prompts: what is evaluated on; in a run those of ``dev_split``.
        eval_every: training steps between evaluations; None: as ``config`` says.
        ckpt_dir: holds ``best`` and ``last``; in a run they are in its folder, in ``hf``.
        seed: of everything that is drawn; a run has its own.

    Raises:
        ConfigError: the configuration is wrong, there is nothing to evaluate on, or fp16 is wanted
            on the CPU.
    """

    Config: ClassVar[type] = HFASTConfiguration

    def __init__(
        self,
        config: Any = None,
        environment: Environment | None = None,
        algorithm: Any = None,
        dev_prompts: Iterable[Any] = (),
        eval_every: int | None = None,
        ckpt_dir: str | Path = "checkpoints",
        *,
        seed: int = 0,
    ) -> None:
        if isinstance(dev_prompts, str):
            raise ConfigError(f"dev_prompts is the text {dev_prompts!r:.40}; give a list of them")
        self._dev_prompts: Sequence[Any] = list(dev_prompts)
        self._eval_every = eval_every
        self._ckpt_dir = Path(ckpt_dir)
        self._best: float | None = None
        #: What a score must be better than for training to go on.
        self._reference: float | None = None
        self._without_better = 0
        self._stopped = False
        super().__init__(config, environment, algorithm, seed=seed)

    @classmethod
    def preflight(cls, check: Preflight) -> Iterator[Finding]:
        """What the base looks for, and half precision without a GPU."""
        yield from super().preflight(check)
        device = check.root.get("settings", check.validated.tree["settings"])["device"]
        on_cpu = device == "cpu" or (device == "auto" and not torch.cuda.is_available())
        if on_cpu and check.root.trainer.get("mixed_precision") == "fp16":
            yield "trainer.mixed_precision", _FP16.partition(" ")[2]

    @property
    def options(self) -> Any:
        """The configuration, with the defaults of what it has no field for."""
        return _WithDefaults(self.config)

    @property
    def eval_every(self) -> int:
        """Training steps between development evaluations; 0: there are none."""
        chosen = self._eval_every
        return int(self.options.eval_every if chosen is None else chosen)

    @property
    def checkpoints(self) -> Path:
        """The folder that holds ``best`` and ``last``."""
        if self._context is None:
            return self._ckpt_dir
        number = self.run.phase_number
        return self.run.folder / (f"hf-phase-{number}" if number else "hf")

    def _set_up(self) -> None:
        if self._harness is not None:
            return
        if self.eval_every < 0:
            raise ConfigError(f"eval_every is {self.eval_every}; it must not be negative")
        if self.eval_every and self._context is None and not self._dev_prompts:
            raise ConfigError(
                f"dev_prompts is empty and eval_every is {self.eval_every}; give prompts to "
                "evaluate on, or eval_every=0"
            )
        super()._set_up()
        device = self._parameters[0].device.type
        precision = self.options.mixed_precision
        if precision == "fp16" and device == "cpu":
            raise ConfigError(_FP16)
        self._autocast = (device, _DTYPES.get(precision))

    def make_optimizer(self, parameters: Sequence[torch.nn.Parameter]) -> torch.optim.Optimizer:
        """The base class's optimizer with weight decay; makes the gradient scaler for fp16 too."""
        optimizer = super().make_optimizer(parameters)
        for group in optimizer.param_groups:
            group["weight_decay"] = self.options.weight_decay
        fp16 = self.options.mixed_precision == "fp16"
        self._scaler = torch.amp.GradScaler(parameters[0].device.type, enabled=fp16)
        return optimizer

    def train(self) -> TrainingResult:
        """Run all training steps, or those until patience ends; after a resume, the remaining."""
        for name in (_BEST, _LAST):
            restore_folder(self.checkpoints / name)
        return super().train()

    # Steps in some precision, at some rate

    @contextmanager
    def _forward(self) -> Iterator[None]:
        device, dtype = self._autocast
        with torch.autocast(device, dtype, enabled=dtype is not None):
            yield

    def _backward(self, loss: torch.Tensor) -> None:
        super()._backward(self._scaler.scale(loss))

    def learning_rate(self, step: int) -> float:
        """The learning rate of training step ``step``, counted from 1; override it for another."""
        total = max(self.config.training_steps, 1)
        warmup = min(self.options.warmup_steps, total - 1)
        shape = ScheduleConfig(warmup, self.options.schedule, total)
        return float(self.config.lr * ScheduleConfig.factor(shape, step - 1))

    def _update(self, step: int) -> dict[str, float]:
        rate, limit = self.learning_rate(step), self.options.max_grad_norm
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._scaler.unscale_(self._optimizer)
        bound = float("inf") if limit is None else limit
        norm = float(torch.nn.utils.clip_grad_norm_(self._parameters, bound))
        logs = {"learning_rate": rate}
        if self._scaler.is_enabled() and not math.isfinite(norm):
            # It was scaled too far: the scaler leaves this update out and scales less.
            logs["overflows"] = 1.0
        elif self._guards.check_finite("gradient", norm, step=step):
            logs["grad_norm"] = norm
            self._updates += 1
        else:
            self._optimizer.zero_grad(set_to_none=True)
            return logs
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._optimizer.zero_grad(set_to_none=True)
        return logs

    # What is held out, and what is kept

    def _stops_early(self) -> bool:
        return self._stopped

    def _evaluate_after(self, step: int) -> dict[str, float]:
        last = step >= self.config.training_steps
        every = self.eval_every
        due = bool(every) and step > 0 and (last or step % every == 0)
        metrics = self._evaluate_dev(step) if due else {}
        if due or last or self._stopped:
            with self._timed("export", metrics):
                self._save(_LAST, step)
        return metrics | super()._evaluate_after(step)

    def _evaluate_dev(self, step: int) -> dict[str, float]:
        """Evaluate on the development prompts; keep the tester if it is better than ever."""
        metrics: dict[str, float] = {}
        with self._timed("validate", metrics):
            found, trees = self.eval_dev()
        if self._context is not None:
            self._report_evaluation(step, found, trees, "development")
        else:
            logger.info("step %d: %s", step, headline(found), extra=DETAIL)
        by = self.options.best_by
        score = found.get(f"dev/{by}")
        if score is None:
            logger.warning("step %d: too few scores of development dialogues for %s", step, by)
        else:
            self._compare_score(score, step)
        return metrics | found

    def eval_dev(self) -> tuple[dict[str, float], list[RolloutTree]]:
        """Metrics of the development prompts, named ``dev/...``, and their dialogues.

        Override it for another evaluation; ``dev/score`` or what ``best_by`` names is its score.
        """
        prompts = self._dev_prompts
        if self._context is not None:
            prompts = self._prompts(self.options.dev_split)
        return held_out(self.environment, prompts, prefix="dev")

    def _compare_score(self, score: float, step: int) -> None:
        if self._best is None or score > self._best:
            self._best = score
            self._save(_BEST, step)
        if self._context is not None:
            self.run.report_score(score, f"dev/{self.options.best_by}")
        patience = self.options.early_stopping_patience
        least = self.options.early_stopping_min_delta
        if self._reference is None or score > self._reference + least:
            self._reference, self._without_better = score, 0
            return
        self._without_better += 1
        if patience is not None and self._without_better >= patience:
            self._stopped = True
            logger.info("step %d: no better score in %d evaluations; training ends", step, patience)

    def _save(self, name: str, step: int) -> None:
        def write(folder: Path) -> None:
            self._system.save_pretrained(folder)

        place = self.checkpoints / name
        try:
            replace_folder(place, write)
        except OSError as error:
            raise disk_error(error, f"write the {name} tester of step {step}", place) from error

    # What is saved

    def state_dict(self) -> dict[str, Any]:
        """What the base saves, the best score, the patience that is left, the scale of fp16."""
        return {
            **super().state_dict(),
            "best": self._best,
            "reference": self._reference,
            "without_better": self._without_better,
            "stopped": self._stopped,
            "scaler": self._scaler.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""
        super().load_state_dict(state)
        self._best, self._reference = state["best"], state["reference"]
        self._without_better, self._stopped = state["without_better"], state["stopped"]

    def _apply(self, state: Mapping[str, Any]) -> None:
        super()._apply(state)
        self._scaler.load_state_dict(dict(state["scaler"]))


class _WithDefaults:
    """A configuration of any sort; what it lacks is as in an :class:`HFASTConfiguration`."""

    def __init__(self, config: Any) -> None:
        self._config = config

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name) if hasattr(self._config, name) else _DEFAULTS[name]
