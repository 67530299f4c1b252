"""Draw the learning curves of docs/recipe-results.md and docs/small-network-results.md.

``python docs/curves.py RUNS_FOLDER [NAME ...]``
``python docs/curves.py LINES.jsonl ...``

RUNS_FOLDER is the folder ``runs`` in which the recipes were trained, one run for each seed. A curve
``docs/curves/NAME.svg`` shows one metric of the validation over the steps of the runs. LINES are
what ``plugrl bench zoo`` wrote; ``docs/curves/ENVIRONMENT.svg`` shows the returns of training by
each algorithm, means over its seeds, over the part of the run that had passed.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

#: The curves: recipe, and the metric that is shown.
CURVES = {
    "quickstart": "validation/exact_match",
    "sft": "validation/exact_match",
    "opd": "validation/exact_match",
    "dpo": "validation/accuracy",
    "calculator_agent": "validation/exact_match",
}
COLOURS = ("#1f77b4", "#d95f02", "#2a9d5c", "#8856a7", "#b8860b")
WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 48, 16, 28, 40
Point = tuple[int, float, int]


def points(run: Path, metric: str) -> list[Point]:
    """Step, value and phase of every validation of a run."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text("utf-8").splitlines())
    return [(line["step"], line[metric], line.get("phase", 1)) for line in lines if metric in line]


def seed_of(run: Path) -> int:
    """The seed that a run was trained with."""
    for line in (run / "config.yaml").read_text("utf-8").splitlines():
        if line.startswith("seed:"):
            return int(line.partition(":")[2])
    raise SystemExit(f"{run}: config.yaml has no seed")


def text(x: float, y: float, words: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{words}</text>'


def line(x1: float, y1: float, x2: float, y2: float, colour: str, dashes: str = "") -> str:
    extra = f' stroke-dasharray="{dashes}"' if dashes else ""
    place = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {place} stroke="{colour}"{extra}/>'


def drawing(
    title: str,
    metric: str,
    runs: Sequence[tuple[str, list[Point]]],
    *,
    low: float = 0.0,
    high: float = 1.0,
    across: str = "step",
) -> str:
    """The curves of several runs by label; a dot marks where a phase of a run begins.

    Values from ``low`` to ``high`` are shown, over what ``across`` says.
    """
    last = max(step for _, curve in runs for step, _, _ in curve) or 1

    def x(step: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * step / last

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - low) / (high - low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif" font-size="12" fill="#777">',
        f"<title>{title}: {metric}</title>",
    ]
    for tenth in range(0, 11, 2):
        value = low + (high - low) * tenth / 10
        level, shown = y(value), f"{value:.1f}" if high - low < 10 else f"{value:.0f}"
        parts += [line(LEFT, level, WIDTH - RIGHT, level, "#bbb", "2 4")]
        parts += [text(LEFT - 6, level + 4, shown, "end")]
    for quarter in range(5):
        step = round(last * quarter / 4)
        parts += [text(x(step), HEIGHT - BOTTOM + 16, str(step))]
    parts += [text(WIDTH / 2, HEIGHT - 6, across), text(LEFT, 16, metric, "start")]
    for number, (name, curve) in enumerate(runs):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value, _ in curve)
        parts += [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>']
        starts = [new for old, new in itertools.pairwise(curve) if new[2] != old[2]]
        parts += [
            f'<circle cx="{x(step):.1f}" cy="{y(value):.1f}" r="3" fill="{colour}"/>'
            for step, value, _ in starts
        ]
        label = f'<tspan fill="{colour}">{name}</tspan>'
        parts += [text(WIDTH - RIGHT - 60 * (len(runs) - 1 - number), 16, label, "end")]
    return "\n".join([*parts, "</svg>", ""])


def main(folder: Path, names: Sequence[str]) -> None:
    """Write the curves of the recipes that ``folder`` has runs of."""
    out = Path(__file__).with_name("curves")
    out.mkdir(exist_ok=True)
    for name in names or CURVES:
        metric = CURVES[name]
        runs = sorted((seed_of(run), points(run, metric)) for run in (folder / name).glob("*"))
        drawn = [(f"seed {seed}", curve) for seed, curve in runs if curve]
        if not drawn:
            print(f"{name}: no run in {folder / name} has {metric}", file=sys.stderr)
            continue
        (out / f"{name}.svg").write_text(drawing(name, metric, drawn), "utf-8")
        print(f"{name}: {', '.join(label for label, _ in drawn)}")


def mean_curve(curves: Sequence[list[list[float]]]) -> list[Point]:
    """The mean of curves, point by point, over hundredths of the run."""
    short = min(len(curve) for curve in curves)
    points = []
    for number in range(short):
        done = sum(curve[number][0] / curve[-1][0] for curve in curves) / len(curves)
        points.append(
            (round(100 * done), sum(curve[number][1] for curve in curves) / len(curves), 1)
        )
    return points


def draw_lines(files: Sequence[Path]) -> None:
    """Write a curve for each environment that the lines of ``plugrl bench zoo`` name."""
    found: dict[str, dict[str, list[list[list[float]]]]] = {}
    for row in (json.loads(each) for file in files for each in file.read_text().splitlines()):
        if not row.get("error") and not row["overrides"] and row["curve"]:
            algorithm, environment = row["pair"].split("/")
            found.setdefault(environment, {}).setdefault(algorithm, []).append(row["curve"])
    out = Path(__file__).with_name("curves")
    out.mkdir(exist_ok=True)
    for environment, algorithms in found.items():
        runs = [(name, mean_curve(curves)) for name, curves in sorted(algorithms.items())]
        values = [value for _, curve in runs for _, value, _ in curve]
        # Round numbers that hold all values between them.
        unit = 10.0 ** len(str(int(max(values) - min(values)))) / 10
        low, high = (unit * math.floor(min(values) / unit), unit * math.ceil(max(values) / unit))
        picture = drawing(
            environment,
            "return of an episode",
            runs,
            low=low,
            high=high,
            across="hundredths of the run",
        )
        (out / f"{environment}.svg").write_text(picture, "utf-8")
        print(f"{environment}: {', '.join(name for name, _ in runs)}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    if sys.argv[1].endswith(".jsonl"):
        draw_lines([Path(name) for name in sys.argv[1:]])
    else:
        main(Path(sys.argv[1]), sys.argv[2:])
