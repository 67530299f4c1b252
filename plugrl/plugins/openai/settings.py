"""The section of the inference service ``openai``, and what ``validate`` says of it."""

from __future__ import annotations

import importlib.util
import os
import shlex
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from plugrl.core.config.preflight import section_at
from plugrl.core.config.schemas.schema import described
from plugrl.core.config.view import ConfigView
from plugrl.core.errors import ConfigError, PlugrlError
from plugrl.core.text.remote.settings import check_address, is_local, missing
from plugrl.core.wording import did_you_mean_variable
from plugrl.plugins.openai.transport import Address

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight

DEFAULT_KEY = "OPENAI_API_KEY"
#: What stands in a command for the port that is chosen.
PORT = "{port}"


@dataclass
class ServedModelConfig:
    """Options that servers have in common, whoever starts them."""

    model: str | None = described(
        None, "name that the server has for the model; null: the only one that it has"
    )
    engine: Literal["auto", "vllm", "sglang", "plugrl", "generic", "chat"] = described(
        "auto",
        "sort of server; auto: as it says itself, generic when it does not; chat: one that answers "
        "messages alone",
    )
    connections: int = described(
        64, "requests that are open at once; more wait", at_least=1, at_most=10**5
    )
    timeout: float = described(
        600.0, "seconds that one try of a request may take", above=0, at_most=1e8
    )
    patience: float = described(
        60.0,
        "seconds without a sign of life, or after a request's first failure, that end the run",
        above=0,
        at_most=1e8,
    )
    max_context: int | None = described(
        None,
        "longest sequence in tokens; null: as the server or the source's configuration says",
        at_least=2,
        at_most=10**9,
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


@dataclass
class OpenAiConfig(ServedModelConfig):
    """Options of the inference service ``openai``."""

    base_url: str | None = described(
        None, "address of the server, such as http://127.0.0.1:8000/v1"
    )
    api_key: str | None = described(
        None, "environment variable that holds the key; null: OPENAI_API_KEY, if it is set"
    )

    def __post_init__(self) -> None:
        check_address(self.base_url, self.api_key, DEFAULT_KEY)


@dataclass
class ServerConfig(ServedModelConfig):
    """Options of the inference service ``server``."""

    command: str = described(
        "",
        "starts the server, such as vllm serve MODEL --host 127.0.0.1 --port {port}; {port} is a "
        "free one",
    )
    start_timeout: float = described(
        1800.0,
        "seconds that the server may take until it answers at /health",
        above=0,
        at_most=1e6,
    )


def command_fault(command: str) -> str:
    """Why a command starts no server; "": it may."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        return f"cannot be divided into words ({error}); close its quotes"
    if not words:
        return "is needed, such as vllm serve MODEL --host 127.0.0.1 --port {port}"
    if PORT not in command:
        return f"has no {PORT}; write --port {PORT}, so that several servers fit on a machine"
    return ""


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
    """What is missing of the settings.

    The server is asked what it is where that decides whether it can do what is configured.
    """
    config, path = check.section, check.path
    if not config.base_url:
        yield f"{path}.base_url", "is needed, such as http://127.0.0.1:8000/v1"
    environment = check.root.environment
    given = environment.setup_script or config.api_key in environment.variables
    if config.api_key and not given and not os.environ.get(config.api_key):
        yield (
            f"{path}.api_key",
            f"the environment variable {config.api_key} is not set"
            f"{did_you_mean_variable(config.api_key)}; set it, or name another",
        )
    yield from served_findings(check)
    name = path.split(".")[1]
    trained = check.root.models[name].get("train") is not None
    if trained and config.base_url and not is_local(config.base_url) and not config.weights_folder:
        yield (
            f"{path}.weights_folder",
            "is needed: the server is on another machine, and must read the weights of a model "
            "that is trained here",
        )


def server_findings(check: Preflight) -> Iterator[Finding]:
    """What is missing of the settings of a server that the run starts."""
    fault = command_fault(check.section.command)
    if fault:
        yield f"{check.path}.command", fault
    yield from served_findings(check)


def served_findings(check: Preflight) -> Iterator[Finding]:
    """What does not fit, whoever starts the server."""
    config, path = check.section, check.path
    lacks = [m for m in ("httpx", "tenacity") if importlib.util.find_spec(m) is None]
    for module in lacks:
        yield path, missing(module, "openai")
    if config.weights_folder and not _can_be_folder(config.weights_folder):
        yield (
            f"{path}.weights_folder",
            f"{config.weights_folder} is no folder and cannot become one; name a folder",
        )
    name = path.split(".")[1]
    if check.root.models[name].get("train") is not None:
        yield from _training_findings(config, path, name)
    if config.engine == "vllm":
        yield from _sampling_findings(check, config, name)
    stopped = [
        at for at, own in _sampling_sections(check, name).items() if own.get("stop_token_ids")
    ]
    engine = _engine(config) if stopped and not lacks else config.engine
    for section_path in stopped if engine in ("generic", "chat") else ():
        yield (
            f"{section_path}.stop_token_ids",
            f"cannot be asked of a server of engine {engine}, which serves model {name!r}; write "
            f"the text of the tokens in {section_path}.stop, or use vLLM, SGLang or plugrl serve",
        )


def _engine(config: Any) -> str:
    """The sort of server; auto: it cannot be asked now, which the start of a run will tell."""
    from plugrl.plugins.openai import handshake
    from plugrl.plugins.openai.conversation import Conversation

    if config.engine != "auto" or not config.get("base_url"):
        return str(config.engine)
    try:
        address = address_of(config)
        with closing(Conversation(address, frozen=False)) as server:
            return handshake.look(handshake.cards(server), config, address.base).engine
    except PlugrlError:
        return "auto"


def _sampling_findings(check: Preflight, config: Any, name: str) -> Iterator[Finding]:
    """Sampling with which vLLM's log-probabilities are others; its first request would fail."""
    processed = config.logprobs_mode == "processed"
    for path, section in _sampling_sections(check, name).items():
        heat, top_k, top_p = (section.get(key) for key in ("temperature", "top_k", "top_p"))
        if not processed and heat not in (None, 0, 1):
            yield (
                f"{path}.temperature",
                f"is {heat:g}, and vLLM, which serves model {name!r}, gives log-probabilities of "
                "temperature 1 unless it is started with --logprobs-mode processed_logprobs; "
                f"write 1, or start it so and write models.{name}.inference.logprobs_mode: "
                "processed",
            )
        for key, value, neutral in (("top_k", top_k, 0), ("top_p", top_p, 1)):
            if processed and value not in (None, neutral):
                yield (
                    f"{path}.{key}",
                    f"is {value:g}, and models.{name}.inference.logprobs_mode is processed: such "
                    f"log-probabilities are of the tokens that {key} keeps; write {neutral}, or "
                    "logprobs_mode: raw",
                )


def _sampling_sections(check: Preflight, name: str) -> dict[str, Any]:
    """Sections that say how a model is sampled, by path."""
    root, found = check.root, {}
    if root.rollout_worker.get("model") == name:
        if getattr(check.component("rollout_worker"), "judges_training", True):
            found["rollout_worker"] = root.rollout_worker
        if root.validate.enabled:
            found["validate"] = root.validate
    for path in check.validated.records:
        # Such as a judge.
        if path.startswith("rollout_worker."):
            section = section_at(root, path)
            if isinstance(section, ConfigView) and section.get("model") == name:
                found[path] = section
    return found


def _training_findings(config: Any, path: str, name: str) -> Iterator[Finding]:
    if config.engine in ("generic", "chat", "plugrl"):
        why = {
            "generic": "gives neither token ids nor log-probabilities",
            "chat": "gives neither token ids nor log-probabilities",
            "plugrl": "(plugrl serve) takes no weights",
        }[config.engine]
        yield (
            f"{path}.engine",
            f"{config.engine} {why}, and model {name!r} is trained; use vllm or sglang, or the "
            "inference service transformers",
        )


def _can_be_folder(name: str) -> bool:
    """Whether a path is a folder, or the first that exists of those above it is one."""
    path = Path(os.path.expanduser(name)).absolute()
    found = next((each for each in (path, *path.parents) if os.path.lexists(each)), path)
    return found.is_dir()
