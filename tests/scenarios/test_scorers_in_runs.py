"""Scorers in runs of a trainer: what is found before it starts, and scores that become rewards."""

import json
from pathlib import Path

import pytest

import plugrl
from plugrl.core.errors import ConfigError
from plugrl.core.experiment import prepare
from plugrl.testing import tiny
from plugrl.trainers.kit import RED_TEAM

ALGORITHM = """
from plugrl import Batch, HarnessAlgorithm


class Simple(HarnessAlgorithm):
    def flatten(self, tree):
        return [node.trajectory() for node in tree.nodes() if node.valid]

    @staticmethod
    def collate_fn(steps):
        return Batch.from_trajectories(steps)

    def step(self, batch):
        return -self.system.log_probs(batch)[0].sum(), {}
"""


@pytest.fixture
def configured(tmp_path):
    """A small run with a scorer of its own."""
    (tmp_path / "simple.py").write_text(ALGORITHM, "utf-8")

    def make(scorer, **sections):
        tree = tiny.config("harness", tmp_path, RED_TEAM)
        tree["trainer"]["algorithm"] = {
            "custom_harness_algorithm_module_path": str(tmp_path / "simple.py"),
            "custom_harness_algorithm_class_name": "Simple",
        }
        tree["red_team"]["scorer"] = scorer
        return tiny.merged(tree, sections)

    return make


def exchanges_of(folder, name="dialogues"):
    lines = [
        json.loads(line)
        for path in sorted((Path(folder) / "samples").glob(f"{name}*"))
        for line in path.read_text().splitlines()
    ]
    return [exchange for line in lines for exchange in line["exchanges"]]


def test_a_weighted_score_with_a_judge_of_the_run(configured):
    judge = {"type": "llm_judge", "model": "target", "template": "{probe}", "chat": False}
    judge |= {"pattern": "([a-z])", "max_response_length": 2}
    vowels = {"type": "regex", "patterns": ["[aeiou]"], "reads": "probe"}
    short = {"type": "lexicon", "words": ["a"], "match": "substring", "reads": "probe"}
    parts = [
        {"scorer": vowels, "weight": 2.0},
        {"scorer": short, "weight": 0.5},
        # This model replies no number, which costs nothing where it counts nothing.
        {"scorer": judge, "weight": 0.0},
    ]
    folder = plugrl.train(configured({"type": "weighted", "parts": parts})).folder
    found = exchanges_of(folder)
    assert found
    for exchange in found:
        probe = exchange["probe"].lower()
        wanted = 2.0 * any(letter in probe for letter in "aeiou") + 0.5 * ("a" in probe)
        assert exchange["score"] == pytest.approx(wanted)
        assert exchange["reward"] == pytest.approx(wanted)
    assert len({exchange["score"] for exchange in found}) > 1


def test_exchanges_without_a_score_have_no_reward(configured, tmp_path):
    words = [first + second for first in "abcd" for second in "efgh"]
    rows = [json.dumps({"prompt": word, "gone": None}) for word in words]
    (tmp_path / "goals.jsonl").write_text("\n".join(rows), "utf-8")
    tree = configured({"type": "lexicon", "words_key": "gone"})
    tree["scenario"] = {"type": "red_team", "file": str(tmp_path / "goals.jsonl")}
    with pytest.raises(plugrl.RunError, match="column 'gone' of the prompt is None"):
        plugrl.train(tree)


@pytest.mark.parametrize(
    ("scorer", "where", "says"),
    [
        ({"type": "llm_judge", "model": "judg"}, "red_team.scorer.model", "no model 'judg'"),
        (
            {"type": "weighted", "parts": [{"scorer": {"type": "llm_judge"}}]},
            r"red_team.scorer.parts\[0\].scorer.model",
            "no model 'judge' in models; it has: tester, target",
        ),
        (
            {"type": "weighted", "parts": [{"scorer": {"type": "regex", "patterns": ["("]}}]},
            r"red_team.scorer.parts\[0\].scorer",
            "is no regular expression",
        ),
        ({"type": "classifier"}, "red_team.scorer", "path"),
        (None, "red_team.scorer", "scorer"),
    ],
)
def test_what_is_missing_is_found_before_a_run_starts(configured, tmp_path, scorer, where, says):
    with pytest.raises(ConfigError, match=f"{where}.*{says}"):
        prepare(configured(scorer))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["classifier", "guard"])
def test_a_folder_that_is_no_such_model_is_found_early(configured, tmp_path, name):
    (tmp_path / "empty").mkdir()
    scorer = {"type": name, "path": str(tmp_path / "empty")}
    with pytest.raises(ConfigError, match="red_team.scorer.path.*no usable model folder"):
        prepare(configured(scorer))
