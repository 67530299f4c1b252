"""The trainer ``rollout_analysis`` over the rollouts of a run."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import text_agents
import yaml
from written_rollouts import chat, rollouts

import plugrl
from plugrl.core.errors import ConfigError, RunError, RunTerminated
from plugrl.core.experiment import prepare, resume, start
from plugrl.core.text.staged.files import RunFiles
from plugrl.testing import tiny

PROTOCOL = {"type": "nip", "max_message_rounds": 4}
#: A model that says yes where the prover was loud, and stops on what it shall not answer.
JUDGE = """
from plugrl.core.errors import RunError
from plugrl.core.text.inference.requests import Completion
from plugrl.plugins.transformers.inference_service import TransformersInferenceService

class Judge(TransformersInferenceService):
    def generate(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        prompt = self.tokenizer.decode(request.prompt_tokens)
        if "silence" in prompt:
            raise RunError("no answer today")
        word = "yes" if "LOUD" in prompt else "no" if "calm" in prompt else "maybe"
        tokens = self.tokenizer.encode(f"Answer: {word}") + [self.tokenizer.eos_token_id]
        return Completion(tokens, [0.0] * len(tokens), "stop", self.version)
"""


def episode(text):
    said = [{"verifier": (chat("q"), "Why?")}, {"prover": (chat("q"), text)}]
    return {"y": 1, "question": "Is it?", "rounds": said}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a run."""
    tree = tiny.config("self_hosted_grpo", tmp_path_factory.mktemp("trained"))
    tree["trainer"]["total_train_steps"] = 1
    return start(prepare(tree | {"experiment_name": "talks"})).folder


@pytest.fixture
def analysed(trained, tmp_path):
    """A run that has rollouts, and the configuration of an analysis of it."""
    config = tiny.config("self_hosted_grpo", tmp_path)
    folder = tmp_path / "runs" / "talks" / trained.name
    shutil.copytree(trained, folder)
    (tmp_path / "judge.py").write_text(JUDGE, "utf-8")
    source = config["models"]["policy"]["source"]
    source["config"]["max_position_embeddings"] = 4096
    source["tokenizer"]["characters"] = "".join(map(chr, [10, *range(32, 127)]))
    inference = {
        "custom_inference_service_module_path": str(tmp_path / "judge.py"),
        "custom_inference_service_class_name": "Judge",
    }
    config["models"] = {"judge": {"source": source, "inference": inference}}
    for name in ("data", "validate", "rollout_worker"):
        del config[name]
    config["trainer"] = {
        "type": "rollout_analysis",
        "rollouts": "talks",
        "questions": {"prover_role_conformance": True},
    }
    # What the run says of its protocol is what a protocol worker has.
    path = folder / "config.yaml"
    saved = yaml.safe_load(path.read_text("utf-8"))
    saved["rollout_worker"] = {"type": "protocol", "protocol": PROTOCOL}
    path.write_text(yaml.safe_dump(saved), "utf-8")
    files = RunFiles(folder)
    files.save(rollouts([episode("LOUD"), episode("calm")], PROTOCOL), 0, is_test=False)
    files.save(rollouts([episode("LOUD"), episode("hm")], PROTOCOL), 1, is_test=False)
    return config, files


def test_each_file_is_a_step_with_shares_of_yes(analysed):
    config, _ = analysed
    run = start(prepare(config))
    name = "analysis/prover_role_conformance/prover"
    assert [record[name] for record in run.metrics] == [0.5, 1.0]
    assert [record[f"{name}/unclear"] for record in run.metrics] == [0.0, 0.5]
    lines = (run.folder / "samples" / "analysis.jsonl").read_text("utf-8").splitlines()
    found = [json.loads(line) for line in lines]
    assert [(each["file"], each["episode"], each["answer"]) for each in found] == [
        ("iteration-0001", 0, "yes"),
        ("iteration-0001", 1, "no"),
        ("iteration-0002", 0, "yes"),
        ("iteration-0002", 1, "unclear"),
    ]
    assert found[0]["reply"] == "Answer: yes"


def test_files_and_rollouts_can_be_picked(analysed):
    config, _ = analysed
    config["trainer"] |= {"files": ["iteration-0002"], "max_rollouts": 1}
    run = start(prepare(config))
    assert [record["analysis/rollouts"] for record in run.metrics] == [1.0]


def test_an_analysis_goes_on_where_it_stopped_over_the_run_that_it_began_with(analysed):
    config, files = analysed
    # An analysis is newer than what it is about, and has the name that it looks for.
    config |= {"experiment_name": "talks"}
    config["trainer"]["rollouts"] = "latest"
    whole = start(prepare(config))

    class Terminated:
        @plugrl.hookimpl
        def plugrl_step_end(self, step):
            if step == 1:
                os.kill(os.getpid(), signal.SIGTERM)

    config["experiment_name"] = "stopped"
    with pytest.raises(RunTerminated):
        tiny.train(config, Terminated())
    runs = Path(config["settings"]["runs_folder"])
    (folder,) = runs.glob("stopped/[0-9]*")
    newer = runs / "newer" / "20990101-000000-abcdef"
    shutil.copytree(files.jobs.parent, newer)
    RunFiles(newer).save(rollouts([episode("calm")], PROTOCOL), 1, is_test=False)
    found = resume(folder).metrics
    name = "analysis/prover_role_conformance/prover"
    assert [line[name] for line in found] == [line[name] for line in whole.metrics] == [0.5, 1.0]


@pytest.mark.integration
def test_rollouts_of_phases_have_the_protocols_of_their_phases(analysed, tmp_path):
    config, _ = analysed
    nip = {"type": "nip", "max_message_rounds": 3, "verifier_first": False}
    talk = text_agents.config("ei_pure_text", tmp_path, experiment_name="phases", trainer=None)
    talk["trainer"] = {
        "type": "sequence",
        "phases": [
            {"name": "a", "trainer": {"type": "ei_pure_text"}},
            {"name": "b", "trainer": {"type": "ei_pure_text"}, "rollout_worker": {"protocol": nip}},
        ],
    }
    talk["text_rl"] = {"num_iterations": 1, "test_scheme": "none"}
    start(prepare(talk))
    config["trainer"] |= {"rollouts": "phases", "questions": {"follow_up": True}}
    run = start(prepare(config))
    lines = (run.folder / "samples" / "analysis.jsonl").read_text("utf-8").splitlines()
    found = [json.loads(line) for line in lines]
    assert [each["file"] for each in found] == [
        *["phase-1/iteration-0001"] * 4, *["phase-2/iteration-0001"] * 4
    ]  # fmt: skip
    config["trainer"]["files"] = ["phase-2/iteration-0001"]
    assert len(start(prepare(config)).metrics) == 1


def test_a_model_that_answers_nothing_ends_the_run(analysed):
    config, files = analysed
    files.save(rollouts([episode("silence")], PROTOCOL), 0, is_test=False)
    with pytest.raises(RunError, match="model 'judge' answers no question: .*no answer today"):
        start(prepare(config))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "juge"}, r"trainer\.model.*no model 'juge'"),
        ({"rollouts": "nobody"}, r"trainer\.rollouts.*no run 'nobody'"),
        ({"rollouts": "conformance"}, r"trainer\.rollouts.*conformance.* has no saved rollouts"),
        ({"files": ["iteration-0009"]}, "no rollouts 'iteration-0009'; it has: iteration-0001, "),
        ({"questions": {"rolle": True}}, r"trainer\.questions.*'rolle' is not built in"),
        ({"max_rollouts": 0}, r"trainer\.max_rollouts .*must be at least 1"),
    ],
)
def test_what_is_not_there_is_named_early(analysed, changes, message):
    config, files = analysed
    bare = Path(config["settings"]["runs_folder"], "conformance", "20260101-000000-abcdef")
    shutil.copytree(files.jobs.parent, bare, ignore=shutil.ignore_patterns("rollouts"))
    config["trainer"] |= changes
    with pytest.raises(ConfigError, match=message):
        prepare(config)
