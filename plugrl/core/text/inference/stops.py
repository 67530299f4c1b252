"""What ends an answer before its longest length: what settings say, and what model folders say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from plugrl.core.errors import ConfigError
from plugrl.core.text.inference.chat import end_tokens

if TYPE_CHECKING:
    from plugrl.core.text.inference.sampling import SamplingParams
    from plugrl.core.text.inference.services import InferenceService
    from plugrl.core.text.inference.tokenizer import Tokenizer


def stop_texts(value: Sequence[str] | str) -> tuple[str, ...]:
    """The texts that a setting ``stop`` names, which may be one."""
    return (value,) if isinstance(value, str) else tuple(value)


def stops_of(section: Any) -> dict[str, Any]:
    """What a section such as ``rollout_worker`` says, as arguments of ``SamplingParams``."""
    return {
        "stop": stop_texts(section.get("stop") or ()),
        "stop_token_ids": tuple(section.get("stop_token_ids") or ()),
    }


def ending(sampling: SamplingParams, tokenizer: Tokenizer) -> SamplingParams:
    """``sampling`` with what the folder of a model says of the ends of its answers besides.

    It is what ``generate`` of ``transformers`` stops at: the end tokens and ``stop_strings``.
    """
    texts: Sequence[str] = getattr(tokenizer, "stop_strings", ())
    return sampling.ending_at(*end_tokens(tokenizer), texts=texts)


def unfit_stop_token(tokens: Sequence[int], model: str, vocabulary: int | None) -> str:
    """Why a model never says one of ``tokens``; empty: it may say them all.

    Args:
        tokens: that end an answer.
        model: its name.
        vocabulary: its tokens are below this number; None: it is not known.
    """
    beyond = [token for token in tokens if vocabulary is not None and token >= vocabulary]
    if not beyond:
        return ""
    return (
        f"has {beyond[0]}, and model {model!r} has tokens 0 to {int(vocabulary or 0) - 1}; write "
        "one of them, or the text in stop"
    )


def check_stop_tokens(
    tokens: Sequence[int], model: str, service: InferenceService, path: str
) -> None:
    """Refuse tokens that a model never says, or that its service cannot end an answer at.

    Args:
        tokens: that end an answer.
        model: its name.
        service: samples from it.
        path: of the setting.

    Raises:
        ConfigError: one of them is such a token.
    """
    fault = unfit_stop_token(tokens, model, service.vocabulary_size)
    if fault:
        raise ConfigError(f"{path} {fault}")
    others = set(tokens) - set(end_tokens(service.tokenizer))
    if others and not service.stops_at_tokens:
        raise ConfigError(
            f"{path} cannot be asked of {type(service).__name__}, which serves model {model!r}: it "
            f"ends answers at the model's own end tokens alone; write the text of {min(others)} in "
            "stop, or use another inference service"
        )
