"""Draw the learning curves of docs/recipe-results.md.

``python docs/curves.py RUNS_FOLDER [NAME ...]``

RUNS_FOLDER is the folder ``runs`` in which the recipes were trained, one run for each seed. A curve
``docs/curves/NAME.svg`` shows one metric of the validation over the steps of the runs.
"""

from __future__ import annotations

import itertools
import json
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


def drawing(title: str, metric: str, runs: Sequence[tuple[int, list[Point]]]) -> str:
    """The curves of several seeds; a dot marks where a phase of a run begins."""
    last = max(step for _, curve in runs for step, _, _ in curve) or 1

    def x(step: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * step / last

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif" font-size="12" fill="#777">',
        f"<title>{title}: {metric}</title>",
    ]
    for tenth in range(0, 11, 2):
        level = y(tenth / 10)
        parts += [line(LEFT, level, WIDTH - RIGHT, level, "#bbb", "2 4")]
        parts += [text(LEFT - 6, level + 4, f"{tenth / 10:.1f}", "end")]
    for quarter in range(5):
        step = round(last * quarter / 4)
        parts += [text(x(step), HEIGHT - BOTTOM + 16, str(step))]
    parts += [text(WIDTH / 2, HEIGHT - 6, "step"), text(LEFT, 16, metric, "start")]
    for number, (seed, curve) in enumerate(runs):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value, _ in curve)
        parts += [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>']
        starts = [new for old, new in itertools.pairwise(curve) if new[2] != old[2]]
        parts += [
            f'<circle cx="{x(step):.1f}" cy="{y(value):.1f}" r="3" fill="{colour}"/>'
            for step, value, _ in starts
        ]
        label = f'<tspan fill="{colour}">seed {seed}</tspan>'
        parts += [text(WIDTH - RIGHT - 60 * (len(runs) - 1 - number), 16, label, "end")]
    return "\n".join([*parts, "</svg>", ""])


def main(folder: Path, names: Sequence[str]) -> None:
    """Write the curves of the recipes that ``folder`` has runs of."""
    out = Path(__file__).with_name("curves")
    out.mkdir(exist_ok=True)
    for name in names or CURVES:
        metric = CURVES[name]
        runs = sorted((seed_of(run), points(run, metric)) for run in (folder / name).glob("*"))
        drawn = [(seed, curve) for seed, curve in runs if curve]
        if not drawn:
            print(f"{name}: no run in {folder / name} has {metric}", file=sys.stderr)
            continue
        (out / f"{name}.svg").write_text(drawing(name, metric, drawn), "utf-8")
        print(f"{name}: seeds {', '.join(str(seed) for seed, _ in drawn)}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2:])
