"""``plugrl eval``, ``sample`` and ``export``: what a run learned, used from outside."""

import json
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

import plugrl
from plugrl.core.errors import ConfigError
from plugrl.testing import tiny


@pytest.fixture
def trained(tmp_path):
    def make(name="self_hosted_grpo", **sections):
        return plugrl.train(tiny.config(name, tmp_path, sections)).folder

    return make


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of one run, for tests that leave it as it is."""
    return plugrl.train(tiny.config("self_hosted_grpo", tmp_path_factory.mktemp("saved"))).folder


@pytest.fixture(scope="module")
def unscored(tmp_path_factory):
    """The same of a run with its last checkpoint only, which no validation has scored."""
    sections = {"settings": {"checkpoint_every": 0}, "validate": {"validate_before_train": False}}
    folder = tmp_path_factory.mktemp("unscored")
    return plugrl.train(tiny.config("self_hosted_grpo", folder, sections)).folder


def read(path):
    return Path(path).read_text(encoding="utf-8").splitlines()


def files_of(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.mark.integration
def test_eval_repeats_the_last_validation_and_leaves_the_run_alone(call, folder):
    before = files_of(folder)
    code, out, _ = call("eval", folder, "validation", "--json", "--output", "answers.jsonl")
    metrics = json.loads(out)["metrics"]
    last = plugrl.load_run(folder).last_metrics
    assert code == 0
    assert metrics == {k: v for k, v in last.items() if k.startswith("validation/")}
    assert files_of(folder) == before
    records = [json.loads(line) for line in read("answers.jsonl")]
    rewards = [record["reward"] for record in records]
    assert sum(rewards) / len(rewards) == pytest.approx(metrics["validation/reward"])


@pytest.mark.integration
def test_eval_of_a_run_in_phases_uses_its_last_phase(call, trained):
    from plugrl.trainers.sequence import SequenceTrainer

    folder = trained("sequence", **SequenceTrainer.conformance)
    code, out, _ = call("eval", folder, "validation", "--json")
    last = plugrl.load_run(folder).last_metrics
    assert code == 0
    assert json.loads(out)["metrics"]["validation/reward"] == last["validation/reward"]
    # Attempts name the step of the checkpoint, which counts all phases, as the remark does.
    step = plugrl.load_run(folder).status["step"]
    code, _, err = call("eval", folder, "validation", "--output", "answers.jsonl")
    assert code == 0
    assert f"step-{step:08d}" in err
    assert {json.loads(line)["step"] for line in read("answers.jsonl")} == {step}


@pytest.mark.integration
def test_eval_with_other_problems_and_another_judge(call, folder, tmp_path):
    (tmp_path / "p.jsonl").write_text(json.dumps({"question": "ba", "solution": "b"}) + "\n")
    evaluation = {
        "data": {"prompt_key": "question", "answer_key": "solution"},
        "validate": {"data": {"data_files": ["p.jsonl"]}},
    }
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(evaluation))
    code, out, _ = call("eval", folder, "other.yaml", "--output", "a.jsonl")
    assert code == 0, out
    assert [json.loads(line)["prompt"] for line in read("a.jsonl")] == ["ba"]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nosuch",), "write validation for the files that the run validates on, or a YAML file"),
        (("validation", "--checkpoint", "99"), "no checkpoint '99'; it has steps"),
        (("validation", "--checkpoint", "best"), "has a score"),
        (("absent.yaml",), "no such file"),
        (("validation", "trainer.nosuch=1"), "nosuch"),
    ],
)
def test_eval_refuses_in_one_line(call, unscored, words, said):
    code, out, err = call("eval", unscored, *words)
    assert code == 2
    assert out == ""
    assert said in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.integration
def test_eval_of_a_run_without_held_out_problems_asks_for_a_file(call, trained):
    folder = trained(validate={"enabled": False, "data": {"data_files": []}})
    for evaluation in ("nosuch", "validation"):
        code, _, err = call("eval", folder, evaluation)
        assert code == 2
        assert f"{evaluation}: no such file" in err
        assert "; write a YAML file that sets validate.data.data_files" in err


@pytest.mark.integration
def test_eval_refuses_an_evaluation_that_changes_the_run(call, folder, tmp_path):
    (tmp_path / "e.yaml").write_text("models: {policy: {train: null}}\n")
    code, _, err = call("eval", folder, "e.yaml")
    assert code == 2
    assert "models belongs to the run" in err


@pytest.mark.integration
def test_an_exported_model_gives_what_the_run_gives(call, folder, tmp_path):
    assert call("export", folder, "ex")[0] == 0
    model, tokenizer = (
        kind.from_pretrained(tmp_path / "ex") for kind in (AutoModelForCausalLM, AutoTokenizer)
    )
    service = plugrl.load_run(folder).checkpoint()["trainer"]["models"]["policy"]["state"]
    state = model.state_dict()
    assert all(torch.equal(state[name], value) for name, value in service["weights"].items())
    asked = ["ab", "ba"]
    ours = json.loads(call("sample", folder, *asked, "--max-tokens", "5", "--json")[1])
    again = json.loads(call("sample", "ex", *asked, "--max-tokens", "5", "--json")[1])
    assert [one["tokens"] for one in ours] == [one["tokens"] for one in again]
    for prompt, one in zip(asked, ours, strict=True):
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        with torch.no_grad():
            expected = model.generate(ids, max_new_tokens=5, do_sample=False)
        assert expected[0, ids.shape[1] :].tolist() == one["tokens"]


@pytest.mark.integration
def test_an_exported_adapter_is_merged_or_alone(call, trained, tmp_path):
    from peft import PeftModel

    options = {"r": 2, "alpha": 64}
    models = tiny.config("self_hosted_grpo", tmp_path)["models"]
    models["policy"] |= {"adapter": options}
    models["policy"]["train"] = {"type": "local", "learning_rate": 0.1}
    folder = trained("self_hosted_cross_entropy", models=models)
    assert call("export", folder, "merged")[0] == 0
    assert call("export", folder, "alone", "--adapter")[0] == 0
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    fresh = plugrl.train(
        tiny.config("self_hosted_grpo", tmp_path, {"trainer": {"total_train_steps": 0}})
    ).folder
    call("export", fresh, "base")
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    ids = torch.tensor([[2, 3, 2, 3]])
    before = base(ids).logits
    joined = PeftModel.from_pretrained(base, tmp_path / "alone")
    assert not torch.allclose(before, merged(ids).logits, atol=1e-4)
    torch.testing.assert_close(joined(ids).logits, merged(ids).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.integration
def test_export_refuses_what_it_cannot_do(call, folder, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for words, said in (
        (("full",), "not empty"),
        (("a", "--adapter"), "has no adapter"),
        (("b", "--model", "nosuch"), "no model 'nosuch'"),
    ):
        code, _, err = call("export", folder, *words)
        assert code == 2
        assert said in err


@pytest.mark.integration
@pytest.mark.parametrize("there", [False, True])
def test_an_export_that_fails_leaves_nothing(call, folder, tmp_path, there):
    target = tmp_path / "to" / "model"
    if there:
        target.mkdir(parents=True)
    # Weights alone are larger than this; what is written before them is not.
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
    try:
        code, _, err = call("export", folder, target)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert code == 2, err
    assert f"cannot write {target}" in err
    assert list(tmp_path.glob("to/**/*")) == ([target] if there else [])
    assert call("export", folder, target)[0] == 0
    names = {path.name for path in target.iterdir()}
    assert {"config.json", "model.safetensors"} < names
    assert not [name for name in names if name.startswith(".")]


KILLED = """
import os, signal, sys
from plugrl.core.run.atomic_writes import atomic_export
with atomic_export(sys.argv[1]) as unfinished:
    (unfinished / "model.safetensors").touch()
    print(unfinished.name, flush=True)
    if sys.argv[2:]:
        sys.stdin.read()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.integration
@pytest.mark.parametrize("there", [False, True])
def test_the_next_export_removes_what_a_killed_one_left(call, folder, tmp_path, there):
    target = tmp_path / "to" / "model"
    target.parent.mkdir()
    if there:
        target.mkdir()
    parent = target if there else target.parent
    words = [sys.executable, "-c", KILLED, target]
    killed = subprocess.run(words, stdout=subprocess.PIPE, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert [path.name for path in parent.iterdir() if path.is_dir() and path != target] == [
        killed.stdout.decode().strip()
    ]
    assert call("export", folder, target)[0] == 0
    assert (target / "config.json").is_file()
    assert not list(tmp_path.glob("to/**/.*"))


@pytest.mark.integration
def test_an_export_that_goes_on_is_left_alone(call, folder, tmp_path):
    (tmp_path / "to").mkdir()
    words = [sys.executable, "-c", KILLED, tmp_path / "to" / "model", "waits"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        name = other.stdout.readline().decode().strip()
        assert call("export", folder, tmp_path / "to" / "model")[0] == 0
        assert (tmp_path / "to" / name / "model.safetensors").is_file()
        other.stdin.close()


@pytest.mark.integration
def test_a_model_folder_has_no_checkpoints(call, folder):
    call("export", folder, "model")
    for words in (("sample", "model", "ba"), ("eval", "model", "quickstart")):
        code, _, err = call(*words, "--checkpoint", "best")
        assert code == 2
        assert "model folder" in err


@pytest.mark.integration
def test_eval_refuses_an_output_before_it_evaluates(call, folder, monkeypatch):
    from plugrl.core.text.trajectory_trainer import TrajectoryTrainer

    evaluated = []
    monkeypatch.setattr(TrajectoryTrainer, "evaluate", lambda self: evaluated.append(1) or {})
    code, _, err = call("eval", folder, "validation", "--output", "absent/answers.jsonl")
    assert (code, evaluated) == (2, [])
    assert "cannot write absent/answers.jsonl" in err


@pytest.mark.integration
def test_sample_reads_a_file_and_repeats_itself(call, folder, tmp_path):
    (tmp_path / "prompts.txt").write_text("ab\n\nbb\n")
    words = ("sample", folder, "--file", "prompts.txt", "--samples", 3, "--temperature", 1)
    words = (*words, "--max-tokens", 4, "--json")
    first = json.loads(call(*words)[1])
    assert [(one["prompt"], one["sample"]) for one in first] == [
        (prompt, run) for prompt in ("ab", "bb") for run in range(3)
    ]
    assert json.loads(call(*words)[1]) == first
    assert json.loads(call(*words, "--seed", 1)[1]) != first


@pytest.fixture
def stopping(folder, tmp_path):
    """A run whose answers ended at the letter a, token 2."""
    run = tmp_path / "stopping"
    shutil.copytree(folder, run)
    tree = yaml.safe_load((run / "config.yaml").read_text())
    tree["rollout_worker"]["stop"] = "a"
    (run / "config.yaml").write_text(yaml.safe_dump(tree))
    return run


@pytest.mark.integration
def test_sample_ends_answers_where_the_run_did(call, folder, stopping):
    def tokens(run):
        words = ("ab", "--max-tokens", 6, "--temperature", 1, "--samples", 16, "--json")
        return [one["tokens"] for one in json.loads(call("sample", run, *words)[1])]

    whole = tokens(folder)
    ended = [answer[: answer.index(2) + 1] if 2 in answer else answer for answer in whole]
    assert tokens(stopping) == ended != whole


@pytest.mark.integration
def test_serve_ends_answers_where_the_run_did_unless_a_request_says_where(folder, stopping):
    import httpx

    from plugrl.core.loaded_run import open_checkpoint
    from plugrl.core.text.endpoint.serving import serving

    asked = {"model": "policy", "prompt": "ab", "max_tokens": 6, "n": 16, "seed": 3}
    said = []
    for run, more in ((folder, {}), (stopping, {}), (stopping, {"stop": "bb"})):
        with (
            open_checkpoint(str(run)) as saved,
            serving(saved, "127.0.0.1", 0, token="t") as served,
        ):
            answer = httpx.post(
                f"{served.base_url}/completions",
                json={**asked, **more},
                headers={"Authorization": "Bearer t"},
            ).json()
        said.append([choice["text"] for choice in answer["choices"]])
    whole, stopped, own = said
    assert stopped == [text.partition("a")[0] for text in whole] != whole
    assert own == [text.partition("bb")[0] for text in whole] != whole


@pytest.mark.integration
def test_export_says_what_no_model_folder_does(call, stopping):
    code, out, _ = call("export", stopping, "model")
    assert code == 0
    assert out.strip().endswith("ended at rollout_worker.stop too, which no model folder says")


@pytest.mark.integration
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "no prompt is given"),
        (("xyz",), "no character 'x'"),
        (("",), "a prompt has no tokens"),
        (("--file", "absent.txt"), "cannot read absent.txt"),
        (("ba", "--top-p", "0"), "top_p is 0"),
        (("ba", "--seed", str(2**63)), "--seed"),
    ],
)
def test_sample_refuses_in_one_line(call, folder, words, said):
    code, out, err = call("sample", folder, *words)
    assert code == 2
    assert out == ""
    assert said in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.integration
def test_what_is_no_run_and_no_model_is_named(call):
    for words in (
        ("eval", "nothing", "validation"),
        ("sample", "nothing", "1"),
        ("export", "x", "y"),
    ):
        code, _, err = call(*words)
        assert code == 2
        assert "no run" in err


@pytest.mark.integration
def test_a_run_that_ended_before_a_checkpoint_says_how_to_find_another(call, folder, tmp_path):
    gone = tmp_path / "run"
    shutil.copytree(folder, gone)
    shutil.rmtree(gone / "checkpoints")
    for words in (
        ("eval", gone, "validation"),
        ("sample", gone, "ba"),
        ("export", gone, "to"),
        ("serve", gone),
    ):
        code, _, err = call(*words)
        assert code == 2
        assert err.strip().endswith("was saved; name another run; plugrl runs list shows them")
    with pytest.raises(ConfigError, match="plugrl runs list"):
        plugrl.load_run(gone).checkpoint()


@pytest.mark.integration
def test_resume_says_how_a_run_gets_another_setting(call, folder):
    code, out, err = call("resume", folder, "seed=3")
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line == (
        f"error: resume takes a run and no 'seed=3': it goes on as it is configured; edit "
        f"{folder}/config.yaml before, or begin another run with plugrl train "
        f"{folder}/config.yaml seed=3"
    )


GROWN = """
from pathlib import Path

from plugrl.trainers.self_hosted_grpo import SelfHostedGrpoTrainer

GROWN = Path(__file__).with_name("grown")


class Counting(SelfHostedGrpoTrainer):
    def load_state_dict(self, state):
        self.hits = state["hits"] if GROWN.exists() else 0
        super().load_state_dict(state)
"""


SERVICE = """
from pathlib import Path

from plugrl.plugins.transformers.train_service import LocalTrainService

GROWN = Path(__file__).with_name("grown")


class Counting(LocalTrainService):
    def load_state_dict(self, state):
        self.hits = state["hits"] if GROWN.exists() else 0
        super().load_state_dict(state)
"""


@pytest.fixture(scope="module")
def counting_service(tmp_path_factory):
    """The same of a run whose train service is a file of users."""
    folder = tmp_path_factory.mktemp("counting_service")
    (folder / "counting.py").write_text(SERVICE)
    config = tiny.config("self_hosted_grpo", folder)
    named = {"module_path": str(folder / "counting.py"), "class_name": "Counting"}
    train = {f"custom_train_service_{key}": value for key, value in named.items()}
    config["models"]["policy"]["train"] = train
    config["trainer"]["total_train_steps"] = 1
    config["validate"]["validate_before_train"] = False
    return plugrl.train(config).folder, folder / "grown"


@pytest.fixture(scope="module")
def counting(tmp_path_factory):
    """The folder of a run whose trainer is a file of users, and what makes its state grow."""
    folder = tmp_path_factory.mktemp("counting")
    (folder / "counting.py").write_text(GROWN)
    config = tiny.config("self_hosted_grpo", folder)
    named = {"module_path": str(folder / "counting.py"), "class_name": "Counting"}
    config["trainer"] = {f"custom_trainer_{key}": value for key, value in named.items()}
    config["trainer"]["total_train_steps"] = 1
    config["validate"]["validate_before_train"] = False
    return plugrl.train(config).folder, folder / "grown"


@pytest.mark.integration
@pytest.mark.parametrize(
    "words", ["sample RUN ab", "eval RUN validation --json", "export RUN model"]
)
@pytest.mark.parametrize(
    "plugin", ["counting", pytest.param("counting_service", marks=pytest.mark.integration)]
)
def test_weights_alone_are_needed_when_the_state_of_a_plugin_has_grown(
    call, plugin, words, tmp_path, request
):
    folder, grown = request.getfixturevalue(plugin)
    command = words.replace("RUN", str(folder)).split()
    grown.unlink(missing_ok=True)
    expected = call(*command)
    shutil.rmtree(tmp_path / "model", ignore_errors=True)
    grown.touch()
    code, out, err = call(*command)
    assert (code, out) == expected[:2] == (0, out)
    (line,) = [line for line in err.splitlines() if line.startswith("warning")]
    what = "trainer" if plugin == "counting" else "train service"
    assert line.startswith(f"warning: {what} Counting does not take back its state of ")
    assert "load_state_dict raised KeyError: 'hits' (" in line
    assert line.endswith("; the weights are used without it")
    assert "counting.py:11);" in line


@pytest.mark.integration
def test_a_resume_says_whose_state_has_grown(call, counting):
    folder, grown = counting
    grown.touch()
    status, config = folder / "status.json", folder / "config.yaml"
    status.write_text(json.dumps({**json.loads(status.read_text()), "state": "failed"}))
    config.write_text(config.read_text().replace("total_train_steps: 1", "total_train_steps: 2"))
    code, _, err = call("resume", folder)
    assert code == 1, err
    assert "error: trainer Counting does not take back its state of step-00000001: " in err
    assert "counting.py:11); let it take what an earlier version saved" in err


@pytest.mark.integration
def test_a_state_that_no_class_of_plugrl_has_is_refused_with_its_place():
    from plugrl.core.run.loaded_state import StateMismatchError, restore_weights
    from plugrl.core.trainer import Trainer

    class Own(Trainer):
        def train(self):
            raise NotImplementedError

        def load_state_dict(self, state):
            self.hits = state["hits"]

    with pytest.raises(
        StateMismatchError, match=r"KeyError: 'hits' \(.*test_saved_commands.py:\d+\)"
    ):
        restore_weights(object.__new__(Own), {}, "trainer", "step-1", root=Trainer)
