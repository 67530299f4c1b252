"""Whole runs in which two agents learn at once."""

import logging
import shutil

import pytest

from plugrl.core.experiment import prepare, resume, start
from plugrl.testing.comparison import assert_equal_states, comparable_metrics

RECIPE = "two_cartpoles_ppo"
SHORT = [
    "rl.frames_per_batch=128",
    "rl.num_iterations=4",
    "validate.every=3",
    "validate.episodes=2",
    "settings.checkpoint_every=1",
    "settings.keep_checkpoints=null",
    "settings.progress=none",
]
SHARED = "agents.right.policy=left"
TORCHRL = [
    "scenario.type=torchrl",
    "scenario.environment=torchrl.testing.mocking_classes:MultiAgentCountingEnv",
    "scenario.env_kwargs={n_agents: 2}",
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


@pytest.mark.integration
@pytest.mark.parametrize("words", [[], [SHARED], TORCHRL], ids=["separate", "shared", "torchrl"])
def test_a_resumed_run_equals_the_uninterrupted_one(words, tmp_path):
    trained = run(tmp_path / "runs", *words)
    assert [row["step"] for row in trained.metrics if row["step"] > 0] == [1, 2, 3, 4]
    resumed = resumed_after(trained, 2, tmp_path)
    assert comparable_metrics(resumed) == comparable_metrics(trained)
    assert_equal_states(resumed.checkpoint()["trainer"], trained.checkpoint()["trainer"])


def test_each_agent_has_a_policy_unless_it_shares_one(tmp_path):
    for words, policies in (([], ["left", "right"]), ([SHARED], ["left"])):
        trained = run(tmp_path / "-".join(policies), "rl.num_iterations=1", *words)
        held = trained.checkpoint()["trainer"]
        assert sorted(held["policies"]) == policies
        # Both agents' steps count; who has left takes no steps.
        (row,) = [row for row in trained.metrics if row["step"] == 1]
        episodes = [row[f"rollout/{agent}/episodes"] for agent in ("left", "right")]
        assert min(episodes) > 0
        assert sum(episodes) == row["rollout/episodes"]


@pytest.mark.integration
def test_torchrls_collector_begins_new_episodes_on_resume_and_says_so(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        trained = run(tmp_path / "runs", *TORCHRL, "scenario.collector=torchrl")
    assert "cannot be saved" in caplog.text
    resumed = resumed_after(trained, 2, tmp_path)
    assert [row["step"] for row in resumed.metrics] == [row["step"] for row in trained.metrics]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("words", [[], [SHARED]], ids=["separate", "shared"])
@pytest.mark.parametrize("seed", range(3))
def test_both_agents_learn_within_400_000_steps(words, seed, tmp_path):
    trained = start(prepare(RECIPE, [f"seed={seed}", f"settings.runs_folder={tmp_path}", *words]))
    last = [row for row in trained.metrics if "validation/left/mean_episode_return" in row][-1]
    assert trained.metrics[-1]["step"] * trained.config.rl.frames_per_batch <= 400_000
    for agent in ("left", "right"):
        assert last[f"validation/{agent}/mean_episode_return"] >= 450
        recent = [
            (row[f"rollout/{agent}/mean_episode_return"], row[f"rollout/{agent}/episodes"])
            for row in trained.metrics[-80:]
            if row.get(f"rollout/{agent}/episodes")
        ]
        # The last tenth, with every exploring episode.
        total = sum(mean * count for mean, count in recent)
        assert total / sum(count for _, count in recent) >= 450
