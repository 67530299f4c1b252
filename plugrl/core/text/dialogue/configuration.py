"""The section ``red_team``: who talks with whom, how often, and what it is worth."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from plugrl.core.config.schemas.schema import component, described
from plugrl.core.config.schemas.sections import ModelConfig
from plugrl.core.config.schemas.temperature import check_temperature
from plugrl.core.errors import ConfigError
from plugrl.core.text.inference.sampling import SamplingParams


@dataclass
class ModelsConfig:
    """The models of a system that is made without a run."""

    models: dict[str, ModelConfig]


def sampling_of(section: Any) -> SamplingParams:
    """The settings of a :class:`SpeakingConfig`, or of a view of one, as an engine takes them."""
    return SamplingParams(
        temperature=section.temperature,
        top_p=section.top_p,
        top_k=section.top_k,
        max_new_tokens=section.max_new_tokens,
        min_new_tokens=section.min_new_tokens,
    )


@dataclass
class SpeakingConfig:
    """How one of the two models is shown a dialogue, and how it answers."""

    system_prompt: str = described("", "what it is told before everything else; empty: nothing")
    form: Literal["auto", "chat", "plain"] = described(
        "auto",
        "messages by the chat template of its tokenizer, or as text; auto: by the template, if any",
    )
    separator: str = described("", "what stands between messages that are shown as text")
    temperature: float = described(1.0, "sampling temperature; 0: greedy", at_least=0, at_most=100)
    top_p: float = described(
        1.0, "keep the smallest set of tokens with this much of the mass", above=0, at_most=1
    )
    top_k: int = described(
        0, "keep the most probable tokens, this many; 0: all", at_least=0, at_most=10**7
    )
    max_new_tokens: int = described(32, "tokens of a message, at most", at_least=1, at_most=10**8)
    min_new_tokens: int = described(0, "tokens of a message, at least", at_least=0, at_most=10**8)
    max_prompt_tokens: int | None = described(
        None,
        "of what it is shown: older turns are left out, then the beginning; null: what fits",
        at_least=1,
        at_most=10**8,
    )

    def __post_init__(self) -> None:
        check_temperature(self.temperature)
        sampling_of(self)


@dataclass
class TesterConfig(SpeakingConfig):
    """The tester: the model that is trained to find what makes the target go wrong."""

    model: str = described("tester", "entry of models", names="model")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.temperature == 0:
            raise ConfigError("temperature is 0; the tester must be sampled, or all probes agree")


@dataclass
class TargetConfig(SpeakingConfig):
    """The target: the model that is tested. It may be behind an API, and is never trained."""

    model: str = described("target", "entry of models")
    sees_prompt: bool = described(
        False, "it is shown the prompt before the first probe; false: the tester alone is"
    )


@dataclass
class RewardConfig:
    """What an exchange is worth: the sum of its parts, each times its weight."""

    score: float = described(1.0, "of the scorer's value", at_least=-1e6, at_most=1e6)
    categories: dict[str, float] = described(
        {},
        "weights of the scorer's categories, in place of its value; empty: its value",
        at_least=-1e6,
        at_most=1e6,
    )
    fluency: float = described(
        0.0,
        "of exp(mean log-probability of the probe's tokens under the baseline)",
        at_least=-1e6,
        at_most=1e6,
    )
    diversity: float = described(
        0.0,
        "of how unlike the other probes of that turn a probe is, from 0 to 1",
        at_least=-1e6,
        at_most=1e6,
    )


#: Exchanges of the last level of a tree, all of which are held until a step has been made of it.
LARGEST_TREE = 1_000_000


@dataclass
class DialogueConfig:
    """Dialogues of one tester with one target, as trees."""

    tester: TesterConfig = described(TesterConfig, "who probes, and is trained")
    target: TargetConfig = described(TargetConfig, "who answers")
    baseline: str | None = described(
        None, "entry of models that says how likely a probe is, and is the reference; null: none"
    )
    scorer: Any = component("scorer", help="how far a dialogue went wrong")
    reward: RewardConfig = described(RewardConfig, "what an exchange is worth")
    threshold: float = described(
        0.5, "an exchange with at least this score is a success", at_least=-1e6, at_most=1e6
    )
    tree_width: int = described(2, "ways to go on after each dialogue", at_least=1)
    tree_depth: int = described(3, "exchanges of a dialogue", at_least=1)
    split: str = described("train", "split of the scenario that dialogues are about in training")
    prompt_key: str = described("prompt", "column of what the tester is told", names="column")
    category_key: str = described(
        "category", "column of a prompt's category, for reports", names="optional column"
    )
    eval_split: str = described("test", "split that `plugrl eval RUN red_team` is about")
    eval_attempts: int = described(
        4, "dialogues about each prompt in that evaluation", at_least=1, at_most=10**6
    )
    eval_batch: int = described(
        64,
        "dialogues that it holds at once; a crash costs those that are not finished",
        at_least=1,
        at_most=10**6,
    )

    def __post_init__(self) -> None:
        # As logarithms: the power itself may take minutes to compute.
        exchanges = max(math.log(self.tree_depth), self.tree_depth * math.log(self.tree_width))
        if exchanges > math.log(LARGEST_TREE) + 1e-9:
            raise ConfigError(
                f"tree_width is {self.tree_width} and tree_depth {self.tree_depth}: a tree would "
                f"have more than {LARGEST_TREE:,} exchanges; lower one of them"
            )
        if self.reward.fluency and self.baseline is None:
            raise ConfigError(
                "reward.fluency needs a baseline, such as baseline: baseline with models.baseline"
            )
