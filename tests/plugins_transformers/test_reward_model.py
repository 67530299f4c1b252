"""Reward models as folders, and the evaluator that asks them."""

import json

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from plugrl.core.errors import ConfigError, UsageError
from plugrl.core.text.batch import Batch
from plugrl.core.text.evaluate.evaluator import (
    BaseEvaluationTarget,
    EvaluationFailedError,
    evaluate,
)
from plugrl.core.text.trajectory import Trajectory
from plugrl.plugins.transformers.loading import load_tokenizer
from plugrl.plugins.transformers.reward_model import RewardModelEvaluator

ROWS = [Trajectory([3, 4, 5, 1, 0], [0, 0, 0, 0, 1]), Trajectory([6, 1, 0], [0, 0, 1])]


@pytest.fixture
def service(train_service):
    """Makes a service with a value head that is not 0."""

    def make(spec):
        made = train_service(spec, value_head=True)
        head = made._forward.value_head
        torch.nn.init.normal_(head.weight, generator=torch.Generator().manual_seed(0))
        return made

    return make


@pytest.fixture
def folder(service, spec, tmp_path):
    service(spec()).export_scorer(tmp_path / "reward", load_tokenizer(spec()))
    return tmp_path / "reward"


@pytest.mark.parametrize("kind", ["qwen3", "llama", "gpt2", "mistral", "gemma2", "qwen3 tied"])
def test_architectures_with_a_classifier(tmp_path, service, architecture_spec, kind):
    spec = architecture_spec(kind)
    made = service(spec)
    made.export_scorer(tmp_path / "reward", load_tokenizer(spec))
    expected = made.compute_values(Batch.from_trajectories(ROWS)).sum(1).tolist()
    judge = RewardModelEvaluator({"path": str(tmp_path / "reward")})
    assert judge._scorer([t.tokens[:-1] for t in ROWS]) == pytest.approx(expected, abs=1e-5)
    # Other software loads it by its class.
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "reward")
    logit = model(torch.tensor([ROWS[1].tokens[:-1]])).logits
    assert logit.shape == (1, 1)
    assert float(logit.detach()) == pytest.approx(expected[1], abs=1e-5)


def test_an_architecture_without_a_classifier_is_named(tmp_path, service, architecture_spec):
    spec = architecture_spec("lfm2")
    with pytest.raises(UsageError, match="no sequence classifier for a lfm2 model"):
        service(spec).export_scorer(tmp_path / "reward", load_tokenizer(spec))
    assert not (tmp_path / "reward").exists()


def test_a_service_without_a_head_writes_none(tmp_path, train_service, spec):
    with pytest.raises(ConfigError, match="no value head"):
        train_service().export_scorer(tmp_path / "reward", load_tokenizer(spec()))


def test_an_end_that_is_also_padding_is_scored(tmp_path, service, spec):
    tokenizer = load_tokenizer(spec())
    tokenizer.pad_token_id = tokenizer.eos_token_id
    made = service(spec())
    made.export_scorer(tmp_path / "reward", tokenizer)
    expected = made.compute_values(Batch.from_trajectories(ROWS)).sum(1).tolist()
    judge = RewardModelEvaluator({"path": str(tmp_path / "reward")})
    assert judge._scorer([t.tokens[:-1] for t in ROWS]) == pytest.approx(expected, abs=1e-5)


def test_rewards_do_not_depend_on_what_is_scored_together(folder):
    judge = RewardModelEvaluator({"path": str(folder), "batch_size": 2})
    items = [
        ({"prompt": p}, BaseEvaluationTarget(a)) for p in ("ab", "c") for a in ("h", "abcde", "")
    ]
    together = judge.evaluate_batch(items)
    assert [judge.evaluate(*item) for item in items] == together
    assert len({result.reward for result in together}) == len(items)
    assert together[0].metrics == {"reward_model": together[0].reward}


def test_what_is_too_long_is_no_reward(folder):
    judge = RewardModelEvaluator({"path": str(folder)})
    with pytest.raises(
        EvaluationFailedError, match="have 43 tokens, and the reward model takes 32"
    ):
        evaluate(judge, {"prompt": "ab"}, BaseEvaluationTarget("c" * 40))


@pytest.mark.parametrize(
    ("section", "complaint"),
    [
        ({}, "give either path"),
        ({"path": "a", "run": "b"}, "give either path"),
        ({"path": "a", "batch_size": 0}, "batch_size: must be at least 1"),
    ],
)
def test_wrong_options_are_named(section, complaint):
    with pytest.raises(ConfigError, match=complaint):
        RewardModelEvaluator(section)


def _drop_score(folder):
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights["score.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def _edit(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda f: _edit(f, architectures=["Qwen3ForCausalLM"]), "no sequence classifier"),
        (lambda f: _edit(f, id2label={"0": "a", "1": "b"}), "it has 2 labels"),
        (_drop_score, "it holds no weights score.weight"),
        (lambda f: (f / "config.json").unlink(), "no usable model folder"),
        (lambda f: (f / "model.safetensors").unlink(), "reward model .*reward"),
    ],
)
def test_unusable_folders_are_named(folder, damage, complaint):
    damage(folder)
    judge = RewardModelEvaluator({"path": str(folder)})
    with pytest.raises(ConfigError, match=complaint):
        judge._scorer([[3, 1]])
