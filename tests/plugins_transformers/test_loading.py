"""Model folders, random weights and tokenizers."""

from importlib.util import find_spec

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from plugrl.core.errors import ConfigError
from plugrl.core.experiment import prepare
from plugrl.plugins.transformers.loading import load_model, load_tokenizer
from plugrl.plugins.transformers.outline import misspelt_keys
from plugrl.plugins.transformers.tokenizer import character_tokenizer
from plugrl.testing import tiny
from tests.plugins_transformers.test_engine import FAMILIES


def test_random_weights_depend_on_the_seed_alone(spec):
    torch.manual_seed(1)
    first = load_model(spec()).state_dict()
    torch.manual_seed(2)
    before = torch.get_rng_state()
    second = load_model(spec()).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_saved_folder_loads_to_the_same_model_and_tokenizer(spec, tmp_path):
    model, tokenizer = load_model(spec()), load_tokenizer(spec())
    model.save_pretrained(tmp_path)
    tokenizer.wrapped.save_pretrained(tmp_path)
    folder = spec(path=str(tmp_path), config={})
    loaded, read = load_model(folder), load_tokenizer(folder)
    assert all(torch.equal(v, loaded.state_dict()[k]) for k, v in model.state_dict().items())
    assert read.encode("badge") == tokenizer.encode("badge")
    assert read.decode([*read.encode("badge"), read.eos_token_id]) == "badge"
    assert (read.pad_token_id, read.eos_token_id) == (0, 1)


@pytest.mark.parametrize("family", FAMILIES)
def test_half_precision_is_that_of_transformers(family, spec, tmp_path):
    config = {"model_type": family, **FAMILIES[family]}
    chosen = spec(config=config, tokenizer={"characters": "abcdefghijklmnop"})
    load_model(chosen).save_pretrained(tmp_path)
    load_tokenizer(chosen).wrapped.save_pretrained(tmp_path)
    ours = load_model(spec(path=str(tmp_path), config={}, dtype="bfloat16"))
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    # Frequencies of rotary embeddings are no weights, and are not rounded.
    buffers = dict(ours.named_buffers())
    for name, each in theirs.named_buffers():
        assert torch.equal(buffers[name].to(each.dtype), each)
    for name, weight in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], weight)


@pytest.mark.parametrize("content", [None, {}, {"config.json": "{oops"}, {"config.json": "{}"}])
def test_unusable_folders_are_named(spec, tmp_path, content):
    folder = tmp_path / "model"
    if content is not None:
        folder.mkdir()
        for name, text in content.items():
            (folder / name).write_text(text)
    with pytest.raises(ConfigError, match=r"models\.policy\.source\.path .*model: ") as caught:
        load_model(spec(path=str(folder), config={}))
    assert "\n" not in str(caught.value)


def test_a_configuration_that_makes_no_model_is_named(spec):
    with pytest.raises(ConfigError, match=r"models\.policy\.source\.config: "):
        load_model(spec(config={"model_type": "no_such_model"}))
    with pytest.raises(ConfigError, match=r"tokenizer\.characters is needed"):
        load_model(spec(tokenizer={"characters": None}))


@pytest.mark.parametrize(
    ("key", "close"),
    [
        ("hidden_sise", "hidden_size"),
        ("num_hidden_layer", "num_hidden_layers"),
        ("tie_word_embedding", "tie_word_embeddings"),
        # Of no version or family, but of nobody's making either.
        ("my_key", None),
        # What other families and versions read, and how pages of the hub are copied.
        *((key, None) for key in ("use_sliding_window", "rope_theta", "n_layer", "torch_dtype")),
        *((key, None) for key in ("attn_implementation", "_name_or_path", "architectures")),
    ],
)
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_a_key_like_one_of_the_configuration_is_told(kind, key, close):
    config = AutoConfig.for_model(kind)
    found = dict(misspelt_keys(config, [key]))
    assert found == ({key: close} if close else {})


def test_keys_of_a_configuration_of_somebody_are_taken():
    class OwnConfig(PretrainedConfig):
        model_type = "own"
        hidden_size = 8

    assert list(misspelt_keys(OwnConfig(hidden_sise=8), ["hidden_sise"])) == []


def test_known_keys_of_families_are_no_slips():
    for kind in ("llama", "qwen3", "qwen2", "mistral", "gemma2", "gpt2", "gpt_neox", "phi3", "opt"):
        config = AutoConfig.for_model(kind)
        assert list(misspelt_keys(config, config.to_dict())) == []


def test_characters_are_single_tokens():
    tokenizer = character_tokenizer("ab+ab")
    assert tokenizer.vocabulary_size == 5
    assert tokenizer.encode("a+b") == [2, 4, 3]
    assert tokenizer.decode([0, 2, 4, 3, 1]) == "a+b"
    assert tokenizer.wrapped("a+b", add_special_tokens=False)["input_ids"] == [2, 4, 3]
    with pytest.raises(ConfigError, match="'c'"):
        tokenizer.encode("abc")


@pytest.mark.parametrize(
    ("attention", "fault"),
    [
        ("eager", None),
        ("sdpa", None),
        ("flash_attention_0", "is not supported"),
        pytest.param(
            "flash_attention_2",
            "FlashAttention2",
            marks=pytest.mark.skipif(find_spec("flash_attn") is not None, reason="is there"),
        ),
    ],
)
@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
def test_an_attention_that_cannot_be_used_is_refused_before_a_run(tmp_path, key, attention, fault):
    source = {"config": {key: attention}}
    tree = tiny.config("self_hosted_grpo", tmp_path, {"models": {"policy": {"source": source}}})
    if fault is None:
        prepare(tree)
        return
    with pytest.raises(ConfigError) as caught:
        prepare(tree)
    (line,) = caught.value.faults
    assert line.startswith(f"models.policy.source.config.{key}")
    assert f"{attention} cannot be used here (" in line
    assert fault in line
    assert line.endswith("leave it out, and torch's own is taken")
    assert "\n" not in line


@pytest.mark.parametrize("kind", ["t5", "clip_text_model"])
@pytest.mark.parametrize("place", ["config", "folder"])
def test_a_type_that_is_no_causal_model_is_refused_before_a_run(tmp_path, kind, place):
    source = {"config": {"model_type": kind}}
    if place == "folder":
        AutoConfig.for_model(kind).save_pretrained(tmp_path / "model")
        source = {"path": str(tmp_path / "model"), "config": None, "tokenizer": None}
    tree = tiny.config("self_hosted_grpo", tmp_path, {"models": {"policy": {"source": source}}})
    with pytest.raises(ConfigError) as caught:
        prepare(tree)
    said = f"transformers has no causal language model of the type {kind}; take another type"
    (line,) = {fault for fault in caught.value.faults if said in fault}
    assert line.startswith("models.policy.source.")
    assert "\n" not in line


@pytest.mark.parametrize(
    "options",
    [
        {"num_attention_heads": 3},
        {"num_key_value_heads": 8},
        {"layer_types": ["linear_attention"] * 2},
        {"model_type": "qwen3_moe", "num_experts": 2, "num_experts_per_tok": 4},
    ],
    ids=str,
)
def test_parts_that_do_not_fit_each_other_are_named(spec, options):
    config = {**spec().source.config.to_dict(), **options}
    with pytest.raises(ConfigError) as caught:
        load_model(spec(config=config))
    said = "models.policy.source.config: a model of these sizes cannot compute ("
    assert str(caught.value).startswith(said)
    assert str(caught.value).endswith("; check its heads, layers and experts")
    assert "\n" not in str(caught.value)
