"""Validation in runs: several samples, sources of problems, metrics of evaluators, best score."""

import json

import pytest

from plugrl.core.errors import ConfigError, RunError
from plugrl.core.experiment import prepare, start

EVALUATOR = """
from plugrl import EvaluationRunResult, Evaluator

class Vowels(Evaluator):
    async def evaluate(self, data, evaluation_target):
        share = evaluation_target.final_answer.count("a") / 3
        metrics = {"vowels": share, "reward": 7.0}
        return EvaluationRunResult(share, metrics=metrics)

    def evaluate_batch(self, items):
        return [
            EvaluationRunResult(
                target.final_answer.count("a") / 3,
                metrics={"vowels": target.final_answer.count("a") / 3, "reward": 7.0},
            )
            for _, target in items
        ]
"""
PROBLEMS = [
    {"prompt": "aa", "answer": "a", "data_source": "x/one", "kind": "k"},
    {"prompt": "ab", "answer": "a", "data_source": "two", "kind": "k"},
    {"prompt": "ba", "answer": "b", "data_source": "x/one", "kind": "l"},
    {"prompt": "bb", "answer": "b", "data_source": None, "kind": "l"},
]


@pytest.fixture
def tree(config, tmp_path):
    """A configuration whose held-out problems have sources, sampled four times each."""
    held_out = tmp_path / "held_out.jsonl"
    held_out.write_text("".join(json.dumps(p) + "\n" for p in PROBLEMS), "utf-8")
    (tmp_path / "judge.py").write_text(EVALUATOR, "utf-8")
    made = config(trainer={"total_train_steps": 2})
    made["rollout_worker"]["evaluator"] = {
        "custom_evaluator_module_path": str(tmp_path / "judge.py"),
        "custom_evaluator_class_name": "Vowels",
    }
    made["validate"] = {
        "data": {"data_files": [str(held_out)]},
        "every": 1,
        "temperature": 1.0,
        "samples": 4,
        "pass_threshold": 0.3,
    }
    return made


@pytest.mark.integration
def test_metrics_of_evaluators_sources_and_samples_do_not_depend_on_processes(tree, forked_workers):
    found = []
    for processes in (0, 2):
        tree["rollout_worker"]["processes"] = processes
        found.append(start(prepare(tree)).metrics)
    here, there = ([{k: v for k, v in m.items() if "time/" not in k} for m in f] for f in found)
    assert here == [{k: v for k, v in m.items() if "rollout/worker_" not in k} for m in there]
    assert [m["step"] for m in here] == [0, 1, 2]
    for metrics in here:
        for prefix in ("validation", "validation/x/one", "validation/two"):
            # Python 3.12 sums lists with less rounding than one by one.
            expected = pytest.approx(metrics[f"{prefix}/reward"], rel=1e-12)
            assert metrics[f"{prefix}/vowels"] == expected
            assert metrics[f"{prefix}/evaluator/reward"] == 7.0
            assert metrics[f"{prefix}/best@1"] == pytest.approx(metrics[f"{prefix}/reward"])
            assert metrics[f"{prefix}/pass@1"] <= metrics[f"{prefix}/pass@2"]
            assert metrics[f"{prefix}/pass@2"] <= metrics[f"{prefix}/pass@4"]
        assert "validation/None/reward" not in metrics
    assert all(m["rollout/vowels"] == m["rollout/reward"] for m in here[1:])


@pytest.mark.integration
def test_the_best_checkpoint_is_kept_by_a_metric_of_a_source(tree):
    tree["settings"] |= {"checkpoint_every": 1, "keep_checkpoints": 1}
    tree["validate"] |= {"score": "validation/two/vowels", "score_mode": "min"}
    run = start(prepare(tree))
    scores = {m["step"]: m["validation/two/vowels"] for m in run.metrics}
    best = min(scores, key=lambda step: (scores[step], step))
    kept = {path.name for path in (run.folder / "checkpoints").iterdir()}
    assert kept == {f"step-{step:08d}" for step in (best, 2)}


@pytest.mark.integration
def test_another_column_may_tell_sources_apart_and_one_that_is_not_there_is_named(tree):
    tree["validate"]["data_source_key"] = "kind"
    tree["trainer"]["total_train_steps"] = 1
    metrics = start(prepare(tree)).metrics[0]
    assert {"validation/k/reward", "validation/l/reward"} <= set(metrics)
    tree["validate"]["data_source_key"] = "gone"
    with pytest.raises(ConfigError, match=r"validate\.data_source_key.*no column 'gone'"):
        prepare(tree)


@pytest.mark.integration
def test_a_metric_that_nothing_gives_passes_nobody(tree):
    tree["validate"]["pass_metric"] = "vowel"
    with pytest.raises(
        RunError, match=r"pass_metric: no attempt has a metric 'vowel'.*did you mean vowels\?"
    ):
        start(prepare(tree))


@pytest.mark.integration
def test_equal_samples_are_refused(tree):
    tree["validate"]["temperature"] = 0.0
    with pytest.raises(ConfigError, match="with temperature 0 they are all equal"):
        prepare(tree)
