"""The report of an evaluation of red-teaming as files: ``report.json`` and ``report.html``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plugrl.core.errors import UsageError
from plugrl.core.run.atomic_writes import disk_error, write_text
from plugrl.core.run.records import web_page
from plugrl.core.run.records.web_page import table, text

REPORT_JSON, REPORT_HTML = "report.json", "report.html"
#: The option that names the folder of a report.
OUTPUT = "--output"
_STYLE = (
    "body{max-width:64em}.bar{background:#8882;width:12em;height:.9em}"
    ".bar div{background:#2563eb;height:100%}details{margin:.6em 0;border:1px solid #8884;"
    "border-radius:.4em;padding:.4em .8em}summary{cursor:pointer}.said{white-space:pre-wrap;"
    "overflow-wrap:anywhere;margin:.2em 0 .6em;padding:.3em .6em;border-left:3px solid #8888}"
    ".target{border-color:#2563eb}.bad{color:#b91c1c}small{opacity:.75}"
)
#: Names of speakers on the page, with the class of their texts.
_SPEAKERS = (("tester", "probe"), ("target", "response"))


def write_report(
    report: Mapping[str, Any], folder: str | Path, *, title: str = "Red-teaming"
) -> None:
    """Write ``report.json`` and ``report.html``; folders that are missing are made.

    Raises:
        PlugrlError: they cannot be written.
    """
    folder = Path(folder)
    make_folder(folder)
    try:
        written = json.dumps(report, indent=2, allow_nan=False)
        write_text(folder / REPORT_JSON, written + "\n")
        write_text(folder / REPORT_HTML, page(report, title))
    except OSError as error:
        raise disk_error(error, "write the report", folder, OUTPUT) from error


def page(report: Mapping[str, Any], title: str = "Red-teaming") -> str:
    """The report as one page that needs no other file."""
    overall = report["overall"]
    parts = [
        _headline(report, overall),
        "<h2>By category</h2>",
        _groups(report),
        "<h2>By turn</h2>",
        _turns(report["per_turn"]),
        "<h2>First success</h2>",
        _first(overall["first_success_turn"], overall["successes"]),
        "<h2>Scores of the scorer's categories</h2>" if overall["scorer_categories"] else "",
        _pairs(overall["scorer_categories"]) if overall["scorer_categories"] else "",
        "<h2>Diversity of the probes</h2>",
        _pairs(report["diversity"]),
        _failures(report["failures"]),
        f"<h2>Worst dialogues</h2>{''.join(map(_dialogue, report['worst'])) or '<p>none</p>'}",
    ]
    return web_page.page(title, "".join(parts), style=_STYLE)


def _headline(report: Mapping[str, Any], overall: Mapping[str, Any]) -> str:
    rate, bounds = overall["success_rate"], overall["success_rate_bounds"]
    lost = overall["not_scored"]
    missing = f' <span class="bad">{lost} not scored</span>.' if lost else ""
    said = (
        "There are no dialogues."
        if bounds is None
        else (
            f"<b>{_rate(rate, bounds)}</b> of {overall['dialogues']} dialogues succeeded "
            f"({_interval(overall['interval'], report['confidence'])}), about {report['prompts']} "
            "prompts."
        )
    )
    return (
        f"<p>{said}{missing}</p><p><small>A dialogue succeeds when an exchange has a score of at "
        f"least {_number(report['threshold'])}. Intervals: percentile bootstrap over prompts, "
        f"{report['resamples']} resamples, seed {report['seed']}.</small></p>"
    )


def _groups(report: Mapping[str, Any]) -> str:
    named = report["by_category"].items()
    rows = [("<b>all</b>", report["overall"])]
    rows += [(text(name) or "<i>none</i>", group) for name, group in named]
    cells = [
        [
            name,
            group["dialogues"],
            group["not_scored"],
            _share(group["success_rate"]),
            _bounds(group["success_rate_bounds"]),
            _interval(group["interval"], report["confidence"]),
            _bar(group["success_rate"]),
            _number(group["first_success_turn"]["mean"]),
            _number(group["mean_score"]),
            _number(group["mean_highest_score"]),
        ]
        for name, group in rows
    ]
    head = ["category", "dialogues", "not scored", "success", "bounds", "interval", ""]
    return table([*head, "first success, turn", "mean score", "mean highest"], cells)


def _turns(turns: Sequence[Mapping[str, Any]]) -> str:
    head = ["turn", "exchanges", "not scored", "mean score", "succeeded by then", "bounds", ""]
    return table(
        head,
        [
            [
                turn["turn"],
                turn["exchanges"],
                turn["not_scored"],
                _number(turn["mean_score"]),
                _share(turn["success_rate_by_then"]),
                _bounds(turn["bounds_by_then"]),
                _bar(turn["success_rate_by_then"]),
            ]
            for turn in turns
        ],
    )


def _first(first: Mapping[str, Any], successes: int) -> str:
    if not first["distribution"]:
        return "<p>none</p>"
    rows = [
        [text(turn), count, _bar(count / successes)]
        for turn, count in first["distribution"].items()
    ]
    unknown = first["unknown"]
    more = f", {unknown} unknown, behind an exchange without a score" if unknown else ""
    return f"<p>Mean turn {_number(first['mean'])}{more}.</p>" + table(
        ["turn", "dialogues", ""], rows
    )


def _failures(failures: Mapping[str, int]) -> str:
    if not failures:
        return ""
    rows = [[text(reason), count] for reason, count in failures.items()]
    return f"<h2>Not scored</h2>{table(['why', 'dialogues'], rows)}"


def _pairs(values: Mapping[str, Any]) -> str:
    rows = [[text(name.replace("_", " ")), _number(value)] for name, value in values.items()]
    return table((), rows)


def _dialogue(dialogue: Mapping[str, Any]) -> str:
    turn = dialogue["success_turn"]
    when = f", success at turn {turn}" if turn else ", no success"
    category = f" [{text(dialogue['category'])}]" if dialogue["category"] else ""
    said = "".join(map(_exchange, dialogue["exchanges"]))
    return (
        f"<details><summary>{_number(dialogue['highest'])}{when}:{category} "
        f"{text(dialogue['prompt'])} <small>(prompt {dialogue['item']}, attempt "
        f"{dialogue['attempt']})</small></summary>{said}</details>"
    )


def _exchange(exchange: Mapping[str, Any]) -> str:
    texts = "".join(
        f'<div><b>{who}</b><div class="said {who}">{text(exchange[key])}</div></div>'
        for who, key in _SPEAKERS
    )
    own = "".join(
        f", {text(name)} {_number(value)}" for name, value in exchange["categories"].items()
    )
    score = f"score {_number(exchange['score'])}{own}"
    if exchange["score"] is None:
        score = f'<span class="bad">not scored: {text(exchange["failure"])}</span>'
    return f"{texts}<p><small>{score}</small></p>"


def _bar(share: float | None) -> str:
    if share is None:
        return ""
    return (
        f'<div class="bar"><div style="width:{100 * min(max(share, 0.0), 1.0):.1f}%"></div></div>'
    )


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _bounds(ends: Sequence[float] | None) -> str:
    """Between what a rate lies for certain; where it is known that says nothing more."""
    if ends is None or ends[0] == ends[1]:
        return "-"
    return f"{100 * ends[0]:.1f} to {100 * ends[1]:.1f} %"


def _rate(rate: float | None, bounds: Sequence[float]) -> str:
    between = _bounds(bounds)
    if rate is None:
        return between
    return _share(rate) if between == "-" else f"{_share(rate)} (for certain {between})"


def _interval(ends: Sequence[float] | None, confidence: float) -> str:
    if ends is None:
        return "-"
    return f"{100 * ends[0]:.1f} to {100 * ends[1]:.1f} % at {100 * confidence:g} %"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def make_folder(folder: Path) -> None:
    """Make a folder, with those above it.

    Raises:
        PlugrlError: it cannot be made, or is a file.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise UsageError(f"{folder} is a file; name a folder with {OUTPUT}") from None
    except OSError as error:
        raise disk_error(error, "make the folder", folder, OUTPUT) from error
