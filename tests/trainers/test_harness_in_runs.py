"""What a run of red-teaming writes, tells plugins, hands over, evaluates and exports."""

import functools
import json
from types import SimpleNamespace

import pytest
import torch
from testers import DEADLY

import plugrl
from plugrl.core.errors import RunError
from plugrl.core.loaded_run import open_checkpoint
from plugrl.core.run.records.records import read_jsonl
from plugrl.testing import tiny
from plugrl.testing.comparison import comparable_metrics
from plugrl.trainers.harness import HarnessTrainer


def tree_in(folder, name="harness", **sections):
    """A configuration of two steps of 12 exchanges each."""
    base = tiny.config(name, folder, HarnessTrainer.conformance)
    base["trainer"]["algorithm"] = DEADLY
    base["models"]["tester"]["train"]["value_head"] = False
    return tiny.merged(base, sections)


@pytest.fixture
def tree(tmp_path):
    return functools.partial(tree_in, tmp_path)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A run, and what a plugin was told of it."""
    plugin = Noting()
    run = tiny.train(tree_in(tmp_path_factory.mktemp("plain")), plugin)
    return SimpleNamespace(run=run, plugin=plugin)


class Noting:
    """Notes what it is told."""

    def __init__(self):
        self.rollouts, self.evaluations = [], []

    @plugrl.hookimpl
    def plugrl_rollouts_collected(self, run, step, trajectories, metrics):
        self.rollouts.append((step, trajectories, metrics))

    @plugrl.hookimpl
    def plugrl_evaluation_end(self, run, step, metrics):
        self.evaluations.append((step, metrics))


def test_plugins_are_told_of_rollouts_and_evaluations(plain):
    run, plugin = plain.run, plain.plugin
    assert [step for step, _, _ in plugin.rollouts] == [1, 2]
    for step, trajectories, metrics in plugin.rollouts:
        assert len(trajectories) == 12
        assert {t.model for t in trajectories} == {"tester"}
        rewards = [t.reward for t in trajectories]
        assert metrics["rollout/reward"] == pytest.approx(sum(rewards) / 12)
        assert run.metrics[step]["rollout/reward"] == metrics["rollout/reward"]
    assert [step for step, _ in plugin.evaluations] == [0, 2]


def test_dialogues_are_kept_as_samples(plain):
    run = plain.run
    rows = read_jsonl(run.folder / "samples" / "dialogues.jsonl")
    assert [row["step"] for row in rows] == [1, 1, 2, 2]
    for row in rows:
        assert row["prompt"].startswith("Make the assistant say")
        assert row["category"] == "tree"
        assert len(row["exchanges"]) == 2
        assert {"probe", "response", "score", "reward", "failure"} <= row["exchanges"][0].keys()
    tests = read_jsonl(run.folder / "samples" / "test.jsonl")
    assert {row["step"] for row in tests} == {0, 2}


def test_metrics_say_how_it_went(plain):
    first, _, last = plain.run.metrics
    assert {"test/success", "test/reward", "test/score", "test/unique"} <= first.keys()
    assert {
        "rollout/reward", "rollout/success", "rollout/failed", "diversity/unique",
        "train/loss", "train/grad_norm", "train/updates", "time/rollout", "time/train",
        "test/success",
    } <= last.keys()  # fmt: skip


def test_the_best_checkpoint_follows_the_development_score(tree):
    run = plugrl.train(tree("hf_ast", trainer={"eval_every": 1, "training_steps": 3}))
    scores = {row["step"]: row["dev/reward"] for row in run.metrics if "dev/reward" in row}
    assert list(scores) == [1, 2, 3]
    assert run.checkpoint()["run"]["best_score"] == max(scores.values())
    assert (run.folder / "hf" / "best" / "model.safetensors").is_file()
    assert (run.folder / "hf" / "last" / "tokenizer_config.json").is_file()


def test_the_saved_state_is_evaluated_and_exported(plain, tmp_path):
    run = plain.run
    with open_checkpoint(str(run.folder), "validation", alone=False) as saved:
        found = saved.trainer.evaluate()
        assert len(saved.run.samples) == 3
    expected = {k: v for k, v in run.last_metrics.items() if k.startswith("test/")}
    assert found == expected
    with open_checkpoint(str(run.folder), alone=False) as saved:
        models = saved.trainer.loaded_models()
        saved.trainer.export(models["tester"], tmp_path / "out")
        models.close()
    state = run.checkpoint()["trainer"]["system"]["tester"]["state"]["weights"]
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out").state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in state.items())


@pytest.mark.parametrize("evaluation", ["red_team", "validation"])
def test_an_evaluation_needs_weights_alone(plain, evaluation):
    # No optimizer and no algorithm, which may be of users and have come to keep more.
    system = plain.run.checkpoint()["trainer"]["system"]
    found = []
    for poor in (False, True):
        with open_checkpoint(str(plain.run.folder), evaluation, alone=False) as saved:
            if poor:
                saved.trainer._pending_state = {"system": system}
            if evaluation == "red_team":
                found.append(saved.trainer.report(evaluation, None, "step-2"))
            else:
                found.append(saved.trainer.evaluate())
    assert found[0] == found[1]


@pytest.mark.integration
def test_a_later_phase_begins_with_the_tester_and_a_baseline_is_what_it_was(tree, plain):
    one = tree()
    frozen = {"source": one["models"]["target"]["source"]}
    tester = one["models"]["tester"]["source"]
    two = tiny.merged(
        one,
        {
            "models": {**one["models"], "baseline": {**frozen, "source": tester}},
            "red_team": {"baseline": "baseline", "reward": {"fluency": 0.5}},
        },
    )
    sections = ("models", "scenario", "red_team", "trainer")
    settings = {key: value for key, value in one.items() if key not in sections}
    phases = [
        {"name": name, **{key: phase[key] for key in sections}}
        for name, phase in (("first", one), ("second", two))
    ]
    run = plugrl.train({**settings, "trainer": {"type": "sequence", "phases": phases}})
    state = run.checkpoint()["trainer"]["child"]["system"]
    first = plain.run.checkpoint()["trainer"]["system"]["tester"]["state"]["weights"]
    given = state["baseline"]["weights"]
    assert all(torch.equal(given[name], first[name]) for name in first)
    trained = state["tester"]["state"]["weights"]
    assert any(not torch.equal(trained[name], first[name]) for name in first)


class Forgetting:
    """Stops a run after its first step."""

    @plugrl.hookimpl
    def plugrl_step_end(self, run, step, metrics):
        if step == 1:
            raise plugrl.StopRun("enough")


@pytest.mark.integration
def test_a_run_that_was_stopped_goes_on(tree):
    whole = plugrl.train(tree("hf_ast", trainer={"eval_every": 2, "training_steps": 4}))
    stopped = tiny.train(
        tree("hf_ast", trainer={"eval_every": 2, "training_steps": 4}), Forgetting()
    )
    assert stopped.metrics[-1]["step"] == 1
    assert whole.metrics[-1]["step"] == 4
    # A run that a hook ended is done; its tester is what the other run's was then.
    assert comparable_metrics(stopped) == comparable_metrics(whole)[:2]


def test_rollouts_that_all_fail_end_the_run_with_the_cause(tree):
    config = tree()
    config["red_team"]["scorer"] = {
        "custom_scorer_module_path": __file__,
        "custom_scorer_class_name": "Broken",
    }
    with pytest.raises(RunError, match="all 6 exchanges|all 12 exchanges") as failure:
        plugrl.train(config)
    assert "Broken raised ValueError: no" in str(failure.value)


class Broken(plugrl.Scorer):
    def score(self, dialogues):
        raise ValueError("no")


def test_samples_are_json_that_says_why_an_exchange_failed(tree):
    config = tree()
    config["red_team"]["scorer"] = {
        "custom_scorer_module_path": __file__,
        "custom_scorer_class_name": "Choosy",
    }
    run = plugrl.train(config)
    text = (run.folder / "samples" / "dialogues.jsonl").read_text()
    exchanges = [e for line in text.splitlines() for e in json.loads(line)["exchanges"]]
    failed = [e for e in exchanges if e["failure"]]
    assert failed
    assert all(e["score"] is None and e["reward"] is None for e in failed)
    assert run.last_metrics["rollout/failed"] == pytest.approx(2 / 3)


class Choosy(plugrl.Scorer):
    def score(self, dialogues):
        return [plugrl.Score(failure="late") if d.turns == 2 else 1.0 for d in dialogues]
