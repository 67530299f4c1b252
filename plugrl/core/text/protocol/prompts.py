"""Prompts of the agents of a protocol, from template files that a user can replace.

The file of an agent is the first there is of ``PROTOCOL/AGENT.txt``, ``AGENT.txt``,
``PROTOCOL/ROLE.txt`` and ``ROLE.txt`` in the folder; roles are ``prover`` and ``verifier``. It has
parts, each under a line with its name in brackets: ``[system]``, which may be missing, ``[first]``
for the agent's first turn and ``[later]`` for its others. They are Jinja templates.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plugrl.core.chat_template import Message
from plugrl.core.config.sources.files import read_small_text
from plugrl.core.errors import ConfigError
from plugrl.core.plugins.user_code.error_location import one_line
from plugrl.core.wording import did_you_mean

if TYPE_CHECKING:
    from plugrl.core.protocol.protocol import Protocol

PARTS = ("system", "first", "later")
#: What templates may use.
FACTS = (
    "accept",
    "agent",
    "channels",
    "headers",
    "heard",
    "item",
    "may_decide",
    "must_decide",
    "provers",
    "question",
    "reject",
    "round",
    "rounds",
    "solution",
    "stance",
    "verifiers",
)
_GENERAL = Path(__file__).parent / "templates"
_HEADING = re.compile(r"^\[(\w+)\][ \t]*\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A message of another agent, as templates show it to the one that receives it.

    Args:
        channel: what the channel is called.
        agent: who said it.
        text: what it says.
    """

    channel: str
    agent: str
    text: str

    def __str__(self) -> str:
        return self.text


class AgentPrompts:
    """The templates of one agent.

    Args:
        path: their file.

    Raises:
        ConfigError: it cannot be read, lacks the part ``[first]`` or has one of another name, or a
            part is no template or uses what there is not.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._parts = {name: _template(path, name, text) for name, text in _parts(path).items()}

    def opening(self, facts: Mapping[str, Any]) -> list[Message]:
        """The messages before the agent's first reply.

        Raises:
            ConfigError: a template fails over the facts.
        """
        roles = {"system": "system", "first": "user"}
        return [
            {"role": role, "content": self._render(part, facts)}
            for part, role in roles.items()
            if part in self._parts
        ]

    def later(self, facts: Mapping[str, Any]) -> Message:
        """The message before a later reply; without a template, what was heard.

        Raises:
            ConfigError: the template fails over the facts.
        """
        if "later" in self._parts:
            return {"role": "user", "content": self._render("later", facts)}
        heard = facts["heard"]
        several = len({each.channel for each in heard}) > 1
        lines = [f"{each.channel}: {each.text}" if several else each.text for each in heard]
        return {"role": "user", "content": "\n".join(lines)}

    def _render(self, part: str, facts: Mapping[str, Any]) -> str:
        try:
            return self._parts[part](**facts).strip("\n")
        except Exception as error:
            raise ConfigError(
                f"prompt {self.path}, part [{part}]: {one_line(error)}; it may use "
                f"{', '.join(FACTS)}"
            ) from error


def load_prompts(
    folder: str | None, protocol: Protocol, names: tuple[str, ...]
) -> dict[str, AgentPrompts]:
    """The templates of all agents of a protocol.

    Args:
        folder: with the files; None: general ones.
        protocol: whose agents are meant.
        names: what its folder may be called, the best first.

    Raises:
        ConfigError: an agent has no file, or one is malformed.
    """
    root = _GENERAL if folder is None else Path(folder)
    return {
        agent: AgentPrompts(_file(root, protocol, agent, names)) for agent in protocol.agent_names
    }


def _file(root: Path, protocol: Protocol, agent: str, names: tuple[str, ...]) -> Path:
    role = "prover" if agent in protocol.prover_names else "verifier"
    own = [root / name / f"{agent}.txt" for name in names]
    shared = [root / name / f"{role}.txt" for name in names]
    tried = [*own, root / f"{agent}.txt", *shared, root / f"{role}.txt"]
    found = next((path for path in tried if path.is_file()), None)
    if found is None:
        # An agent may be called as its role.
        shown = ", ".join(dict.fromkeys(str(path.relative_to(root)) for path in tried))
        raise ConfigError(f"{root} has no prompt of agent {agent!r}; write one of {shown}")
    return found


def _parts(path: Path) -> dict[str, str]:
    pieces = _HEADING.split(read_small_text(path, f"prompt {path}"))
    parts = {name: body.strip("\n") for name, body in zip(pieces[1::2], pieces[2::2], strict=True)}
    strange = [name for name in parts if name not in PARTS]
    if strange or pieces[0].strip() or "first" not in parts:
        what = f"has a part [{strange[0]}]" if strange else "does not begin with the name of a part"
        what = what if strange or pieces[0].strip() else "has no part [first]"
        raise ConfigError(f"prompt {path} {what}; its parts are [system], [first] and [later]")
    return parts


def _template(path: Path, part: str, text: str) -> Callable[..., str]:
    from jinja2 import TemplateSyntaxError

    try:
        render, used = _compile_template(text)
    except TemplateSyntaxError as error:
        raise ConfigError(
            f"prompt {path}, part [{part}], line {error.lineno}: {error.message}"
        ) from None
    strange = sorted(used.difference(FACTS))
    if strange:
        close = did_you_mean(strange[0], FACTS, 1)
        raise ConfigError(
            f"prompt {path}, part [{part}] uses {strange[0]!r}, which there is not; it may use "
            f"{', '.join(FACTS)}{close}"
        )
    return render


@lru_cache(maxsize=256)
def _compile_template(text: str) -> tuple[Callable[..., str], frozenset[str]]:
    """What renders a template, and the names that it expects."""
    from jinja2 import StrictUndefined
    from jinja2.meta import find_undeclared_variables
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )
    used = find_undeclared_variables(environment.parse(text))
    return environment.from_string(text).render, frozenset(used.difference(environment.globals))
