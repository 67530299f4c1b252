"""Runs of earlier versions are resumed, evaluated, sampled and exported by this one.

``tests/support/kept_runs.py`` made them. Each was kept after its last step but one, with the
metrics of all steps.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from kept_runs import FOLDER, RUNS, TEXTS

from plugrl.core.experiment import resume
from plugrl.core.run.records.records import read_jsonl

ARCHIVES = sorted(RUNS.glob("*/*.tar.xz"))
#: One of each family, which the fast tier reads.
FAST = {"dqn", "self_hosted_grpo", "hf_ast"}
#: Trainers without language models that the run saved.
NO_TEXT = {
    "a2c",
    "dqn",
    "evaluation",
    "reinforce",
    "sac",
    "solo_agent",
    "spg",
    "td3",
    "vanilla_ppo",
}
#: A reward model gives scores and no text.
NO_ANSWERS = NO_TEXT | {"reward_model"}
#: Has no state to go on from.
NO_STATE = {"evaluation"}


def rows(besides: set[str] = frozenset()) -> list:
    names = [(archive, archive.name.partition(".")[0]) for archive in ARCHIVES]
    return [
        pytest.param(archive, id=name, marks=[] if name in FAST else pytest.mark.integration)
        for archive, name in names
        if name not in besides
    ]


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Unpacks an archive as if the run had been made here, and gives its folder."""
    monkeypatch.chdir(tmp_path)

    def unpack(archive: Path) -> Path:
        with tarfile.open(archive) as opened:
            opened.extractall(tmp_path, filter="data")
        for file in tmp_path.rglob("*"):
            if file.suffix in TEXTS:
                text = file.read_text("utf-8").replace(FOLDER, str(tmp_path))
                file.write_text(text, "utf-8")
        return tmp_path / "run"

    return unpack


def model_of(archive: Path) -> str:
    return "tester" if archive.name.startswith(("harness", "hf_ast")) else "policy"


def without_times(metrics: list[dict]) -> list[dict]:
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in metrics]


def test_every_trainer_of_the_first_version_is_there():
    assert len(ARCHIVES) >= 23


@pytest.mark.parametrize("archive", rows(NO_STATE))
def test_it_goes_on_with_the_numbers_of_its_version(kept, archive):
    folder = kept(archive)
    expected = without_times(read_jsonl(folder / "metrics.jsonl"))
    found = without_times(resume(folder).metrics)
    assert [row["step"] for row in found] == [row["step"] for row in expected]
    for ours, theirs in zip(found, expected, strict=True):
        # Metrics may come; those that were there keep their values.
        assert {k: ours[k] for k in theirs} == pytest.approx(theirs, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("archive", rows(NO_STATE))
def test_it_is_evaluated_to_the_numbers_that_it_had(kept, archive, call):
    folder = kept(archive)
    (checkpoint,) = (folder / "checkpoints").iterdir()
    step = json.loads((checkpoint / "manifest.json").read_text("utf-8"))["step"]
    (row,) = [r for r in read_jsonl(folder / "metrics.jsonl") if r["step"] == step]
    expected = {k: v for k, v in row.items() if k.startswith("validation/")}
    code, out, err = call("eval", folder, "validation", "--json")
    assert code == 0, err
    found = json.loads(out)["metrics"]
    assert found
    if "solo_agent" in archive.name:
        # Its validation looked at some of the items that this looks at.
        assert expected.keys() <= found.keys()
    else:
        assert {k: found[k] for k in expected} == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("archive", rows(NO_ANSWERS))
def test_it_is_sampled(kept, archive, call):
    code, out, err = call("sample", kept(archive), "ab", "--json", "--model", model_of(archive))
    assert code == 0, err
    assert out


@pytest.mark.parametrize("archive", rows(NO_TEXT))
def test_it_is_exported(kept, archive, call, tmp_path):
    words = (kept(archive), tmp_path / "model", "--model", model_of(archive))
    code, _, err = call("export", *words)
    assert code == 0, err
    assert list(tmp_path.glob("model/**/*.safetensors"))
