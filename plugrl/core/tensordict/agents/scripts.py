"""Hand-made policies: functions in the place of networks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plugrl.core.errors import ConfigError
from plugrl.core.plugins.loading import describe_error, import_named
from plugrl.core.wording import did_you_mean

if TYPE_CHECKING:
    from plugrl.core.tensordict.environment.vector_environment import AgentSpaces, Script


def script_for(name: str, spaces: AgentSpaces) -> Script:
    """The hand-made policy of a name.

    Args:
        name: of one that the task gives, ``package.module:function`` or ``file.py:function``.
        spaces: of the agent, which know what the task gives.

    Raises:
        ConfigError: there is none.
    """
    if name in spaces.scripts:
        return spaces.scripts[name]
    where, _, attribute = name.partition(":")
    if not attribute:
        given = ", ".join(spaces.scripts) or "none"
        raise ConfigError(
            f"the task has no hand-made policy {name!r}{did_you_mean(name, spaces.scripts)}; it "
            f"has: {given}; others are named package.module:function or file.py:function"
        )
    try:
        module = import_named(where)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise ConfigError(f"{where} cannot be imported: {describe_error(error, where)}") from error
    script = getattr(module, attribute, None)
    if not callable(script):
        known = [each for each in dir(module) if not each.startswith("_")]
        raise ConfigError(f"{where} has no function {attribute!r}{did_you_mean(attribute, known)}")
    return script  # type: ignore[no-any-return]
