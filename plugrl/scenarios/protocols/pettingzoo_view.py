"""Protocols as games of PettingZoo, in which agents send numbers and judge a hidden label."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from plugrl.core.errors import ConfigError
from plugrl.core.protocol.protocol import make_protocol

if TYPE_CHECKING:
    from plugrl.scenarios.protocols.pettingzoo_game import ProtocolGame


def parallel_env(protocol: str | Mapping[str, Any] = "nip", messages: int = 4) -> ProtocolGame:
    """A game of ``protocol`` with so many different messages; PettingZoo is imported here.

    Args:
        protocol: a name, or a mapping with ``type`` and options.
        messages: how many messages there are.

    Raises:
        ConfigError: PettingZoo is missing, there is no such protocol, or it has wrong options.
    """
    if messages < 1:
        raise ConfigError("messages must be at least 1")
    if importlib.util.find_spec("pettingzoo") is None:
        raise ConfigError('pettingzoo is not installed; run: pip install "plugrl[pettingzoo]"')
    from plugrl.scenarios.protocols.pettingzoo_game import ProtocolGame

    return ProtocolGame(make_protocol(protocol), messages)
