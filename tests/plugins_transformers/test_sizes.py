"""Models of absurd sizes are refused by their configuration alone."""

from __future__ import annotations

import pytest
from transformers import AutoConfig, AutoModelForCausalLM

from plugrl.core.errors import ConfigError, RunError
from plugrl.core.experiment import prepare, start
from plugrl.plugins.transformers.outline import parameter_count
from plugrl.testing import tiny

CONFIG = "models.policy.source.config"
SMALL = {"model_type": "qwen3", "hidden_size": 32, "intermediate_size": 48, "vocab_size": 11}
SMALL |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}


@pytest.mark.parametrize("layers", [1, 2, 5])
@pytest.mark.parametrize("tied", [True, False])
def test_parameters_are_counted_without_the_model(layers, tied):
    options = {**SMALL, "num_hidden_layers": layers, "tie_word_embeddings": tied}
    kind = {key: value for key, value in options.items() if key != "model_type"}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen3", **kind))
    assert parameter_count(options) == sum(p.numel() for p in model.parameters())


ABSURD = [
    (key, size, more)
    for key in ("hidden_size", "intermediate_size", "num_hidden_layers")
    for size in (10**11, 10**13)
    for more in ((), ("models.policy.adapter={r: 2}",))
]
SAMPLE = {0, 7, 8}


@pytest.mark.parametrize(
    ("key", "size", "more"),
    [
        pytest.param(*row, marks=[] if number in SAMPLE else pytest.mark.integration)
        for number, row in enumerate(ABSURD)
    ],
)
def test_a_model_that_no_host_can_hold_is_refused(key, size, more):
    with pytest.raises(ConfigError) as caught:
        prepare("quickstart", [f"{CONFIG}.{key}={size}", *more])
    assert "take smaller sizes" in str(caught.value)
    assert any(fault.startswith(CONFIG) for fault in caught.value.faults)


@pytest.mark.parametrize("adapter", [None, {"r": 2}])
def test_a_model_that_only_larger_machines_hold_is_warned_of_and_not_begun(
    adapter, tmp_path, caplog
):
    tree = tiny.config("self_hosted_grpo", tmp_path)
    tree["models"]["policy"]["adapter"] = adapter
    # Four matrices of this many rows and as many columns: 1.6e12 bytes and more.
    tree["models"]["policy"]["source"]["config"]["hidden_size"] = 2**18
    tree["models"]["policy"]["source"]["config"]["intermediate_size"] = 2**18
    prepared = prepare(tree)
    assert f"{CONFIG}: on this machine, " in caplog.text
    assert "take smaller sizes" in caplog.text
    with pytest.raises(RunError, match=rf"{CONFIG}: .* parameters need .* for the weights"):
        start(prepared)
