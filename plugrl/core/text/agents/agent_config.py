"""``agent_config.yaml``: the system prompt, tools and sampling of an agent."""

from __future__ import annotations

import logging
import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from plugrl.core.chat_template import Message
from plugrl.core.config.bad import BAD
from plugrl.core.config.check import Checker
from plugrl.core.config.schemas.schema import described
from plugrl.core.config.sources.files import locate, read_small_text
from plugrl.core.config.sources.interpolation import resolve
from plugrl.core.config.sources.merge import Layer
from plugrl.core.config.sources.origins import Fault, fault_at, raise_faults, shown
from plugrl.core.config.sources.reader import read_file
from plugrl.core.errors import ConfigError
from plugrl.core.text.agents.mcp_servers import server_of
from plugrl.core.text.agents.tools import Tool, bind
from plugrl.core.text.inference.chat import as_messages
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.core.wording import did_you_mean

logger = logging.getLogger(__name__)


@dataclass
class ToolSection:
    """One tool."""

    name: str = described("", "how the model calls it")
    binding: str = described("", "module:function; files of the workspace come first")
    description: str = described("", "what the model is told about it")
    parameters: dict[str, Any] = described({}, "JSON schema; empty: from the function's parameters")

    def __post_init__(self) -> None:
        for key in ("name", "binding"):
            if not getattr(self, key):
                raise ConfigError(f"{key} is missing; write name and binding: module:function")


@dataclass
class McpServerSection:
    """A server whose tools the agent may call."""

    command: list[str] | str = described([], "a program and its arguments, run without a shell")
    url: str = described("", "where a server runs already, such as http://127.0.0.1:8000/mcp")
    tools: list[str] = described([], "names of its tools; none: all of them")
    env: dict[str, str] = described({}, "variables of the program, besides HOME, PATH and the like")

    def __post_init__(self) -> None:
        if bool(self.command) == bool(self.url):
            raise ConfigError("name either command or url, one of them")


@dataclass
class SamplingSection:
    """How the agent samples in training; validation keeps its own temperature."""

    temperature: float | None = described(
        None, "null: rollout_worker.temperature", at_least=0, at_most=100
    )
    top_p: float | None = described(None, "null: rollout_worker.top_p", above=0, at_most=1)
    top_k: int = described(0, "0: all tokens", at_least=0, at_most=10**7)
    max_tokens: int | None = described(
        None, "tokens of one turn; null: what the limits leave", at_least=1, at_most=10**8
    )
    stop: list[str] | str = described([], "strings that end a turn; none: rollout_worker.stop")
    model: Any = described(None, "no effect: rollout_worker.model is asked")
    base_url: Any = described(None, "no effect")
    api_key: Any = described(None, "no effect")
    api_type: Any = described(None, "no effect")
    stream: Any = described(None, "no effect")
    timeout: Any = described(None, "no effect")
    max_retries: Any = described(None, "no effect")

    def __post_init__(self) -> None:
        self.over(SamplingParams(), is_val=False)

    def over(self, sampling: SamplingParams, *, is_val: bool) -> SamplingParams:
        """``sampling`` with what is written here; in validation its temperature stays."""
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        changed: dict[str, Any] = {"stop": stop} if stop else {}
        if self.max_tokens is not None:
            changed["max_new_tokens"] = self.max_tokens
        if not is_val:
            changed["top_k"] = self.top_k
            for name in ("temperature", "top_p"):
                if getattr(self, name) is not None:
                    changed[name] = getattr(self, name)
        return replace(sampling, **changed)


@dataclass
class AgentSection:
    """The whole file."""

    type: Literal["agent"] = described("agent", "what the file describes")
    name: str = described("agent", "for messages")
    description: str = described("", "for people")
    max_context_tokens: int | None = described(
        None, "tokens of a whole conversation; null: any", at_least=1, at_most=10**9
    )
    max_iterations: int | None = described(
        None, "turns; null: rollout_worker.max_turns", at_least=1, at_most=10**4
    )
    system_prompt: Any = described("", "text, a list of texts or messages, or a file")
    system_prompt_type: Literal["string", "list", "file"] | None = described(
        None, "how to read it; null: a list is a list, and other text is a string"
    )
    tool_call_mode: Literal["openai"] = described("openai", "tools are described by the template")
    tools: list[ToolSection] = described([], "what it may call")
    mcp_servers: list[McpServerSection] = described([], "servers whose tools it may call too")
    stop_tools: list[str] = described([], "tools whose result is the final answer")
    llm_config: SamplingSection = described(SamplingSection, "sampling")
    tracers: list[Any] = described([], "no effect: every turn is recorded")

    def __post_init__(self) -> None:
        # In lists, sections are plain mappings that were checked one by one.
        tools: list[Any] = self.tools
        names = [tool["name"] for tool in tools]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ConfigError(f"tools must have names of their own; {twice!r} is there twice")
        lost = next((name for name in self.stop_tools if name not in names), None)
        # Which tools servers have is not known yet.
        if lost is not None and not self.mcp_servers:
            has = f"they are: {', '.join(names) or 'none'}{did_you_mean(lost, names, 1)}"
            raise ConfigError(f"stop_tools must be names of tools; {lost!r} is none; {has}")


@dataclass(frozen=True)
class AgentDefinition:
    """An agent that is ready to run.

    Attributes:
        system: the messages before the query.
        limit: tokens of a whole conversation; None: any number.
        notes: what the file says and plugrl does differently.
    """

    name: str = "agent"
    system: tuple[Message, ...] = ()
    tools: tuple[Tool, ...] = ()
    stop_tools: frozenset[str] = frozenset()
    sampling: SamplingSection = field(default_factory=SamplingSection)
    max_turns: int | None = None
    limit: int | None = None
    notes: tuple[str, ...] = ()


def load_agent(path: str | Path, workspace: str | Path | None = None) -> AgentDefinition:
    """Read an agent from its file.

    Args:
        path: the file.
        workspace: the folder of its tools; None: that of the file.

    Raises:
        ConfigError: with all faults, each with file and line.
    """
    path = Path(path)
    faults: list[Fault] = []
    tree, origins, _ = read_file(path, faults)
    layer = Layer(tree, origins)
    checker = Checker(origins=layer.origins, unresolved=frozenset(resolve(layer, faults)))
    values, section = checker.fields(layer.tree, AgentSection, ())
    faults += checker.faults
    loader = _Loader(checker, path, Path(workspace) if workspace else path.resolve().parent)
    system = loader.system(values)
    tools = loader.tools(values)
    tools += loader.server_tools(values, {tool.name for tool in tools})
    raise_faults(faults + loader.faults, f"the agent of {shown(path)} is wrong")
    return AgentDefinition(
        name=section.name,
        system=tuple(system),
        tools=tuple(tools),
        stop_tools=frozenset(section.stop_tools),
        sampling=section.llm_config,
        max_turns=section.max_iterations,
        limit=section.max_context_tokens,
        notes=tuple(_notes(layer.tree, shown(path))),
    )


def _notes(tree: dict[str, Any], file: str) -> list[str]:
    """What is said about keys that are accepted and have no effect."""
    notes = []
    if tree.get("tracers"):
        notes.append(f"{file}: tracers have no effect; every turn is recorded token by token")
    idle = ("model", "base_url", "api_key", "api_type", "stream", "timeout", "max_retries")
    sampling = tree.get("llm_config") or {}
    written = [f"llm_config.{key}" for key in idle if key in sampling and key != "api_type"]
    if written:
        names = ", ".join(written)
        notes.append(f"{file}: {names} have no effect; the model rollout_worker.model is asked")
    return notes


class _Loader:
    """Reads what a schema cannot know: files and functions."""

    def __init__(self, checker: Checker, path: Path, workspace: Path) -> None:
        self._origins = checker.origins
        self._path = path
        self._workspace = workspace
        self.faults: list[Fault] = []

    def _fault(self, path: tuple[str | int, ...], message: str) -> None:
        self.faults.append(fault_at(self._origins, path, message))

    def system(self, values: dict[str, Any]) -> list[Message]:
        """The messages of the system prompt."""
        prompt, kind = values["system_prompt"], values["system_prompt_type"]
        if prompt is BAD or kind is BAD:
            return []
        kind = kind or ("list" if isinstance(prompt, list) else "string")
        here = ("system_prompt",)
        if kind == "list":
            if not isinstance(prompt, list):
                self._fault(here, "must be a list, as system_prompt_type says")
                return []
            items = [{"role": "system", "content": p} if isinstance(p, str) else p for p in prompt]
            try:
                return as_messages(items, "it") if items else []
            except ConfigError as error:
                self._fault(here, str(error))
                return []
        if prompt is not None and not isinstance(prompt, str):
            self._fault(here, "must be text; for a list write system_prompt_type: list")
            return []
        if kind == "file":
            prompt = self._read(prompt or "")
        return [{"role": "system", "content": prompt}] if prompt else []

    def _read(self, name: str) -> str:
        origin = self._origins.get(("system_prompt",))
        found = locate(name, origin) if name else None
        try:
            if found is not None:
                return read_small_text(found, name)
            self._fault(("system_prompt",), f"no such file: {name}")
        except ConfigError as error:
            self._fault(("system_prompt",), str(error))
        return ""

    def tools(self, values: dict[str, Any]) -> list[Tool]:
        """The tools, with their functions imported."""
        found = []
        sections = values["tools"] if isinstance(values["tools"], list) else []
        for number, section in enumerate(sections):
            if not isinstance(section, dict) or not isinstance(section.get("binding"), str):
                continue
            if not section["binding"] or not section["name"]:
                continue
            try:
                function = bind(section["binding"], self._workspace)
            except ConfigError as error:
                self._fault(("tools", number, "binding"), str(error))
                continue
            options = {k: section[k] for k in ("name", "description", "parameters")}
            found.append(Tool(function=function, **options))
        return found

    def server_tools(self, values: dict[str, Any], taken: set[str]) -> list[Tool]:
        """The tools of MCP servers, which are asked for them."""
        found: list[Tool] = []
        sections = values["mcp_servers"] if isinstance(values["mcp_servers"], list) else []
        for number, section in enumerate(sections):
            if not isinstance(section, dict) or any(value is BAD for value in section.values()):
                continue
            if bool(section["command"]) == bool(section["url"]):
                continue
            command = section["command"]
            try:
                words = shlex.split(command) if isinstance(command, str) else command
                server = server_of(words, section["url"], section["env"], str(self._workspace))
                tools = server.tools(section["tools"])
            except (ConfigError, ValueError) as error:
                self._fault(("mcp_servers", number), str(error))
                continue
            for tool in tools:
                if tool.name in taken:
                    fault = f"has a tool {tool.name!r}, as another of tools and servers; name those"
                    self._fault(("mcp_servers", number), f"{fault} that are meant in its tools")
                taken.add(tool.name)
            found += tools
        lost = [name for name in values["stop_tools"] or () if name not in taken]
        if sections and lost and not self.faults:
            self._fault(("stop_tools",), f"must be names of tools; {lost[0]!r} is none")
        return found
