"""Tools: functions that an agent may call, found by their binding and called with a time limit."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plugrl.core.errors import ConfigError
from plugrl.core.plugins.loading import describe_error, import_target
from plugrl.core.plugins.user_code.copies import own_copy
from plugrl.core.plugins.user_code.error_location import one_line
from plugrl.core.plugins.user_code.user_files import load_module
from plugrl.core.text.agents.parsing import ToolCall
from plugrl.core.text.rollout.fibers import Fibers, Overrun
from plugrl.core.wording import did_you_mean

_TYPES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}
_TYPES |= {"list": "array", "dict": "object"}


class ToolFailedError(Exception):
    """A call failed; the model reads the message in place of a result."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that an agent may call.

    Args:
        name: how the model calls it.
        function: plain or ``async``.
        description: what the model is told about it.
        parameters: JSON schema of its arguments.
    """

    name: str
    function: Callable[..., Any]
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def schema(self) -> dict[str, Any]:
        """The tool as chat templates take it."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": dict(self.parameters) or parameters_of(self.function),
            },
        }


def parameters_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The JSON schema of a function's parameters, as far as its annotations tell."""
    properties: dict[str, Any] = {}
    required = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        hint = parameter.annotation
        name = hint if isinstance(hint, str) else getattr(hint, "__name__", "")
        kind = _TYPES.get(name.partition("[")[0])
        properties[parameter.name] = {"type": kind} if kind else {}
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    return {"type": "object", "properties": properties, "required": required}


def bind(binding: str, workspace: Path) -> Callable[..., Any]:
    """The function that ``module:function`` means: in the workspace, else in a package.

    Files of the workspace are imported as a package of that folder, so that two agents may have
    modules of one name.

    Raises:
        ConfigError: there is no such module or function, or it cannot be imported.
    """
    module, colon, name = binding.partition(":")
    if not (colon and module and name):
        raise ConfigError(f"must be module:function, not {binding!r}")
    file = _file(module, workspace)
    try:
        owner = load_module(workspace, module) if file else importlib.import_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if isinstance(error, ModuleNotFoundError) and module.split(".")[0] == error.name:
            raise ConfigError(
                f"there is no {module}.py in {workspace}, and no installed module {module!r}"
                f"{did_you_mean(module, [each.stem for each in workspace.glob('*.py')], 1)}"
            ) from None
        reason = describe_error(error, "" if file else module)
        raise ConfigError(f"{binding} cannot be imported: {reason}") from error
    try:
        function = import_target(f"{owner.__name__}:{name}")
    except AttributeError:
        known = [key for key, value in vars(owner).items() if callable(value) and key[0] != "_"]
        raise ConfigError(
            f"{file or module} has no {name!r}{did_you_mean(name, known, 1)}"
        ) from None
    if not callable(function):
        raise ConfigError(f"{binding} is a {type(function).__name__}, not a function")
    return function  # type: ignore[no-any-return]


def _file(module: str, workspace: Path) -> Path | None:
    path = workspace.joinpath(*module.split("."))
    found = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in found if file.is_file()), None)


class Toolbox:
    """The tools of an agent, and how long each call may take.

    Plain functions run one at a time, in a thread; ``async`` ones while others wait. A thread
    whose function does not come back is left behind, since Python cannot stop it.
    """

    def __init__(self, tools: list[Tool], seconds: float) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._seconds = seconds
        self._fibers = Fibers()
        self.schemas = [tool.schema for tool in tools]

    async def call(self, call: ToolCall) -> str:
        """The result of a call as text.

        Raises:
            ToolFailedError: there is no such tool, it does not take these arguments, it raises,
                takes too long, or gives what cannot be written.
        """
        if call.error:
            raise ToolFailedError(call.error)
        tool = self._tool(call.name)
        # The call is a part of what was said, whatever the function does to its arguments.
        arguments = _bind_arguments(tool, own_copy(call.arguments))
        try:
            result = await self._result(tool, arguments)
        except (TimeoutError, Overrun):
            raise ToolFailedError(f"{tool.name} took more than {self._seconds:g} seconds") from None
        return _text(tool, result)

    def _tool(self, name: str) -> Tool:
        if not name and len(self._tools) == 1:
            return next(iter(self._tools.values()))
        if name not in self._tools:
            known = ", ".join(self._tools) or "none"
            raise ToolFailedError(f"there is no tool {name!r}; tools are: {known}")
        return self._tools[name]

    async def _result(self, tool: Tool, arguments: inspect.BoundArguments) -> Any:
        def call() -> tuple[Any, BaseException | None]:
            # In the thread: what the tool raises must not be taken for an interruption of ours.
            try:
                return tool.function(*arguments.args, **arguments.kwargs), None
            except BaseException as error:
                return None, error

        result, error = await self._fibers.run(call, self._seconds)
        if error is None and inspect.isawaitable(result):
            result, error = await self._await_result(result)
        if error is not None:
            raise ToolFailedError(f"{tool.name} failed: {one_line(error)}") from error
        return result

    async def _await_result(self, result: Any) -> tuple[Any, BaseException | None]:
        task = asyncio.ensure_future(_capture_exception(result))
        try:
            done, _ = await asyncio.wait({task}, timeout=self._seconds)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not done:
            task.cancel()
            raise TimeoutError
        if task.cancelled():
            return None, asyncio.CancelledError("the tool was cancelled")
        return task.result()


async def _capture_exception(result: Any) -> tuple[Any, BaseException | None]:
    try:
        return await result, None
    except (Exception, SystemExit, KeyboardInterrupt, GeneratorExit) as error:
        return None, error


def _bind_arguments(tool: Tool, arguments: Mapping[str, Any] | list[Any]) -> inspect.BoundArguments:
    try:
        signature = inspect.signature(tool.function)
        if isinstance(arguments, Mapping):
            return signature.bind(**arguments)
        return signature.bind(*arguments)
    except (TypeError, ValueError) as error:
        raise ToolFailedError(f"{tool.name} was called wrongly: {error}") from None


def _text(tool: Tool, result: Any) -> str:
    if isinstance(result, str):
        return result
    try:
        return json.dumps(result, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        kind = type(result).__name__
        raise ToolFailedError(f"{tool.name} gave a {kind}, which is no text") from None
