"""Reading replies: what goes to which channel, and what is decided."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from plugrl.core.protocol.state import Verdict


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply, taken apart.

    Args:
        messages: text by channel.
        decision: what is decided in it.
        fault: why it is malformed; "": it is not.
    """

    messages: Mapping[str, str] = field(default_factory=dict)
    decision: Verdict = Verdict.UNDECIDED
    fault: str = ""


class ReplyReader:
    """Takes replies apart, and writes what it would read.

    Args:
        section: of the rollout worker, with ``decision_form`` and its words, ``channel_header``
            and ``channel_names``.
    """

    def __init__(self, section: Any) -> None:
        self._section = section

    def channel_name(self, channel: str) -> str:
        """What agents call a channel."""
        return str(self._section.channel_names.get(channel, channel))

    def header(self, channel: str) -> str:
        """What begins the part of a reply that is for ``channel``."""
        return str(self._section.channel_header).replace("{}", self.channel_name(channel))

    def decision(self, verdict: Verdict | int) -> str:
        """The text that decides so; nothing for UNDECIDED."""
        section = self._section
        words = {Verdict.REJECT: section.reject_word, Verdict.ACCEPT: section.accept_word}
        word = words.get(Verdict(verdict))
        return "" if word is None else str(section.decision_form).replace("{}", word)

    @cached_property
    def _decides(self) -> re.Pattern[str]:
        section = self._section
        words = rf"(?:(?P<accept>{_literal(section.accept_word)})|" + (
            rf"(?P<reject>{_literal(section.reject_word)}))"
        )
        before, after = map(_literal, section.decision_form.split("{}"))
        # "acceptable" accepts nothing.
        return re.compile(rf"{_EDGE}{before}{words}{after}{_EDGE}", re.IGNORECASE)

    def read(self, text: str, channels: Sequence[str], *, decides: bool, must: bool) -> Reply:
        """Take a reply apart.

        Args:
            text: the reply.
            channels: where it may speak, in order.
            decides: whether it may decide.
            must: whether it is malformed without a decision.
        """
        decision = Verdict.UNDECIDED
        if decides:
            found = {match.lastgroup for match in self._decides.finditer(text)}
            if len(found) > 1:
                return Reply(fault="it decides both ways")
            if found:
                decision = Verdict[str(found.pop()).upper()]
                text = self._decides.sub("", text)
        if must and decision == Verdict.UNDECIDED:
            return Reply(fault=f"it lacks {self.decision(1)!r} or {self.decision(0)!r}")
        messages = self._parts(text, channels)
        if decision == Verdict.UNDECIDED and not all(messages.get(c) for c in channels):
            empty = next(c for c in channels if not messages.get(c))
            what = repr(self.header(empty)) if len(channels) > 1 else "any text"
            return Reply(messages, fault=f"it lacks {what}")
        return Reply(messages, decision)

    def _parts(self, text: str, channels: Sequence[str]) -> dict[str, str]:
        if len(channels) == 1:
            return {channels[0]: text.strip()}
        headers = "|".join(
            f"(?P<c{number}>{_literal(self.header(channel))})"
            for number, channel in enumerate(channels)
        )
        found = list(re.finditer(rf"^[ \t]*(?:{headers})", text, re.IGNORECASE | re.MULTILINE))
        parts = dict.fromkeys(channels, "")
        ends = [*(match.start() for match in found[1:]), len(text)]
        for match, end in zip(found, ends, strict=False):
            own = text[match.end() : end].strip()
            channel = channels[int(str(match.lastgroup)[1:])]
            parts[channel] = "\n".join(filter(None, [parts[channel], own]))
        return parts


#: Anywhere but inside a word.
_EDGE = r"(?:(?<!\w)|(?!\w))"


def _literal(text: str) -> str:
    """A pattern for ``text`` in which any white space does for white space."""
    return re.sub(r"(?:\\?\s)+", lambda _: r"\s*", re.escape(text))
