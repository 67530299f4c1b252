"""The quickstart learns on a GPU: some of its steps, as many as tell it from luck."""

import subprocess
import sys

import pytest
import torch

from plugrl.core.experiment import load_run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
STEPS = 300
SHORTER = [
    f"trainer.phases.1.trainer.total_train_steps={STEPS}",
    "trainer.phases.1.models.policy.train.schedule.warmup_steps=20",
    f"trainer.phases.1.models.policy.train.schedule.total_steps={2 * STEPS}",
    f"trainer.phases.1.validate.every={STEPS}",
    "settings.device=cuda",
]


def test_rewards_alone_raise_the_share_of_right_answers(tmp_path):
    words = [sys.executable, "-m", "plugrl", "train", "quickstart", *SHORTER]
    subprocess.run(words, cwd=tmp_path, check=True)
    (run,) = tmp_path.glob("runs/quickstart/*")
    key = "validation/exact_match"
    held_out = [m[key] for m in load_run(run).metrics if m.get("phase") == 2 and key in m]
    begun, ended = held_out
    assert 0.2 <= begun <= 0.6
    assert ended >= begun + 0.15
