"""The card of a published model: metadata, what it came from, how it went, how to do it again."""

import json

import pytest
import yaml

from plugrl.core.errors import UsageError
from plugrl.core.loaded_run import LoadedRun
from plugrl.core.null_run import UnrecordedRun
from plugrl.core.run.records.headline import Headline
from plugrl.core.text import publication
from plugrl.core.text.publication import CardFacts, card_of, write_publication

SHA = "0123456789" * 4
CONFIG = {
    "trainer": {"type": "self_hosted_grpo"},
    "models": {
        "judge": {"source": {"path": "b/judge", "revision": SHA}},
        "policy": {"source": {"path": "a/base", "revision": SHA}},
    },
    "data": {"name": "a/data", "revision": SHA[::-1]},
}
CURVE = Headline("test/correct", False, [(0, 0.25), (1, 0.5), (2, 0.375)])


def facts(config=CONFIG, headline=CURVE):
    return CardFacts("me/mine", "policy", "runs/x/y/checkpoints/step-00000002", config, headline)


def parts(card):
    _, metadata, text = card.split("---", 2)
    return yaml.safe_load(metadata), text


def test_a_card_names_what_the_model_came_from_and_how_it_went():
    metadata, text = parts(card_of(facts(), ["/bin/plugrl", "train", "a b.yaml"], adapter=False))
    assert metadata == {
        "library_name": "transformers", "base_model": "a/base", "datasets": ["a/data"],
        "pipeline_tag": "text-generation",
        "tags": ["plugrl", "reinforcement-learning", "self_hosted_grpo"],
    }  # fmt: skip
    assert text.startswith("\n\n# mine\n")
    assert f"[a/base](https://huggingface.co/a/base) at `{SHA}`" in text
    assert f"[a/data](https://huggingface.co/datasets/a/data) at `{SHA[::-1]}`" in text
    assert "`test/correct` went from 0.25 at step 0 to 0.375 at step 2; the best was 0.5." in text
    assert "(run/curve.svg)" in text
    assert "plugrl train run/config.yaml" in text
    assert "\nplugrl train 'a b.yaml'\n" in text


def test_a_card_of_phases_an_adapter_and_no_hub(tmp_path):
    phases = [
        {"name": "warm", "trainer": {"type": "self_hosted_cross_entropy"}},
        {"name": "rl", "trainer": {"type": "self_hosted_grpo"}, "data": {"name": "a/more"}},
    ]
    config = {
        "trainer": {"type": "sequence", "phases": phases},
        "models": {"policy": {"source": {"path": str(tmp_path)}}},
    }
    metadata, text = parts(card_of(facts(config, None), None, adapter=True))
    assert metadata["library_name"] == "peft"
    assert "base_model" not in metadata
    assert metadata["datasets"] == ["a/more"]
    assert metadata["tags"][2:] == ["self_hosted_cross_entropy", "self_hosted_grpo"]
    assert "phases warm (`self_hosted_cross_entropy`), rl (`self_hosted_grpo`)" in text
    assert "Results" not in text
    assert "It was started" not in text


def test_records_hide_credentials_whoever_wrote_them(tmp_path, monkeypatch):
    """Run folders of earlier versions, and files that were edited, may hold some."""
    word, key = "hf_" + "c" * 30, "sk-" + "d1" * 12
    run, folder = tmp_path / "run", tmp_path / "out"
    run.mkdir()
    (run / "config.yaml").write_text(f"trainer: {{type: x}}\napi_key: plain-word\n# {word}\n")
    (run / "config.private.json").write_text('[{"value": "kept-apart"}]')
    (run / "status.json").write_text('{"state": "done"}')
    (run / "metrics.jsonl").write_text(
        json.dumps({"step": 1, "rollout/reward": 0.5, "x": key}) + "\n"
    )
    environment = {
        "python": "3",
        "command": ["plugrl", "train", f"token={word}"],
        "variables": {"A": key},
    }
    (run / "environment.json").write_text(json.dumps(environment))
    monkeypatch.setattr(publication, "export", lambda saved, model, to, adapter: to.mkdir())
    saved = LoadedRun(None, UnrecordedRun("a state", run), "checkpoints/step-1")
    files = write_publication(saved, "policy", "me/mine", folder)
    assert [str(file.relative_to(folder)) for file in files] == [
        "README.md", "run/config.yaml", "run/curve.svg", "run/metrics.jsonl", "run/versions.json",
    ]  # fmt: skip
    text = "".join(file.read_text("utf-8") for file in files)
    for secret in (word, key, "plain-word", "kept-apart"):
        assert secret not in text
    assert json.loads((folder / "run" / "versions.json").read_text()) == {"python": "3"}


def test_a_model_folder_is_no_run(tmp_path):
    saved = LoadedRun(None, UnrecordedRun("a state"), "exported")
    with pytest.raises(UsageError, match="exported is a model folder; name a run"):
        write_publication(saved, "policy", "me/mine", tmp_path / "out")
