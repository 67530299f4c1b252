"""Options that the scenarios of Gymnasium, PettingZoo and TorchRL have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from plugrl.core.config.view import plain
from plugrl.core.errors import ConfigError

if TYPE_CHECKING:
    from plugrl.core.tensordict.environment.vector_environment import Split


def copies_in(config: Any, split: Split) -> int | None:
    """How many copies of an environment there are in a split; None: what the environment says.

    Args:
        config: with ``num_envs`` and ``num_test_envs``.
        split: what they are for.
    """
    if split == "film":
        return 1
    count: int | None = config.num_envs
    return count if split == "train" else config.num_test_envs or count


def check_named(option: str, values: list[Any]) -> None:
    """Refuse what names no wrapper or transform.

    Args:
        option: its key.
        values: import paths, or mappings of ``path`` and ``kwargs``.

    Raises:
        ConfigError: one is neither.
    """
    for number, value in enumerate(values):
        if isinstance(value, str):
            continue
        if not isinstance(value, Mapping) or not isinstance(value.get("path"), str):
            raise ConfigError(
                f"{option}[{number}] must be an import path, or "
                "{path: module:Class, kwargs: {...}}"
            )
        if set(value) - {"path", "kwargs"} or not isinstance(value.get("kwargs") or {}, Mapping):
            raise ConfigError(
                f"{option}[{number}] takes path and kwargs (a mapping) and nothing else"
            )


def import_path_and_arguments(value: Any) -> tuple[str, dict[str, Any]]:
    """Import path and keyword arguments of what :func:`check_named` let pass."""
    if isinstance(value, str):
        return value, {}
    return value["path"], dict(plain(value.get("kwargs")) or {})
