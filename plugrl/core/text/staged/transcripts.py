"""Transcripts: rollouts as files that people read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from plugrl.core.protocol.state import Verdict
from plugrl.core.run.atomic_writes import disk_error, write_text
from plugrl.core.text.staged.stats import returns_of, verdicts_of

if TYPE_CHECKING:
    from plugrl.core.protocol.nested_array_dict import NestedArrayDict
    from plugrl.core.protocol.protocol import Protocol

_WORDS = {Verdict.REJECT: "reject", Verdict.ACCEPT: "accept", Verdict.UNDECIDED: "undecided"}


def transcript(rollouts: NestedArrayDict, number: int, protocol: Protocol) -> dict[str, Any]:
    """One episode, as plain values: what it was about, what was said, and how it ended."""
    row = rollouts[number : number + 1]
    label = int(np.asarray(row["y"])[0, 0])
    returns = returns_of(row)[0]
    about = {
        key: str(row[key][0, 0])
        for key in ("question", "solution")
        if key in row and row[key][0, 0]
    }
    return {
        "problem": int(np.asarray(row["datapoint_id"])[0, 0]),
        **about,
        "label": _WORDS[Verdict(label)],
        "verdict": _WORDS[Verdict(int(verdicts_of(row, protocol)[0]))],
        "rewards": {
            agent: float(reward)
            for agent, reward in zip(protocol.agent_names, returns, strict=True)
        },
        "rounds": [
            _round(row, turn, protocol)
            for turn in range(row.batch_size[1])
            if not bool(np.asarray(row["padding"])[0, turn])
        ],
    }


def _round(row: NestedArrayDict, turn: int, protocol: Protocol) -> list[dict[str, Any]]:
    said = []
    for place, agent in enumerate(protocol.agent_names):
        if not row["agents", "chat"][0, turn, place]:
            continue
        messages = row["agents", "message"][0, turn, place]
        entry: dict[str, Any] = {"agent": agent}
        sent = {
            channel: str(text)
            for channel, text in zip(protocol.channels, messages.tolist(), strict=True)
            if text
        }
        entry["says"] = sent if len(protocol.channels) > 1 else "".join(sent.values())
        raw = str(row["agents", "raw_message"][0, turn, place] or "")
        if raw.strip() != "".join(sent.values()).strip():
            entry["reply"] = raw
        decision = Verdict(int(np.asarray(row["agents", "decision"])[0, turn, place]))
        if decision != Verdict.UNDECIDED:
            entry["decides"] = _WORDS[decision]
        said.append(entry)
    return said


def write_transcripts(path: Path, rollouts: NestedArrayDict, protocol: Protocol, form: str) -> None:
    """Write all episodes to one file, ``path`` with the ending of ``form``: yaml or json.

    Raises:
        RunError, UsageError: the file cannot be written.
    """
    episodes = [transcript(rollouts, number, protocol) for number in range(len(rollouts))]
    if form == "json":
        text = json.dumps(episodes, indent=2, ensure_ascii=False) + "\n"
    else:
        text = _yaml(episodes)
    file = path.with_name(f"{path.name}.{form}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, text)
    except OSError as error:
        raise disk_error(error, "write transcripts", file) from error


def _yaml(episodes: list[dict[str, Any]]) -> str:
    """YAML in which text of several lines stands as it reads."""
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    def text(dumper: Any, value: str) -> Any:
        style = "|" if "\n" in value else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    yaml_: Any = yaml
    yaml_.add_representer(str, text, Dumper=Dumper)
    options = {"sort_keys": False, "allow_unicode": True, "width": 100}
    return str(yaml_.dump(episodes, Dumper=Dumper, **options))
