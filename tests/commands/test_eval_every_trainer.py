"""``plugrl eval`` repeats the last validation of a run of every built-in trainer."""

import json

import pytest

import plugrl
from plugrl.core.plugins.registry import default_registry
from plugrl.testing import tiny

TRAINERS = sorted(
    r.name
    for r in default_registry().records("trainer")
    # An analysis has no state to be evaluated.
    if r.distribution == "plugrl" and r.name != "rollout_analysis"
)


#: One of each family; the others differ in their losses.
FAST = {"harness", "vanilla_ppo"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in FAST else [pytest.mark.integration])
        for name in TRAINERS
    ],
)
def test_eval_gives_the_numbers_of_the_run(name, tmp_path, call):
    registry = default_registry()
    trainer = registry.load(registry.resolve("trainer", name))
    sections = getattr(trainer, "conformance", {})
    run = plugrl.train(tiny.config(name, tmp_path, sections))
    if not trainer.capabilities.resume:
        pytest.skip("it keeps no state, so there is no checkpoint to evaluate")
    code, out, err = call("eval", run.folder, "validation", "--json")
    assert code == 0, err
    metrics = json.loads(out)["metrics"]
    # Trainers with episodes or items to test with at the end are evaluated on these.
    tested = {k: v for k, v in run.last_metrics.items() if k.startswith("test/")}
    if not tested:
        tested = {k: v for k, v in run.last_metrics.items() if k.startswith("validation/")}
    expected, metrics = without_split(tested), without_split(metrics)
    assert expected
    assert metrics == expected


def test_the_fast_ones_are_there():
    assert set(TRAINERS) > FAST


def without_split(metrics):
    return {name.partition("/")[2]: value for name, value in metrics.items()}
