"""Finding out what a server is: its sort, its model, and what its answers hold."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plugrl.core.errors import ConfigError
from plugrl.core.suggest import did_you_mean
from plugrl.core.text.services import Tokenizer
from plugrl.plugins.openai import wire

logger = logging.getLogger(__name__)
#: Sorts of servers by what they call the owner of their models.
_OWNERS = {"vllm": "vllm", "sglang": "sglang", "plugrl": "plugrl"}
NEEDS = "use a vLLM that has return_token_ids (0.10.2 or newer) or SGLang"


@dataclass(frozen=True)
class Found:
    """The sort of a server, the name of the model, and the length of its context if it says."""

    engine: str
    model: str
    context: int | None


def look(cards: Any, config: Any, url: str) -> Found:
    """What the list of a server's models says.

    Args:
        cards: the JSON of ``/models``; None: there is no such list.
        config: the service's section.
        url: of the server.

    Raises:
        ConfigError: the server has no such model, or several to choose from.
    """
    data = cards.get("data") if isinstance(cards, Mapping) else None
    entries = [e for e in data or () if isinstance(e, Mapping) and isinstance(e.get("id"), str)]
    owners = {_OWNERS.get(str(entry.get("owned_by")), "generic") for entry in entries}
    known = owners.pop() if len(owners) == 1 else "generic"
    engine = known if config.engine == "auto" else config.engine
    names = [entry["id"] for entry in entries]
    model = config.model
    if model is None:
        if len(names) != 1:
            has = ", ".join(names[:20]) or "names none"
            raise ConfigError(
                f"model: the server at {url} must be asked for one of its models by name; it has: "
                f"{has}"
            )
        model = names[0]
    # Others may load models that their list does not hold; the first request will tell.
    if model not in names and engine != "generic":
        raise ConfigError(unknown_model(url, model, names))
    card = next((entry for entry in entries if entry["id"] == model), {})
    length = card.get("max_model_len")
    return Found(engine, str(model), length if isinstance(length, int) else None)


def unknown_model(url: str, model: str, names: list[str]) -> str:
    """What is said of a model that a server does not have."""
    has, close = ", ".join(names[:20]) or "none", did_you_mean(model, names, 1)
    return f"model: the server at {url} has no model {model!r}; it has: {has}{close}"


def dialect_of(found: Found, config: Any, tokenizer: Tokenizer) -> wire.Dialect:
    """How the server is asked."""
    if found.engine == "vllm":
        processed = config.logprobs_mode == "processed"
        return wire.Vllm(found.model, tokenizer, processed=processed)
    kinds: dict[str, type[wire.Dialect]] = {
        "sglang": wire.Sglang,
        "plugrl": wire.Plugrl,
        "generic": wire.Generic,
    }
    return kinds[found.engine](found.model, tokenizer)


def check_trained(name: str, found: Found, dialect: wire.Dialect, url: str) -> None:
    """Refuse a server whose answers cannot be trained on, or that takes no weights.

    Raises:
        ConfigError: model ``name`` is trained, and the server is such a one.
    """
    where = f"models.{name}.inference: the server at {url}"
    if not dialect.exact:
        raise ConfigError(
            f"{where} gives neither token ids nor log-probabilities (engine {found.engine}), which "
            f"training needs; {NEEDS}, or the inference service transformers"
        )
    if not dialect.takes_weights:
        raise ConfigError(
            f"{where} takes no weights (engine {found.engine}), and the model is trained; {NEEDS}, "
            "or the inference service transformers"
        )
