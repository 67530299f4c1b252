"""``samples/`` of a run: some attempts of each training step, as many as the settings say."""

from types import SimpleNamespace

import pytest

import plugrl
from plugrl import Trajectory
from plugrl.core.experiment import prepare
from plugrl.core.run.records.records import read_jsonl
from plugrl.core.text.evaluate.scores import keep_rollouts


def kept(config, **settings):
    tree = config()
    tree["settings"] |= settings
    return tree, plugrl.train(tree)


def test_attempts_of_every_training_step_are_kept_as_they_were(config):
    tree, run = kept(config)
    rows = read_jsonl(run.folder / "samples" / "rollouts.jsonl")
    steps = tree["trainer"]["total_train_steps"]
    assert [row["step"] for row in rows] == [s for s in range(1, steps + 1) for _ in range(4)]
    assert {"prompt", "answer", "reward", "problem", "attempt", "model", "failure"} <= set(rows[0])
    assert len({row["problem"] for row in rows[:4]}) > 1
    assert "ground_truth" not in rows[0]


@pytest.mark.parametrize(("count", "expected"), [(0, 0), (1, 1), (10_000, None)])
def test_the_settings_say_how_many(config, count, expected):
    tree, run = kept(config, rollout_samples=count)
    file = run.folder / "samples" / "rollouts.jsonl"
    rows = read_jsonl(file) if file.exists() else []
    per_step = tree["data"]["batch_size"] * tree["data"]["rollout_repeat_n"]
    each = per_step if expected is None else expected
    assert len(rows) == each * tree["trainer"]["total_train_steps"]


def decoding():
    tokenizer = SimpleNamespace(decode=lambda tokens: "x" * len(tokens))
    return {"policy": SimpleNamespace(inference=SimpleNamespace(tokenizer=tokenizer))}


def attempts(lengths):
    return [
        Trajectory([5] * (n + 1), [0] + [1] * n, model="policy", group_id=str(i), run_id=0)
        for i, n in enumerate(lengths)
    ]


@pytest.mark.parametrize(
    ("there", "count", "problems"),
    [(8, 4, "0246"), (8, 3, "025"), (3, 8, "012"), (1, 4, "0"), (0, 4, ""), (5, 0, "")],
)
def test_they_are_the_same_distance_apart(there, count, problems):
    rows = []
    run = SimpleNamespace(sample=lambda name, record: rows.append((name, record)))
    keep_rollouts(run, 3, attempts([2] * there), decoding(), count)
    assert "".join(record["problem"] for _, record in rows) == problems
    assert {name for name, _ in rows} <= {"rollouts"}


def test_a_long_text_is_shortened_in_its_middle():
    rows = []
    run = SimpleNamespace(sample=lambda name, record: rows.append(record))
    keep_rollouts(run, 1, attempts([10_000, 10_001, 10**6]), decoding(), 3)
    exact, over, long = (row["answer"] for row in rows)
    assert exact == "x" * 10_000
    assert "[... 1 characters ...]" in over
    assert len(long) < 10_100


def test_the_option_of_other_recipes_means_this_one(config):
    def samples(value):
        tree = config()
        tree["rollout_worker"] = {**tree.get("rollout_worker", {}), "save_trace": value}
        return prepare(tree).validated.tree["settings"]["rollout_samples"]

    assert (samples(True), samples(False)) == (64, 0)
    assert prepare(config()).validated.tree["settings"]["rollout_samples"] == 4
