"""Advantages of groups beside those of TRL's trainers."""

import json
from pathlib import Path

import peers
import pytest
import torch

from plugrl.core.config.check import configure
from plugrl.core.plugins.registry import default_registry
from tests.trainers import preference_models

REWARDS = [1.0, 0.0, 0.5, 0.25, 3.0, -1.0, 2.0, 2.0]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_advantages_equal_those_of_trl(tmp_path):
    peers.python()
    preference_models.write(preference_models.make_models(value_head=True), tmp_path)
    program = Path(__file__).with_name("trl_advantages.py")
    theirs = json.loads(peers.answer(program, tmp_path, str(tmp_path), given=json.dumps(REWARDS)))
    for name, options in {"grpo": {"epsilon": 1e-4}, "dr_grpo": {}, "rloo": {}}.items():
        function = default_registry().get("advantage", name)
        ours = function(
            torch.tensor(REWARDS),
            torch.tensor([0] * 4 + [1] * 4),
            torch.arange(len(REWARDS)),
            torch.ones(len(REWARDS), dtype=torch.bool),
            None,
            configure(function, options),
        )
        assert ours.tolist() == pytest.approx(theirs.pop(name), rel=1e-5), name
    assert not theirs
