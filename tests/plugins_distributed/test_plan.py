"""Memory and traffic that ``plugrl validate --devices`` prints, by hand and as measured."""

from dataclasses import replace

from here import spec

from plugrl.core.config.view import ConfigView
from plugrl.plugins.distributed.plan import DevicePlan, ModelShape, device_rows

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


def test_the_shape_of_a_published_model():
    # Qwen3-0.6B, whose card says 0.6B parameters, 0.44B without embedding.
    config = {
        "model_type": "qwen3",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    }
    source = {
        "path": None,
        "config": config,
        "tokenizer": {"characters": "ab"},
        "dtype": "bfloat16",
    }
    shape = ModelShape.of(entry(source))
    assert shape.parameters == 596_049_920
    # One embedding of 151,936 rows of 1,024, and the last norm.
    assert shape.root == 151936 * 1024 + 1024
    assert (shape.layers, shape.bytes, shape.vocabulary) == (28, 2, 151936)
    lora = ModelShape.of(entry(source, {"r": 8, "target_modules": ["q_proj", "v_proj"]}))
    assert lora.trained == 28 * 8 * ((1024 + 2048) + (1024 + 1024))


def test_a_plan_by_hand():
    shape = ModelShape(
        layers=2,
        layer=100,
        root=50,
        trained=250,
        hidden=8,
        inner=16,
        heads=12,
        vocabulary=10,
        bytes=2,
    )
    one = DevicePlan.of(shape, 1, split=1, masters=True, **PLAN)
    assert (one.weights, one.gradients, one.moments) == (1000, 1000, 2000)
    assert (one.gathered, one.received, one.synced) == (0, 0, 500)
    four = DevicePlan.of(shape, 4, split=4, masters=True, **PLAN)
    assert (four.weights, four.gradients, four.moments) == (250, 250, 500)
    # 2 (2 x 100 + 50) of weights, 6 x (100 + 50) of gradients.
    assert four.gathered == 500 + 900
    # Three quarters of 2 x (400 + 50) and 4 x 250.
    assert four.received == 0.75 * (900 + 1000)
    copies = DevicePlan.of(shape, 4, split=1, masters=True, **PLAN)
    assert (copies.weights, copies.moments) == (1000, 2000)
    # Twice three quarters of the gradient.
    assert copies.received == 1500
    adapter = DevicePlan.of(replace(shape, trained=20), 4, split=4, masters=True, **PLAN)
    assert (adapter.weights, adapter.gradients) == ((80 + 500) // 4, 20)


def test_what_is_printed_adds_up():
    source = spec().source
    rows = dict(device_rows(entry(source, shard="full"), 2))
    assert rows["parameters"].startswith("2") or "," in rows["parameters"]
    assert len(rows) == 9
    nothing = ConfigView({**source.to_dict(), "config": {"model_type": "no such"}}, checked=True)
    assert device_rows(entry(nothing), 2) == []
