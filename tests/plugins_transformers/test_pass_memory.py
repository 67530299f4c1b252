"""How many tokens a pass has on a GPU where no setting says so, and what is done without room."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from plugrl.core.errors import RunError
from plugrl.core.text.learn.losses import WeightedLoss
from plugrl.plugins.distributed.train_service import FsdpTrainService
from plugrl.plugins.transformers.training.memory import PassMemory
from plugrl.trainers.self_hosted_cross_entropy import cross_entropy

sys.path.insert(0, str(Path(__file__).parent))
from batches import weighted

LOSS = WeightedLoss(cross_entropy, {})
GIB = 2**30
#: The shape of Qwen3 of 0.6 billion parameters.
SHAPE = {
    "model_type": "qwen3",
    "vocab_size": 151_936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "tie_word_embeddings": True,
}
PARAMETERS = 596_049_920


class Numbers:
    """Trained parameters of a model that is not made."""

    grad = None

    def numel(self):
        return PARAMETERS


def memory_of(spec, config, free):
    """That of a model on a GPU with so many free bytes."""
    model = replace(spec(config=SHAPE, dtype="bfloat16"), device="cuda")
    made = PassMemory(model, config, [Numbers()])
    made.free = lambda: free
    return made


@pytest.fixture
def options(gradient_service):
    """The section of a service with options."""
    return lambda **options: gradient_service(**options).config


def test_tokens_are_those_that_activations_have_room_for(spec, options):
    config = options()
    # Gradients and moments of 596,049,920 parameters in float32, before the first step; 2,048
    # tokens of 151,936 logits, 16 bytes each; and 28 layers, of which a token has 2 bytes for each
    # of 6 x 1,024 + 2 x (16 + 2 x 8) x 128 + 4 x 3,072 numbers.
    later, logits = 12 * PARAMETERS, 16 * 2048 * 151_936
    token = 28 * 2 * (6 * 1024 + 2 * 4096 + 4 * 3072)
    for gib in (20, 24):
        want = (0.8 * gib * GIB - later - logits) / token
        assert 256 < want < 10 * GIB / token
        assert memory_of(spec, config, gib * GIB).tokens({}) == pytest.approx(want, abs=1)
    # When the moments are there, more is left of what is free.
    want = (0.8 * 17 * GIB - 4 * PARAMETERS - logits) / token
    assert memory_of(spec, config, 17 * GIB).tokens({1: {}}) == pytest.approx(want, abs=1)


def test_tokens_have_bounds(spec, options):
    # 10 GiB of activations: see above for those of a token.
    token = 28 * 2 * (6 * 1024 + 2 * 4096 + 4 * 3072)
    assert memory_of(spec, options(), 139 * GIB).tokens({}) == 10 * GIB // token
    compiled = memory_of(spec, options(activation_memory_budget=0.4), 139 * GIB)
    compiled.count_compiled()
    assert compiled.tokens({}) == 16_384
    assert memory_of(spec, options(), GIB).tokens({}) == 256


def test_less_is_kept_of_layers_that_are_computed_again(spec, options):
    plain, again = (
        memory_of(spec, options(**given), 18 * GIB).tokens({})
        for given in ({}, {"gradient_checkpointing": True})
    )
    assert plain < again


@pytest.mark.parametrize(("budget", "kept"), [(1.0, 1.0), (0.4, 0.4), (0.0, 0.15)])
def test_compiled_layers_keep_the_budget_or_what_they_begin_with(spec, options, budget, kept):
    made = memory_of(spec, options(activation_memory_budget=budget), 17 * GIB)
    plain, plain_token = made.tokens({1: {}}), 28 * 2 * (6 * 1024 + 2 * 4096 + 4 * 3072)
    made.count_compiled()
    most = min(10 * GIB / (plain_token * kept), 16_384)
    assert made.tokens({1: {}}) == pytest.approx(min(plain / kept, most), rel=1e-3)


# 36 layers, of which a token of the 4B shape has 2 bytes for each of
# 6 x 2,560 + 2 x (32 + 2 x 8) x 128 + 4 x 9,728 numbers.
_OF_4B = 36 * 2 * (15_360 + 12_288 + 38_912)


@pytest.mark.parametrize(
    ("given", "compiled", "expected"),
    [
        ({}, False, 10 * GIB // _OF_4B),
        ({}, True, int(10 * GIB / (0.4 * _OF_4B))),
        ({"micro_batch_size": 3}, True, None),
        ({"micro_batch_tokens": 70_000}, True, 70_000),
    ],
    ids=str,
)
def test_a_pass_of_a_rank_with_a_gpu_is_no_larger_than_is_enough(spec, given, compiled, expected):
    sizes = {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36}
    model = spec(config={**SHAPE, **sizes, "num_attention_heads": 32}, dtype="bfloat16")
    service = FsdpTrainService({"learning_rate": 0.01, **given})
    service._device = "cuda"
    assert service._tokens_of_a_pass(model, compiled=compiled) == expected
    service._device = "cpu"
    assert service._tokens_of_a_pass(model, compiled=compiled) == given.get("micro_batch_tokens")


@pytest.mark.parametrize(
    ("given", "expected"),
    [({"micro_batch_tokens": 70_000}, 70_000), ({"micro_batch_size": 3}, None)],
)
def test_settings_come_before_memory(spec, options, given, expected):
    assert memory_of(spec, options(**given), 139 * GIB).tokens({}) == expected


def test_there_is_no_budget_on_a_cpu(gradient_service):
    assert gradient_service()._memory.tokens({}) is None


@pytest.fixture
def tight(spec, train_service, monkeypatch):
    """A service whose passes of more tokens than some do not fit; it says which were tried."""

    def make(most, **options):
        service, tried = train_service(**options), []
        if not options:
            service._memory = memory_of(spec, service.config, 139 * GIB)
            service._memory._limit = 16
        log_probs = service._forward.log_probs

        def limited(part):
            tokens = int(part.batch.values["attention_mask"].sum())
            tried.append(tokens)
            if tokens > most:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return log_probs(part)

        monkeypatch.setattr(service._forward, "log_probs", limited)
        return service, tried

    return make


def test_a_pass_that_does_not_fit_is_tried_with_half_of_the_tokens(tight, train_service, caplog):
    # Four rows of 5, 4, 3 and 2 tokens.
    service, tried = tight(8)
    plain = train_service()
    data = weighted()
    got, want = (each.forward_backward(data, LOSS) for each in (service, plain))
    assert tried == [14, 5, 4, 5]
    assert got["loss"][0] == pytest.approx(want["loss"][0], rel=1e-6)
    for own, other in zip(service.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad, rtol=1e-4, atol=1e-7)
    (record,) = caplog.records
    assert record.getMessage() == (
        "models.policy.train: a pass did not fit into the memory of cuda; goes on with 8 tokens a "
        "pass. Set micro_batch_tokens to begin with that"
    )
    # What was found holds from then on.
    tried.clear()
    service.compute_log_prob(data)
    assert tried == [5, 4, 5]


def test_after_two_halvings_the_run_ends_with_the_settings_to_lower(tight):
    service, tried = tight(1)
    with pytest.raises(RunError) as caught:
        service.forward_backward(weighted(), LOSS)
    assert tried == [14, 5, 5]
    assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)
    assert str(caught.value) == (
        "model 'policy' ran out of the memory of cpu while it was trained: set "
        "models.policy.train.micro_batch_tokens below 4, or set "
        "models.policy.train.gradient_checkpointing=true, or lower "
        "rollout_worker.max_response_length"
    )


def test_gradients_of_an_earlier_batch_are_not_taken_back(tight):
    service, _ = tight(8)
    service.forward_backward(weighted().select([0]), LOSS)
    before = [each.grad.clone() for each in service.parameters()]
    with pytest.raises(RunError):
        service.forward_backward(weighted(), LOSS)
    for each, grad in zip(service.parameters(), before, strict=True):
        assert torch.equal(each.grad, grad)


@pytest.mark.parametrize("given", [{"micro_batch_size": 4}, {"micro_batch_tokens": 20}])
def test_what_settings_say_is_not_halved(tight, given):
    service, tried = tight(8, **given)
    with pytest.raises(RunError) as caught:
        service.forward_backward(weighted(), LOSS)
    assert tried == [14]
    ((name, value),) = given.items()
    assert f": lower models.policy.train.{name}={value}, or set" in str(caught.value)
