"""``settings.deterministic`` on the CPU; what it is for is tested on a GPU."""

import os

import pytest
import torch

from plugrl.core.experiment import apply_process_settings, prepare
from plugrl.core.run.process import determinism
from plugrl.testing import tiny


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    # Set first, so that what is written in a test is taken back.
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "x")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    yield
    determinism.configure(False)


def test_a_run_switches_it_on_and_the_next_one_off(tmp_path):
    for wish in (True, False):
        tree = tiny.config("self_hosted_grpo", tmp_path, {"settings": {"deterministic": wish}})
        apply_process_settings(prepare(tree))
        assert torch.are_deterministic_algorithms_enabled() is wish
        assert determinism.is_on() is wish
        # Memory that nobody wrote to is not filled, which takes time.
        assert torch.utils.deterministic.fill_uninitialized_memory is not wish
        # A GPU keeps to what was set before it was first used.
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


def test_what_a_program_chose_itself_stays():
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        determinism.configure(False)
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("wish", [True, False])
def test_a_part_whose_order_is_fixed_is_let_through(wish):
    determinism.configure(wish)
    # An operation that torch has on the CPU in no deterministic form, whatever it is given.
    values, at = torch.zeros(3), torch.tensor([0])
    if wish:
        with pytest.raises(RuntimeError, match="deterministic"):
            values.put_(at, torch.ones(1))
    with determinism.unchecked():
        values.put_(at, torch.ones(1))
    assert values.tolist() == [1.0, 0.0, 0.0]
    assert torch.are_deterministic_algorithms_enabled() is wish
