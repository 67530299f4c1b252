"""The sections of trainers that fine-tune text agents stage by stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from plugrl.core.config.schemas.schema import described
from plugrl.core.config.schemas.sections import TEXT, ValidationDataConfig
from plugrl.core.config.schemas.temperature import check_temperature
from plugrl.core.errors import ConfigError


@dataclass
class PriceConfig:
    """What a million tokens of a model cost, in any one currency."""

    input: float = described(0.0, "a million tokens of prompts", at_least=0, at_most=1e6)
    output: float = described(0.0, "a million sampled tokens", at_least=0, at_most=1e6)


@dataclass
class TextRlConfig:
    """Iterations of sampling and fine-tuning, when to test, and what it may cost."""

    num_iterations: int = described(
        8, "times that rollouts are sampled and models fine-tuned", at_least=0, at_most=10**9
    )
    fine_tune_on_all_previous_rollouts: bool = described(
        False, "learn from the rollouts of all iterations so far, not of the last one alone"
    )
    verifier_guess_replacement_proportion: float = described(
        0.0,
        "share of the rollouts in which the verifier is taught the right decision instead",
        at_least=0,
        at_most=1,
    )
    verifier_guess_replacement_annealing: Literal["none", "linear", "exponential"] = described(
        "none", "how that share falls from iteration to iteration"
    )
    verifier_guess_replacement_annealing_rate: float = described(
        0.1,
        "linear: what is taken off each iteration; exponential: the part that is",
        at_least=0,
        at_most=1,
    )
    save_transcripts: bool = described(True, "write rollouts as readable files too")
    transcript_format: Literal["yaml", "json"] = described("yaml", "form of those files")
    test_scheme: Literal["none", "all", "last", "first_and_last"] = described(
        "none",
        "when held-out episodes are played: never; before every fine-tuning and after the last; "
        "after the last; before the first and after the last",
    )
    test_on_whole_dataset: bool = described(
        True, "false: test on as many problems as an iteration has"
    )
    max_requests: int | None = described(
        None,
        "the run ends cleanly before it sends more requests to models; null: any number",
        at_least=1,
    )
    max_tokens: int | None = described(
        None,
        "the run ends cleanly once prompts and answers have so many tokens; null: any number",
        at_least=1,
    )
    max_cost: float | None = described(
        None,
        "the run ends cleanly once requests have cost so much, by `prices`; null: anything",
        above=0,
        at_most=1e9,
    )
    prices: dict[str, PriceConfig] = described(
        {}, "prices by model, for `max_cost` and metrics", names="model"
    )

    def __post_init__(self) -> None:
        if self.max_cost is not None and not self.prices:
            raise ConfigError("max_cost needs prices, such as prices.policy.output=10")


@dataclass
class HeldOutConfig:
    """The held-out episodes; `text_rl.test_scheme` says when they are played."""

    enabled: bool = described(True, "false: no held-out episodes; the scheme must be none then")
    temperature: float = described(0.0, "sampling temperature; 0: greedy", at_least=0, at_most=100)
    score: str | None = described(None, "metric whose best checkpoint is kept; null: test/accuracy")
    score_mode: Literal["max", "min"] = described("max", "whether the best score is the highest")
    data: ValidationDataConfig = described(ValidationDataConfig, "the held-out problems")

    def __post_init__(self) -> None:
        check_temperature(self.temperature)


#: What a trainer of text agents reads.
PURE_TEXT: dict[str, Any] = {
    **{name: TEXT[name] for name in ("models", "data", "scenario", "rollout_worker")},
    "validate": HeldOutConfig,
    "text_rl": TextRlConfig,
}


def guess_replacement_proportion(section: Any, iteration: int) -> float:
    """The share of verifiers' last messages that are replaced, in an iteration from 0 on."""
    share = float(section.verifier_guess_replacement_proportion)
    rate = float(section.verifier_guess_replacement_annealing_rate)
    if section.verifier_guess_replacement_annealing == "linear":
        return max(share - rate * iteration, 0.0)
    if section.verifier_guess_replacement_annealing == "exponential":
        return share * (1 - rate) ** iteration
    return share
