"""Whole runs in which one policy plays both sides of a game."""

import shutil

import pytest

from plugrl.core.experiment import prepare, resume, start
from plugrl.testing.comparison import assert_equal_states, comparable_metrics

RECIPE = "tictactoe_ppo"
SHORT = [
    "scenario.num_envs=4",
    "rl.frames_per_batch=64",
    "rl.num_iterations=4",
    "rl.minibatch_size=32",
    "rl.num_epochs=1",
    "validate.every=3",
    "validate.episodes=6",
    "settings.checkpoint_every=1",
    "settings.keep_checkpoints=null",
    "settings.progress=none",
]


def run(folder, *words):
    return start(prepare(RECIPE, [*SHORT, f"settings.runs_folder={folder}", *words]))


def resumed_after(trained, step, folder):
    copy = folder / f"after-{step}"
    shutil.copytree(trained.folder, copy)
    for later in sorted((copy / "checkpoints").glob("step-*")):
        if int(later.name.removeprefix("step-")) > step:
            shutil.rmtree(later)
    return resume(copy)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["scenario.environment=connect_four_v3", "agents._default.policy=null"],
        ["scenario.environment=leduc_holdem_v4"],
    ],
    ids=["one-policy", "two-policies", "cards"],
)
@pytest.mark.integration
def test_a_resumed_run_equals_the_uninterrupted_one(words, tmp_path):
    if "leduc" in str(words):
        pytest.importorskip("rlcard")
    trained = run(tmp_path / "runs", *words)
    assert [row["step"] for row in trained.metrics if row["step"] > 0] == [1, 2, 3, 4]
    resumed = resumed_after(trained, 2, tmp_path)
    assert comparable_metrics(resumed) == comparable_metrics(trained)
    assert_equal_states(resumed.checkpoint()["trainer"], trained.checkpoint()["trainer"])


def test_equal_seeds_give_equal_numbers_and_others_do_not(tmp_path):
    words = ["rl.num_iterations=1", "validate.every=1"]
    one, same, other = (
        run(tmp_path / str(number), *words, f"seed={seed}") for number, seed in enumerate([0, 0, 1])
    )
    assert comparable_metrics(one) == comparable_metrics(same)
    assert comparable_metrics(one) != comparable_metrics(other)
    (row,) = [row for row in one.metrics if row["step"] == 1]
    # A batch of 16 moves in each of 4 copies has at least one game in each, of 5 to 9 moves.
    assert 4 <= row["rollout/player_1/episodes"] <= 12
    assert 5 <= row["rollout/player_1/mean_episode_length"] <= 9
    for name in ("wins", "draws", "losses"):
        seats = [row[f"validation/player_{seat}/{name}"] for seat in (1, 2)]
        assert row[f"validation/{name}"] == pytest.approx(sum(seats) / 2)
    assert sum(row[f"validation/{name}"] for name in ("wins", "draws", "losses")) == 1


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(3))
def test_of_ten_games_against_a_random_player_at_most_one_is_lost(seed, tmp_path):
    words = [f"seed={seed}", f"settings.runs_folder={tmp_path}", "validate.episodes=2000"]
    trained = start(prepare(RECIPE, [*words, "validate.every=0"]))
    last = trained.metrics[-1]
    assert last["validation/player_1/losses"] <= 0.1
    assert last["validation/player_2/losses"] <= 0.1
