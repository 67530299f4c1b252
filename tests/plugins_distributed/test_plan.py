"""Memory and traffic that ``plugrl validate --devices`` prints, by hand and as measured."""

from dataclasses import replace

import pytest
from here import spec

# So that no test pays for the imports.
from transformers import Qwen3ForCausalLM  # noqa: F401

from plugrl.core.config.view import ConfigView
from plugrl.plugins.distributed.plan import DevicePlan, device_rows
from plugrl.plugins.transformers.model_shape import ModelShape

PLAN = {
    "tokens": 4096,
    "computed_again": True,
    "head_tokens": 1024,
}


def entry(source, adapter=None, **train):
    """An entry of ``models``."""
    own = {"micro_batch_tokens": None, "micro_batch_size": 64, "gradient_checkpointing": False}
    own |= {"head_chunk_tokens": 2048, "master_weights": "auto", **train}
    found = {"source": source, "train": own, "adapter": adapter}
    return ConfigView(found, checked=True)


#: Qwen3-0.6B, whose card says 0.6B parameters, 0.44B without embedding.
PUBLISHED = {
    "path": None,
    "config": {
        "model_type": "qwen3",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    },
    "tokenizer": {"characters": "ab"},
    "dtype": "bfloat16",
}


def test_the_shape_of_a_published_model():
    source = PUBLISHED
    shape = ModelShape.of(entry(source))
    assert shape.parameters == 596_049_920
    # One embedding of 151,936 rows of 1,024, and the last norm.
    assert shape.root == 151936 * 1024 + 1024
    assert (shape.layers, shape.bytes, shape.vocabulary) == (28, 2, 151936)
    lora = ModelShape.of(entry(source, {"r": 8, "target_modules": ["q_proj", "v_proj"]}))
    assert lora.trained == 28 * 8 * ((1024 + 2048) + (1024 + 1024))
    # An adapter is in float32, whatever the model is in.
    assert (lora.kept, lora.moments) == (4, 8 * lora.trained)


@pytest.mark.parametrize(
    ("options", "kept", "moments"),
    [
        ({}, 4, 8 * 596_049_920),
        # Moments are as precise as what is changed.
        ({"master_weights": False}, 2, 4 * 596_049_920),
        # 15,728,640 numbers of matrices in a layer; the embedding and norms have AdamW.
        ({"optimizer": "muon"}, 4, 4 * 28 * 15_728_640 + 8 * 155_648_000),
        # All but norms, of 28 x 2,304 + 1,024 numbers, in codes, with a scale for 256 and, for each
        # moment of 28 x 7 + 1 matrices, what the codes mean.
        (
            {"optimizer": "adamw_8bit"},
            4,
            2 * (595_984_384 + 4 * 2_328_064 + 197 * 4 * 256) + 8 * 65_536,
        ),
    ],
)
def test_what_each_optimizer_keeps_of_a_published_model(options, kept, moments):
    shape = ModelShape.of(entry(PUBLISHED, **options))
    assert (shape.kept, shape.moments) == (kept, moments)


SHAPE = ModelShape(
    layers=2,
    layer=100,
    root=50,
    trained=250,
    hidden=8,
    inner=16,
    heads=12,
    vocabulary=10,
    bytes=2,
    kept=4,
    moments=2000,
)


def test_a_plan_by_hand():
    shape = SHAPE
    one = DevicePlan.of(shape, 1, split=1, **PLAN)
    assert (one.weights, one.gradients, one.moments) == (1000, 1000, 2000)
    # 2 x 250 of weights, 6 x (100 + 50) of gradients.
    assert one.gathered == 500 + 900
    assert (one.received, one.synced) == (0, 500)
    four = DevicePlan.of(shape, 4, split=4, **PLAN)
    assert (four.weights, four.gradients, four.moments) == (250, 250, 500)
    assert four.gathered == one.gathered
    # Three quarters of 2 x 250 and 4 x 250.
    assert four.received == 0.75 * (500 + 1000)
    copies = DevicePlan.of(shape, 4, split=1, **PLAN)
    assert (copies.weights, copies.moments) == (1000, 2000)
    # Twice three quarters of the gradient.
    assert copies.received == 1500
    adapter = DevicePlan.of(replace(shape, trained=20), 4, split=4, **PLAN)
    assert (adapter.weights, adapter.gradients) == ((80 + 500) // 4, 20)


# A token has 2 x (6 x 8 + 2 x 12 + 4 x 16) = 272 bytes of states in a layer, and 16 of a hidden
# state; of 1,024 tokens at once, each word of the vocabulary has 16 bytes.
@pytest.mark.parametrize(
    ("again", "vocabulary", "activations"),
    [
        # All layers, and 0.4 of the states of one, which is more than 160 KiB of logits.
        (False, 10, 4096 * 272 * 2 + 445_644),
        (False, 100, 4096 * 272 * 2 + 1024 * 100 * 16),
        # Two hidden states, and 1.4 of the states of one layer; or the logits.
        (True, 10, 4096 * 16 * 2 + 4096 * 272 + 445_644),
        (True, 100, 4096 * 16 * 2 + 1024 * 100 * 16),
    ],
)
def test_activations_by_hand(again, vocabulary, activations):
    options = {**PLAN, "computed_again": again}
    plan = DevicePlan.of(replace(SHAPE, vocabulary=vocabulary), 1, split=1, **options)
    assert plan.activations == activations


def test_copies_on_machines_by_hand():
    """Four devices of two machines: halves of everything, and a copy of each half."""
    plan = DevicePlan.of(SHAPE, 4, split=2, **PLAN)
    assert (plan.weights, plan.gradients, plan.moments) == (500, 500, 1000)
    # Half of 2 x 250 and 4 x 250 within the machine; then the half of the gradient, 500, is summed
    # with the other machine: twice a half of it.
    assert plan.received == 750 + 500
    assert plan.gathered == DevicePlan.of(SHAPE, 4, split=4, **PLAN).gathered


def test_weights_of_more_than_8_gib_are_gathered_layer_by_layer():
    million = 10**6
    shape = replace(
        SHAPE, layers=10, layer=400 * million, root=300 * million, trained=4300 * million
    )
    # 8.6 GB, of which 8.59 GB would stay.
    four = DevicePlan.of(shape, 4, split=4, **PLAN)
    # 2 (2 x 400 + 300) of weights, 6 x (400 + 300) of gradients.
    assert four.gathered == (2200 + 4200) * million
    # Three quarters of 2 x (2 x 4000 + 300) and 4 x 4300.
    assert four.received == 0.75 * (16600 + 17200) * million
    smaller = replace(shape, root=290 * million, trained=4290 * million)
    # 2 x 4290 of weights, 6 x (400 + 290) of gradients.
    assert DevicePlan.of(smaller, 4, split=4, **PLAN).gathered == (8580 + 4140) * million
    # The other way round where it is asked for.
    larger = DevicePlan.of(shape, 4, split=4, **PLAN, reshard_after_forward=False)
    assert larger.gathered == (8600 + 4200) * million
    split = DevicePlan.of(smaller, 4, split=4, **PLAN, reshard_after_forward=True)
    assert split.gathered == (2180 + 4140) * million


# On 8 devices of 2 machines, with 8 bytes of moments for each of 596,049,920 parameters.
@pytest.mark.parametrize(
    ("shard", "split", "moments"),
    [
        ("full", "8, in 1 copy", "0.56 GiB"),
        ("hybrid", "4, in 2 copies", "1.11 GiB"),
        ("none", "1, in 8 copies", "4.44 GiB"),
    ],
)
def test_each_way_to_split_is_planned_as_it_is(shard, split, moments):
    rows = dict(device_rows(entry(PUBLISHED, shard=shard), 8, 2))
    assert rows["split over devices"] == split
    assert rows["moments of AdamW a device"] == moments


@pytest.mark.parametrize(
    ("wish", "gathered"),
    [
        # Layers have 15,730,944 parameters, the rest 155,583,488: 2 x 596,049,920 of weights, and
        # 6 x (15,730,944 + 155,583,488) of gradients.
        ("auto", "2.07 GiB"),
        (False, "2.07 GiB"),
        # 2 x (2 x 15,730,944 + 155,583,488) of weights.
        (True, "1.31 GiB"),
    ],
)
def test_weights_are_planned_as_ranks_gather_them(wish, gathered):
    rows = dict(device_rows(entry(PUBLISHED, reshard_after_forward=wish), 2))
    assert rows["gathered weights and gradients a device, at most"] == gathered


# A token has 2 x (6 x 1,024 + 2 x 4,096 + 4 x 3,072) bytes in each of 28 layers, of which 10 GiB
# hold 7,201; computed again, those of one layer and a hidden state in each: 16,384 are enough.
@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        ({}, "7,201"),
        ({"gradient_checkpointing": True}, "16,384"),
        ({"micro_batch_tokens": 4096}, "4,096"),
        # Of 32,768 places each, the default of Qwen3.
        ({"micro_batch_size": 2}, "65,536"),
    ],
)
def test_a_pass_is_planned_as_a_gpu_has_it(options, tokens):
    rows = dict(device_rows(entry(PUBLISHED, **{"micro_batch_size": None, **options}), 2))
    assert f"activations of {tokens} tokens, about" in rows


def test_what_is_printed_adds_up():
    source = spec().source
    rows = dict(device_rows(entry(source, shard="full"), 2))
    assert rows["parameters"].startswith("2") or "," in rows["parameters"]
    assert len(rows) == 10
    nothing = ConfigView({**source.to_dict(), "config": {"model_type": "no such"}}, checked=True)
    assert device_rows(entry(nothing), 2) == []
