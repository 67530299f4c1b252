"""``samples/`` of a run: some attempts of each training step, as many as the settings say."""

from types import SimpleNamespace

import pytest

import plugrl
from plugrl import Trajectory
from plugrl.core.experiment import prepare
from plugrl.core.run.records.records import read_jsonl
from plugrl.core.text.evaluate.scores import chosen_rollouts, keep_rollouts


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
    chosen = chosen_rollouts(attempts([2] * there), count)
    assert "".join(t.group_id for t in chosen) == problems


def test_an_attempt_is_kept_with_the_trajectories_of_all_its_agents():
    def of(agent, run_id):
        about = {"agent": agent}
        return Trajectory([5, 6], [0, 1], group_id="g", run_id=run_id, extra_fields=about)

    dialogues = [of(agent, run_id) for run_id in range(4) for agent in ("prover", "verifier")]
    chosen = chosen_rollouts(dialogues, 2)
    found = [(t.run_id, t["agent"]) for t in chosen]
    assert found == [(0, "prover"), (0, "verifier"), (2, "prover"), (2, "verifier")]
    assert [row["agent"] for row in written(chosen)] == ["prover", "verifier"] * 2


def written(trajectories, advantages=None):
    rows = []
    run = SimpleNamespace(sample=lambda name, record: rows.append((name, record)))
    keep_rollouts(run, 3, trajectories, decoding(), advantages or {})
    assert {name for name, _ in rows} <= {"rollouts"}
    return [record for _, record in rows]


def test_tokens_are_kept_with_what_is_known_of_each():
    sampled = Trajectory([7, 5, 6, 8], [0, 1, 0, 1], logprobs=[0.0, -0.123456, 0.0, -2.0], run_id=1)
    (record,) = written([sampled], {id(sampled): [0.0, 0.51239, 0.0, 0.51239]})
    assert record["tokens"] == {
        "count": 3,
        "text": ["x", "x", "x"],
        "mask": [1, 0, 1],
        "logprob": [-0.1235, 0.0, -2.0],
        "advantage": [0.5124, 0.0, 0.5124],
    }
    assert "agent" not in record
    remote = Trajectory([7, 5, 6], [0, 1, 0], advantage=-1.5)
    assert written([remote])[0]["tokens"] == {
        "count": 2, "text": ["x", "x"], "mask": [1, 0], "advantage": [-1.5, 0.0],
    }  # fmt: skip
    long = written(attempts([5000]))[0]["tokens"]
    assert (long["count"], len(long["text"]), len(long["mask"])) == (5000, 1000, 1000)
    untrained = Trajectory([7, 5], [0, 0])
    assert written([untrained])[0]["tokens"] == {"count": 0, "text": [], "mask": []}


def test_attempts_that_were_trained_on_have_their_advantages(config):
    _, run = kept(config)
    rows = read_jsonl(run.folder / "samples" / "rollouts.jsonl")
    for row in rows:
        tokens = row["tokens"]
        assert len(tokens["text"]) == len(tokens["mask"]) == len(tokens["advantage"])
        assert "".join(tokens["text"]) == row["answer"]


def test_a_long_text_is_shortened_in_its_middle():
    chosen = attempts([10_000, 10_001, 10**6])
    exact, over, long = (row["answer"] for row in written(chosen))
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
