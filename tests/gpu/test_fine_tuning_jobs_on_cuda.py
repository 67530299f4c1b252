"""Fine-tuning jobs of the service ``local`` on a GPU."""

import sys
from pathlib import Path

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
sys.path.insert(0, str(Path(__file__).parents[1] / "plugins_transformers"))

from job_models import PREFERENCES, SUPERVISED, group  # noqa: E402


def scores(shared):
    return shared.model.inference.score([[2, 3, 4, 5, 6, 7]])[0]


@pytest.mark.parametrize("kind", ["supervised", "preferences"])
def test_a_job_ends_as_on_the_cpu_and_is_sampled_from(tmp_path, kind):
    from plugrl.core.text.jobs.model_groups import wait_for_jobs

    found = {}
    for device in ("cpu", "cuda"):
        shared = group(tmp_path / device, device=device, save_interval=0.0)
        if kind == "supervised":
            shared.create_supervised_fine_tune_job({"a": SUPERVISED}, "j")
        else:
            shared.create_dpo_fine_tune_job({"a": PREFERENCES}, "j")
        before = scores(shared)
        assert shared.get_fine_tune_job_status().state == "running"
        # Another process goes on.
        resumed = group(tmp_path / device, device=device)
        resumed.load_state_dict(shared.state_dict())
        wait_for_jobs([resumed])
        resumed.switch_to_next_model()
        found[device] = scores(resumed)
        assert found[device] != before
    assert found["cuda"] == pytest.approx(found["cpu"], abs=2e-2)
