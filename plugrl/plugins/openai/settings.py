"""The section of the inference service ``openai``, and what ``validate`` says of it."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from plugrl.core.config.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.text.remote_settings import check_address, is_local, missing
from plugrl.plugins.openai.transport import Address

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight

DEFAULT_KEY = "OPENAI_API_KEY"


@dataclass
class OpenAiConfig:
    """Options of the inference service ``openai``."""

    base_url: str | None = described(
        None, "address of the server, such as http://127.0.0.1:8000/v1"
    )
    model: str | None = described(
        None, "name that the server has for the model; null: the only one that it has"
    )
    api_key: str | None = described(
        None, "environment variable that holds the key; null: OPENAI_API_KEY, if it is set"
    )
    engine: Literal["auto", "vllm", "sglang", "plugrl", "generic"] = described(
        "auto", "sort of server; auto: as it says itself, generic when it does not"
    )
    connections: int = described(64, "requests that are open at once; more wait")
    timeout: float = described(600.0, "seconds that one try of a request may take")
    patience: float = described(
        60.0, "seconds without a sign of life, or after a request's first failure, that end the run"
    )
    max_context: int | None = described(
        None, "longest sequence in tokens; null: as the server or the source's configuration says"
    )
    logprobs_mode: Literal["raw", "processed"] = described(
        "raw", "vLLM: what it is started with in --logprobs-mode"
    )
    freeze_for_weight_sync: bool = described(
        True, "let open requests end, and pause the server, while weights move"
    )
    weights_folder: str | None = described(
        None, "folder for new weights that the server reads too; null: one for temporary files"
    )

    def __post_init__(self) -> None:
        check_address(self.base_url, self.api_key, DEFAULT_KEY)
        if self.connections < 1:
            raise ConfigError("connections must be at least 1")
        for name in ("timeout", "patience"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be above 0")
        if self.max_context is not None and self.max_context < 2:
            raise ConfigError("max_context must be at least 2")


def address_of(config: Any) -> Address:
    """The server of a section, with the key of the environment.

    Raises:
        ConfigError: there is no address, or the named variable is not set.
    """
    if not config.base_url:
        raise ConfigError("base_url of the inference service openai is needed")
    name = config.api_key or DEFAULT_KEY
    key = os.environ.get(name, "").strip()
    if config.api_key and not key:
        raise ConfigError(
            f"the environment variable {name}, which holds the key of {config.base_url}, is not "
            "set; set it, or name another in api_key"
        )
    base = str(config.base_url).rstrip("/")
    return Address(base, key, name, config.timeout, config.patience, config.connections)


def findings(check: Preflight) -> Iterator[Finding]:
    """What is missing of the settings; the server is not contacted."""
    config, path = check.section, check.path
    for module in ("httpx", "tenacity"):
        if importlib.util.find_spec(module) is None:
            yield path, missing(module, "openai")
    if not config.base_url:
        yield f"{path}.base_url", "is needed, such as http://127.0.0.1:8000/v1"
    environment = check.root.environment
    given = environment.setup_script or config.api_key in environment.variables
    if config.api_key and not given and not os.environ.get(config.api_key):
        yield (
            f"{path}.api_key",
            f"the environment variable {config.api_key} is not set; set it, or name another",
        )
    name = path.split(".")[1]
    if check.root.models[name].get("train") is not None:
        yield from _training_findings(config, path, name)


def _training_findings(config: Any, path: str, name: str) -> Iterator[Finding]:
    if config.engine in ("generic", "plugrl"):
        why = {
            "generic": "gives neither token ids nor log-probabilities",
            "plugrl": "(plugrl serve) takes no weights",
        }[config.engine]
        yield (
            f"{path}.engine",
            f"{config.engine} {why}, and model {name!r} is trained; use vllm or sglang, or the "
            "inference service transformers",
        )
    if config.base_url and not is_local(config.base_url) and not config.weights_folder:
        yield (
            f"{path}.weights_folder",
            "is needed: the server is on another machine, and must read the weights of a model "
            "that is trained here",
        )
