"""The trainer ``hf_ast`` from code: evaluations, best and last, schedules, precision, stopping."""

import math

import pytest
import torch
from testers import PolicyGradient, make_environment, make_system, weights
from transformers import AutoModelForCausalLM, AutoTokenizer

from plugrl import HFASTConfiguration
from plugrl.core.text.dialogue.evaluation.evaluation import held_out
from plugrl.trainers.hf_ast import HFASTTrainer

DEV = ["abc", "de", "fgh"]


def configured(cls=HFASTConfiguration, **changes):
    base = {"lr": 1e-2, "training_steps": 6, "num_episodes_per_experience": 2, "batch_size": 5}
    return cls(**{**base, **changes})


class Scripted(HFASTTrainer):
    """Its development scores are those of a list; what it was then like is kept."""

    scores = ()

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.evaluated, self.kept = [], []

    def eval_dev(self):
        score = self.scores[len(self.evaluated)]
        self.evaluated.append(self._step + 1)
        self.kept.append(weights(self.environment.system))
        return ({} if score is None else {"dev/reward": score}), []


def scripted(scores, folder, every=2, **changes):
    cls = type("Scripted", (Scripted,), {"scores": scores})
    environment = make_environment(make_system())
    return cls(configured(**changes), environment, PolicyGradient(), DEV, every, ckpt_dir=folder)


def loaded(folder):
    return AutoModelForCausalLM.from_pretrained(folder).state_dict()


def equal(one, other):
    return all(torch.equal(one[name], other[name]) for name in other)


def test_without_arguments_it_evaluates_and_keeps_what_others_load(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    system = make_system()
    trainer = HFASTTrainer(
        config=configured(),
        environment=make_environment(system),
        algorithm=PolicyGradient(),
        dev_prompts=(prompt for prompt in DEV),
        eval_every=100,
    )
    metrics = trainer.train().metrics
    assert {"dev/success", "dev/reward", "dev/score", "dev/unique"} <= metrics.keys()
    assert equal(loaded("checkpoints/last"), weights(system))
    tokenizer = AutoTokenizer.from_pretrained("checkpoints/best")
    assert tokenizer.encode("abc") == system.tokenizer.encode("abc")
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["best", "last"]


def test_evaluations_come_by_steps_and_not_by_batches(tmp_path):
    # Each step has 12 exchanges, 3 batches.
    trainer = scripted([0.1] * 9, tmp_path, training_steps=7)
    trainer.train()
    assert trainer.evaluated == [2, 4, 6, 7]


@pytest.mark.integration
def test_the_best_is_replaced_only_by_a_better_one_and_the_last_is_the_last(tmp_path):
    trainer = scripted([0.2, 0.5, 0.5, 0.4], tmp_path, training_steps=8)
    trainer.train()
    assert equal(loaded(tmp_path / "best"), trainer.kept[1])
    assert not equal(loaded(tmp_path / "best"), trainer.kept[2])
    assert equal(loaded(tmp_path / "last"), trainer.kept[3])


def test_an_evaluation_of_which_nothing_is_scored_changes_no_best(tmp_path, caplog):
    trainer = scripted([0.3, None, 0.2], tmp_path)
    trainer.train()
    assert equal(loaded(tmp_path / "best"), trainer.kept[0])
    assert "too few scores of development dialogues for reward" in caplog.text


@pytest.mark.integration
@pytest.mark.parametrize(
    ("scores", "patience", "least", "evaluations"),
    [
        ([0.1, 0.1, 0.1, 0.9, 0.9], 2, 0.0, 3),
        ([0.1, 0.2, 0.2, 0.3, 0.3], 2, 0.0, 5),
        ([0.1, 0.15, 0.2, 0.2, 0.9], 2, 0.2, 3),
        # Small steps add up to one that is large enough.
        ([0.1, 0.2, 0.31, 0.3, 0.3], 2, 0.2, 5),
        ([0.1, 0.0, 0.0, 0.0, 0.0], None, 0.0, 5),
    ],
)
def test_training_ends_when_patience_does(tmp_path, scores, patience, least, evaluations):
    trainer = scripted(
        scores,
        tmp_path,
        every=1,
        training_steps=5,
        early_stopping_patience=patience,
        early_stopping_min_delta=least,
    )
    result = trainer.train()
    assert len(trainer.evaluated) == result.steps == evaluations


@pytest.mark.integration
def test_what_patience_is_left_is_saved(tmp_path):
    scores = [0.5, 0.4, 0.4, 0.4, 0.4]
    options = {"every": 1, "training_steps": 5, "early_stopping_patience": 3}
    whole = scripted(scores, tmp_path / "a", **options)
    assert whole.train().steps == 4
    first = scripted(scores, tmp_path / "b", **{**options, "training_steps": 2})
    first.train()
    second = scripted(scores[2:], tmp_path / "b", **options)
    second.load_state_dict(first.state_dict())
    assert second.train().steps == 4
    assert second.state_dict()["stopped"]
    assert equal(loaded(tmp_path / "b/best"), first.kept[0])
    assert equal(weights(second.environment.system), weights(whole.environment.system))


def test_equal_testers_have_equal_evaluations_and_others_do_not(tmp_path):
    system = make_system()
    environment = make_environment(system)
    first, trees = held_out(environment, DEV, attempts=2, prefix="dev")
    assert held_out(environment, DEV, attempts=2, prefix="dev")[0] == first
    assert [tree.context.prompt for tree in trees] == [p for p in DEV for _ in range(2)]
    assert all(len(list(tree.nodes())) == 2 for tree in trees)
    HFASTTrainer(
        configured(), environment, PolicyGradient(), eval_every=0, ckpt_dir=tmp_path
    ).train()
    assert held_out(environment, DEV, attempts=2, prefix="dev")[0] != first


def rates(folder, **changes):
    """The learning rate of each update; a step has one."""
    config = configured(lr=1.0, batch_size=100, optimizer="sgd", max_grad_norm=1e-3, **changes)
    trainer = HFASTTrainer(
        config, make_environment(make_system()), PolicyGradient(), eval_every=0, ckpt_dir=folder
    )
    found = []
    trainer.optimizer.register_step_pre_hook(
        lambda optimizer, *_: found.append(optimizer.param_groups[0]["lr"])
    )
    trainer.train()
    return found


@pytest.mark.integration
def test_the_learning_rate_warms_up_and_falls(tmp_path):
    assert rates(tmp_path) == [1.0] * 6
    assert rates(tmp_path, warmup_steps=2) == pytest.approx([1 / 3, 2 / 3, 1, 1, 1, 1])
    linear = rates(tmp_path, warmup_steps=2, schedule="linear")
    assert linear == pytest.approx([1 / 3, 2 / 3, 1, 0.75, 0.5, 0.25])
    cosine = rates(tmp_path, schedule="cosine")
    assert cosine == pytest.approx([(1 + math.cos(math.pi * i / 6)) / 2 for i in range(6)])
