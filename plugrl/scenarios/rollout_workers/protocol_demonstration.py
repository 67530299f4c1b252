"""Demonstrations of a protocol: episodes whose replies are written, to learn from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from plugrl.core.text.protocol.worker import ProtocolRolloutWorker

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight


class ProtocolDemonstrationRolloutWorker(ProtocolRolloutWorker):
    """Plays episodes in which ``agents.NAME.script`` names the replies, and gives them to learn.

    The replies of agents without a script are sampled, and not learned. Validation asks the models
    of all.
    """

    teaches: ClassVar[bool] = True

    @classmethod
    def columns(
        cls, section: Mapping[str, Any], data: Mapping[str, Any], path: str, *, is_val: bool
    ) -> Mapping[str, str]:
        """The columns of labels, and of replies where they are written."""
        found = super().columns(section, data, path, is_val=is_val)
        return {k: v for k, v in found.items() if not (is_val and k.endswith(".script"))}

    @classmethod
    def preflight(cls, check: Preflight) -> Iterable[Finding]:
        """Besides agents and prompts: whether anything is written."""
        yield from super().preflight(check)
        if not any(own.get("script") for own in check.section.agents.values()):
            yield (
                f"{check.path}.agents",
                "no agent has a script, so that there is nothing to learn; write the column of its "
                "replies, such as agents.verifier.script=verdict",
            )
