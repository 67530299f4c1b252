"""Write the word problems of the recipe ``math_parquet``: ``python make_problems.py [FOLDER]``."""

import itertools
import random
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

NAMES = ("Ann", "Bob", "Eva", "Tom")
THINGS = ("nuts", "pens", "figs", "eggs")
ASKED = {
    "+": "{name} has {a} {thing} and gets {b}. Now?",
    "-": "{name} has {a} {thing} and eats {b}. Now?",
}


def problems(seed: int = 0) -> dict[str, list[dict[str, str]]]:
    """Problems of the splits ``train`` and ``validation``, which share no pair of numbers."""
    rng = random.Random(seed)
    cases = [("+", a, b) for a, b in itertools.product(range(2, 50), range(2, 10))]
    cases += [("-", a, b) for a, b in itertools.product(range(12, 60), range(2, 10))]
    rng.shuffle(cases)
    splits: dict[str, list[dict[str, str]]] = {"validation": [], "train": []}
    for number, (sign, a, b) in enumerate(cases):
        split = "validation" if number < 100 else "train"
        for _ in range(1 if split == "validation" else 4):
            name, thing = rng.choice(NAMES), rng.choice(THINGS)
            question = ASKED[sign].format(name=name, thing=thing, a=a, b=b)
            answer = str(a + b if sign == "+" else a - b)
            solution = f"{a}{sign}{b}=\\boxed{{{answer}}}"
            splits[split].append({"question": question, "answer": answer, "solution": solution})
    rng.shuffle(splits["train"])
    return splits


def main(folder: Path) -> None:
    """Write one parquet file for each split."""
    for split, rows in problems().items():
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{split}.parquet")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
