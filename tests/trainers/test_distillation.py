"""On-policy distillation: what the teacher, the mask and several teachers do to the gradient."""

import copy
import json

import pytest
import torch

import plugrl
from plugrl.core.errors import ConfigError, RunError
from plugrl.core.text.batch import Batch
from plugrl.core.text.models import Model, Models
from plugrl.core.text.trajectory import Trajectory
from plugrl.trainers.self_hosted_opd import SelfHostedOpdTrainer


@pytest.fixture
def tree_of(config, tmp_path):
    """A tiny distillation; teachers are models with random weights of the given seeds."""

    def make(algorithm=None, /, steps=2, **teachers):
        tree = config("self_hosted_opd")
        tree["validate"] = {"enabled": False}
        source = tree["models"]["policy"]["source"]
        source["config"]["initializer_range"] = 0.5
        for name, seed in (teachers or {"teacher": 1}).items():
            tree["models"][name] = {"source": {**copy.deepcopy(source), "seed": seed}}
        tree["trainer"] = {
            "type": "self_hosted_opd",
            "total_train_steps": steps,
            "algorithm": algorithm or {},
        }
        number = len(list(tmp_path.iterdir()))
        tree["settings"]["runs_folder"] = str(tmp_path / f"runs-{number}")
        return tree

    return make


def weights(done):
    return done.checkpoint()["trainer"]["models"]["policy"]["state"]["weights"]


def same(one, other):
    return all(torch.equal(value, other[name]) for name, value in one.items())


LOSSES = [
    {},
    {"loss": "clipped", "minibatches": 2},
    pytest.param({"loss": "reverse_kl"}, marks=pytest.mark.integration),
    pytest.param(
        {"loss": {"type": "reverse_kl", "clip_ratio": 0.2}, "epochs": 2},
        marks=pytest.mark.integration,
    ),
    pytest.param({"advantage": {"type": "opd", "discount": 0.9}}, marks=pytest.mark.integration),
]


@pytest.mark.parametrize("algorithm", LOSSES, ids=str)
def test_the_gradient_depends_on_the_teacher(tree_of, algorithm):
    one, other = (plugrl.train(tree_of(algorithm, steps=1, teacher=seed)) for seed in (1, 2))
    assert not same(weights(one), weights(other))
    assert one.last_metrics["train/teacher_kl"] != other.last_metrics["train/teacher_kl"]


def test_a_student_that_is_its_teacher_stays(tree_of):
    tree = tree_of(teacher=0)
    tree["models"]["policy"]["train"] |= {"weight_decay": 0.0}
    line = plugrl.train(tree).metrics[1]
    assert line["train/teacher_kl"] == pytest.approx(0.0, abs=1e-5)
    assert line["train/grad_norm"] == pytest.approx(0.0, abs=1e-4)


@pytest.mark.integration
def test_the_student_comes_to_the_teacher(tree_of):
    tree = tree_of({"minibatches": 2}, steps=40, teacher=3)
    tree["data"] |= {"batch_size": 4, "rollout_repeat_n": 8}
    gaps = [m["train/teacher_kl"] for m in plugrl.train(tree).metrics if "train/loss" in m]
    assert sum(gaps[-5:]) / 5 < 0.25 * sum(gaps[:3]) / 3


class Teacher:
    """Gives every token of a sequence the same log-probability."""

    vocabulary_size = 10

    class Letters:
        def decode(self, tokens):
            return "".join(map(chr, tokens))

    tokenizer = Letters()

    def __init__(self, value):
        self.value = value
        self.asked = []

    def score(self, sequences, temperature=1.0):
        self.asked += [(len(tokens), temperature) for tokens in sequences]
        return [[0.0] + [self.value] * (len(tokens) - 1) for tokens in sequences]


def prepared(algorithm, **columns):
    models = {name: Model(name, Teacher(value), None) for name, value in (
        ("policy", 0.0), ("big", -0.5), ("small", -2.5))}  # fmt: skip
    trainer = SelfHostedOpdTrainer({"algorithm": algorithm}, models=Models(models))
    batch = Batch.from_trajectories(
        [
            Trajectory(
                [2, 3, 4], [0, 1, i], logprobs=[0.0, -1.0, -1.0 * i], run_id=i, temperature=0.5
            )
            for i in (0, 1)
        ]
    )
    batch.metadata |= columns
    return *trainer._prepare_batch(batch), {name: model.inference for name, model in models.items()}


def test_a_teacher_scores_at_the_temperature_of_sampling_and_honours_the_mask():
    batch, metrics, models = prepared({"teacher": "big"})
    assert batch.values["advantages"].tolist() == [[0.0, 0.5, 0.0], [0.0, 0.5, 0.5]]
    assert metrics == {"teacher_kl": pytest.approx(-0.5)}
    assert {temperature for _, temperature in models["big"].asked} == {0.5}
    assert models["small"].asked == []


def test_of_several_teachers_the_mean_counts_or_the_one_that_a_problem_names():
    batch, _, _ = prepared({"teacher": ["big", "small"]})
    # (-0.5 - 2.5) / 2 + 1
    assert batch.values["advantages"].tolist() == [[0.0, -0.5, 0.0], [0.0, -0.5, -0.5]]
    algorithm = {"teacher": ["big", "small"], "teacher_key": "level"}
    batch, _, models = prepared(algorithm, level=["small", "big"])
    assert batch.values["advantages"].tolist() == [[0.0, -1.5, 0.0], [0.0, 0.5, 0.5]]
    assert len(models["big"].asked) == len(models["small"].asked) == 1
    with pytest.raises(RunError, match=r"level='tiny' .*none of the teachers: big, small"):
        prepared(algorithm, level=["small", "tiny"])


@pytest.mark.integration
def test_a_column_of_the_data_names_the_teacher(tree_of, tmp_path):
    tree = tree_of({"teacher": ["one", "two"], "teacher_key": "level"}, one=1, two=2)
    rows = [
        {"prompt": "ab", "answer": "a", "level": "one"},
        {"prompt": "ba", "answer": "b", "level": "two"},
    ]
    data = tmp_path / "levels.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tree["data"]["data_files"] = [str(data)]
    assert plugrl.train(tree).last_metrics["train/loss"] != 0


def test_a_column_that_is_not_there_is_refused_before_the_run(tree_of, tmp_path):
    tree = tree_of({"teacher_key": "level"})
    with pytest.raises(ConfigError, match=r"algorithm\.teacher_key.*no column 'level'"):
        plugrl.train(tree)
    assert not (tmp_path / "runs").exists()


def test_teachers_that_cannot_be_are_refused_before_the_run(tree_of):
    with pytest.raises(ConfigError, match=r"algorithm\.teacher.*no model 'master' in models"):
        plugrl.train(tree_of({"teacher": "master"}))
    tree = tree_of()
    tree["models"]["teacher"]["train"] = "local"
    with pytest.raises(
        ConfigError, match=r"algorithm\.teacher.*'teacher' is trained; a teacher must be"
    ):
        plugrl.train(tree)
    with pytest.raises(ConfigError, match="at least one entry of models"):
        plugrl.train(tree_of({"teacher": []}))


def test_penalties_in_rewards_that_distillation_would_not_use_are_refused(tree_of):
    with pytest.raises(ConfigError, match=r"overlong\.buffer.*advantage opd does not use them"):
        plugrl.train(tree_of({"overlong": {"buffer": 2}}))
