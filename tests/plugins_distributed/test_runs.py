"""Runs whose model is trained by two ranks: their numbers, checkpoints and resumes."""

import json

import pytest
import torch
from here import configuration, spread
from transformers import AutoModelForCausalLM

from plugrl.core.experiment import prepare, start
from plugrl.core.loaded_run import open_checkpoint
from plugrl.core.text.loaded_models import export

TRAINERS = [
    pytest.param("self_hosted_grpo", marks=pytest.mark.integration),
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
    assert len(compared) > 3


@pytest.mark.slow
def test_a_run_is_exported_like_one_of_local(cluster, tmp_path, monkeypatch):
    """One folder, made of the parts of a checkpoint; the timeline has the weights' way."""
    monkeypatch.chdir(tmp_path)
    run = start(prepare(spread(configuration("self_hosted_grpo", tmp_path / "ranks"))))
    parts = sorted(path.name for path in run.folder.glob("checkpoints/*/shards-0/*"))
    assert parts
    assert all(name.endswith(".safetensors") for name in parts)
    with open_checkpoint(run.folder) as saved:
        export(saved, "policy", tmp_path / "model")
        weights = dict(saved.trainer.models["policy"].service().weights())
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "model").state_dict()
    assert weights.keys() == found.keys()
    assert all(torch.equal(weights[name], value) for name, value in found.items())
    spans = [
        json.loads(line) for line in (run.folder / "timeline.jsonl").read_text("utf-8").splitlines()
    ]
    sizes = {span["bytes"] for span in spans if span["lane"] == "weights"}
    assert sizes == {sum(weight.nbytes for weight in weights.values())}
    assert {line["sync/bytes"] for line in run.metrics if "sync/bytes" in line} == sizes
