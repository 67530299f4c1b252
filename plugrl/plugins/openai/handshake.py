"""Finding out what a server is: its sort, its model, and what its answers hold."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plugrl.core.errors import ConfigError
from plugrl.core.text.inference.tokenizer import Tokenizer
from plugrl.core.wording import did_you_mean
from plugrl.plugins.openai import wire
from plugrl.plugins.openai.conversation import Conversation
from plugrl.plugins.openai.transport import Refused

logger = logging.getLogger(__name__)
#: Sorts of servers by what they call the owner of their models.
_OWNERS = {"vllm": "vllm", "sglang": "sglang", "plugrl": "plugrl"}
#: What the addresses of such servers end in.
_VERSIONED = re.compile(r"/v\d+$")
#: Sorts whose lists need not hold every model.
OPEN = ("generic", "chat")
#: Seconds in which a server that cannot be reached is tried again when a run begins.
_AT_START = 3.0
NEEDS = "use a vLLM that has return_token_ids (0.10.2 or newer) or SGLang"


@dataclass(frozen=True)
class ServerModel:
    """The sort of a server, the name of the model, and the length of its context if it says.

    ``listed``: whether the server has a list of models.
    """

    engine: str
    model: str
    context: int | None
    listed: bool = True


def cards(server: Conversation) -> Any:
    """The list of a server's models; None: it has no such list.

    Raises:
        PlugrlError: it cannot be had.
    """
    try:
        return server.get("/models", patience=_AT_START)
    except Refused as error:
        if error.status in (404, 405):
            return None
        raise


def look(cards: Any, config: Any, url: str) -> ServerModel:
    """What the list of a server's models says.

    Args:
        cards: the JSON of ``/models``; None: there is no such list.
        config: the service's section.
        url: of the server.

    Raises:
        ConfigError: the server has no such model, several to choose from, or no such list.
    """
    data = cards.get("data") if isinstance(cards, Mapping) else None
    entries = [e for e in data or () if isinstance(e, Mapping) and isinstance(e.get("id"), str)]
    owners = {_OWNERS.get(str(entry.get("owned_by")), "generic") for entry in entries}
    known = owners.pop() if len(owners) == 1 else "generic"
    engine = known if config.engine == "auto" else config.engine
    names = [entry["id"] for entry in entries]
    model = config.model
    if not names and (model is None or engine not in OPEN):
        raise ConfigError(_unlisted_fault(url, model))
    if model is None:
        if len(names) != 1:
            raise ConfigError(
                f"model: the server at {url} has several models; write the name of one: "
                f"{', '.join(names[:20])}"
            )
        model = names[0]
    # Others may load models that their list does not hold; the first request will tell.
    if model not in names and engine not in OPEN:
        raise ConfigError(unknown_model(url, model, names))
    card = next((entry for entry in entries if entry["id"] == model), {})
    length = card.get("max_model_len")
    context = length if isinstance(length, int) else None
    return ServerModel(engine, str(model), context, listed=bool(names))


def _unlisted_fault(url: str, model: str | None) -> str:
    remedy = address_hint(url)
    if not remedy:
        what = "write the name of the model into model" if model is None else "see its log"
        remedy = f"check that it is a server of OpenAI's interface, or {what}"
    return f"base_url: the server at {url} gives no list of models at {url}/models; {remedy}"


def address_hint(url: str) -> str:
    """What to do about an address without the end that such addresses have; empty: it has it."""
    if _VERSIONED.search(url):
        return ""
    return f"base_url probably has to end in /v1: write {url}/v1"


def unknown_model(url: str, model: str, names: list[str]) -> str:
    """What is said of a model that a server does not have."""
    has, close = ", ".join(names[:20]) or "none", did_you_mean(model, names, 1)
    return f"model: the server at {url} has no model {model!r}; it has: {has}{close}"


def dialect_of(found: ServerModel, config: Any, tokenizer: Tokenizer) -> wire.Dialect:
    """How the server is asked."""
    if found.engine == "vllm":
        processed = config.logprobs_mode == "processed"
        return wire.Vllm(found.model, tokenizer, processed=processed)
    kinds: dict[str, type[wire.Dialect]] = {
        "sglang": wire.Sglang,
        "plugrl": wire.Plugrl,
        "generic": wire.Generic,
        "chat": wire.Chat,
    }
    return kinds[found.engine](found.model, tokenizer)


def check_trained(name: str, found: ServerModel, dialect: wire.Dialect, url: str) -> None:
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
