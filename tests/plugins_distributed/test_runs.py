"""Runs whose model is trained by two ranks: their numbers, checkpoints and resumes."""

import pytest
from here import configuration, spread

from plugrl.core.experiment import load_run, prepare, start

pytestmark = pytest.mark.integration

TRAINERS = [
    "self_hosted_grpo",
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in (
            "self_hosted_dpo",
            "self_hosted_cross_entropy",
            "self_hosted_opd",
            "reward_model",
            "grpo_pure_text",
            "ei_pure_text",
        )
    ),
]


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_run_learns_what_one_process_learns(cluster, trainer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    expected = start(prepare(configuration(trainer, tmp_path / "local")))
    ours = start(prepare(spread(configuration(trainer, tmp_path / "ranks"))))
    assert len(ours.metrics) == len(expected.metrics)
    compared = set()
    for found, wanted in zip(ours.metrics, expected.metrics, strict=True):
        times = {name for name in wanted if "seconds" in name or "time" in name or "/s" in name}
        for name in set(wanted) - times:
            if isinstance(wanted[name], float) and "memory" not in name:
                compared.add(name)
                assert found[name] == pytest.approx(wanted[name], rel=1e-3, abs=1e-4), name
    assert any("loss" in name for name in compared)


def test_a_run_goes_on_from_its_checkpoint_and_is_opened_and_exported(
    cluster, tmp_path, monkeypatch
):
    from plugrl.core.text.loaded_models import export

    monkeypatch.chdir(tmp_path)
    tree = spread(configuration("self_hosted_grpo", tmp_path / "ranks"))
    run = start(prepare(tree))
    saved = load_run(run.folder)
    print(export(saved, "policy", tmp_path / "model"))
    print(sorted(tmp_path.rglob("*")))
