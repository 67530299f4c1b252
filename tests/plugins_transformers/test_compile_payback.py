"""Whether compiling earns itself back, worked out by hand."""

import pytest
import torch

from plugrl.core.config.view import ConfigView
from plugrl.core.text.trainer_parts import decode_steps
from plugrl.plugins.transformers.compile_payback import of_decode_step, of_training_pass
from plugrl.plugins.transformers.engine import compiling
from plugrl.plugins.transformers.engine.compiling import StepCompiler


@pytest.mark.parametrize(
    ("device", "parameters", "steps"),
    [
        # 40 s at 0.4 s a step.
        ("cuda", 600_000_000, 100),
        # A tenth of the model saves 0.04 s.
        ("cuda", 60_000_000, 1_000),
        ("cuda", 4_000_000_000, 15),
        # 100 s at 0.02 s a step.
        ("cpu", 330_000, 5_000),
        ("cpu", 660_000, 2_500),
    ],
)
def test_training_passes(device, parameters, steps):
    payback = of_training_pass(device, parameters)
    assert not payback.within(steps - 1)
    assert payback.within(steps)
    assert not payback.within(None)


@pytest.mark.parametrize(
    ("layers", "steps"),
    # 40 s at 1.3 ms a step are 30,769.2 steps; twice as many layers save twice as much.
    [(28, 30_770), (56, 15_385), (2, 430_770)],
)
def test_decode_steps(layers, steps):
    payback = of_decode_step("cuda", layers)
    assert not payback.within(steps - 1)
    assert payback.within(steps)


def test_other_devices_are_not_known():
    assert of_training_pass("mps", 10**12) is None
    assert of_decode_step("cpu", 10**6) is None


def test_decode_steps_of_a_run_are_those_of_its_answers():
    worker = {"model": "policy", "max_response_length": 512}
    params = {"trainer": {"total_train_steps": 61}, "rollout_worker": worker}
    assert decode_steps(ConfigView(params, checked=True)) == {"policy": 31_232}
    validates = {**params, "trainer": {"type": "evaluation"}}
    assert decode_steps(ConfigView(validates, checked=True)) == {}


class _Layer(torch.nn.Module):
    pass


class _OnCuda(torch.nn.Module):
    """What is asked of a model: 28 layers, on a device that this machine need not have."""

    _no_split_modules = ("_Layer",)
    device = torch.device("cuda")

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(_Layer() for _ in range(28))


@pytest.mark.parametrize(
    ("setting", "known", "at_once", "made", "later"),
    [
        ("auto", 30_770, True, 0, True),
        ("auto", 30_769, False, 30_769, False),
        # A run that goes on for longer than it was estimated to, and one of unknown length.
        ("auto", 100, False, 30_770, True),
        ("auto", None, False, 30_770, True),
        (True, None, True, 0, True),
        (False, 10**9, False, 10**9, False),
    ],
)
def test_the_engine_compiles_once_its_steps_pay(
    monkeypatch, tmp_path, setting, known, at_once, made, later
):
    monkeypatch.setenv("PLUGRL_COMPILE_CACHE", str(tmp_path))
    monkeypatch.setattr(compiling, "missing_compiler", lambda device: None)
    monkeypatch.setattr(compiling, "prepare_compiling", lambda: None)
    compiler = StepCompiler(_OnCuda(), "policy", setting, known)
    assert compiler.active is at_once
    compiler.count(made)
    assert compiler.active is later
