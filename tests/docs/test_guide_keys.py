"""The page about keys of other guides says what happens, and every refusal says what to write."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "guides.md").read_text("utf-8")
ROWS = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| `")]


def guide_keys():
    spec = importlib.util.spec_from_file_location("guide_keys", ROOT / "docs" / "guide_keys.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_key_has_an_outcome_that_helps():
    assert len(ROWS) > 120
    for written, outcome in ROWS:
        assert outcome.startswith(("accepted", "means `", "refused: ", "runs `plugrl ")), written
        if outcome.startswith("refused") and "enable_feishu" not in written:
            assert "unknown" not in outcome, written
            assert "write " in outcome or "leave it out" in outcome, written


@pytest.mark.parametrize(
    ("written", "outcome"),
    [
        ("trainer.save_freq=100", "means `settings.checkpoint_every`"),
        ("trainer.checkpoint_path=checkpoints", "means `settings.checkpoint_path`"),
        ("algorithm.do_old_log_prob_compute=true", "means `trainer.algorithm.sampler_correction"),
        ("validate.data.shuffle=false", "accepted: it is what happens anyway"),
        ("runtime_monitor.health_check.timeout=5.0", "accepted"),
        ("resume.mode=auto", "refused: write plugrl resume RUN on the command line"),
        ("run_id=x", "refused: a run gets its id when it begins"),
    ],
)
def test_what_some_keys_come_to(written, outcome):
    found = guide_keys().rows_of([written])
    assert found == [next(what for key, what in ROWS if key == f"`{written}`")]
    assert found[0].startswith(outcome)
