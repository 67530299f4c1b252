"""What `validate` finds besides the schemas, and that a refused configuration starts nothing."""

import json
import os

import forking
import pytest
import yaml

from plugrl.cli import main
from plugrl.core.config.sources.files import folder_fault
from plugrl.core.errors import ConfigError, PluginError
from plugrl.core.experiment import prepare
from plugrl.scenarios.evaluators.exact_match import ExactMatchEvaluator
from plugrl.testing import tiny


@pytest.fixture
def faults(tmp_path):
    """The faults of the tiny configuration with some sections changed."""

    def find(**sections):
        try:
            prepare(tiny.config("self_hosted_grpo", tmp_path, sections))
        except ConfigError as error:
            return list(error.faults)
        return []

    return find


def test_the_tiny_configuration_has_none(faults):
    assert faults() == []


def test_no_data_and_no_scenario(faults):
    found = faults(data={"data_files": None}, validate={"data": None})
    assert len(found) == 2
    assert "data.data_files" in found[0]
    assert "set data.data_files, data.name or a scenario" in found[0]
    assert "set validate.data.data_files, validate.data.name or a scenario, or set " in found[1]
    assert found[1].endswith("or set validate.enabled=false")


def test_validation_that_is_off_needs_no_data(faults):
    assert faults(validate={"data": None, "enabled": False}) == []


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("d.jsonl", "", "holds no problems"),
        ("d.csv", "prompt,answer\n", "holds no problems"),
        ("d.jsonl", "{", "d.jsonl:1"),
        ("d.parquet", "no parquet", "d.parquet"),
        ("d.txt", "a", "unknown type"),
        ("d.jsonl", '{"question": "a", "answer": "b"}', "no column 'prompt'; it has: question"),
        ("d.jsonl", '{"prompt": "a", "truth": "b"}', "no column 'answer'; it has: prompt, truth"),
    ],
)
@pytest.mark.parametrize("section", ["data", "validate.data"])
def test_bad_files(faults, tmp_path, name, text, says, section):
    (tmp_path / name).write_text(text)
    files = {"data_files": [str(tmp_path / name)]}
    found = faults(**({"data": files} if section == "data" else {"validate": {"data": files}}))
    assert len(found) == 1
    assert says in found[0]


def test_an_unreadable_file(faults, tmp_path):
    (tmp_path / "d.jsonl").mkdir()
    found = faults(data={"data_files": [str(tmp_path / "d.jsonl")]})
    assert len(found) == 1
    assert "data.data_files[0]" in found[0]


def test_wrong_keys_are_named_by_their_settings(faults):
    (found,) = faults(data={"prompt_key": "question"})
    assert found.startswith("data.prompt_key")
    assert "no column 'question'; it has: prompt, answer" in found
    (found,) = faults(data={"answer_key": "truth"})
    assert found.startswith("data.answer_key")
    judge = {"type": "exact_match", "answer_key": "truth"}
    (found,) = faults(rollout_worker={"evaluator": judge})
    assert found.startswith("rollout_worker.evaluator.answer_key")


def test_the_evaluator_follows_the_key_of_the_data(tmp_path):
    tree = tiny.config("self_hosted_grpo", tmp_path)
    file = tmp_path / "problems.jsonl"
    problems = [{"prompt": a + b, "truth": a} for a in "ab" for b in "ab"]
    file.write_text("".join(json.dumps(p) + "\n" for p in problems))
    tree["data"]["answer_key"] = "truth"
    from plugrl.core.experiment import start

    run = start(prepare(tree))
    assert run.last_metrics["validation/invalid"] == 0
    assert "validation/exact_match" in run.last_metrics


def test_an_evaluator_that_is_missing(faults):
    (found,) = faults(rollout_worker={"evaluator": None})
    assert found.startswith("rollout_worker.evaluator")


def test_splits_of_a_scenario(faults):
    scenario = {"type": "arithmetic", "digits": 1, "validation": 4, "development": 0,
                "demonstrations": 4}  # fmt: skip
    data = {"data_files": None, "split": "trian"}
    validate = {"data": {"data_files": None, "splits": ["development"]}}
    found = faults(scenario=scenario, data=data, validate=validate)
    assert len(found) == 2
    assert found[0].startswith("data.split")
    assert "no split 'trian'; it has: " in found[0]
    assert found[1].startswith("validate.data.splits[0]")
    assert "holds no problems" in found[1]
    (found,) = faults(scenario={**scenario, "demonstrations": 999}, data=data, validate=validate)
    assert found.startswith("scenario")


def test_no_trained_model_and_a_device_that_is_not_there(faults):
    models = {"policy": {"train": None}}
    found = faults(models=models, settings={"device": "cuda:77"})
    assert [line.split(" ")[0].rstrip(":") for line in found] == ["settings.device", "models"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "no such folder"),
        ({}, "not a usable model folder"),
        ({"config.json": "{"}, "not a usable model folder"),
        ({"config.json": '{"model_type": "qwen3"}'}, "holds no weights"),
        (
            {"config.json": '{"model_type": "qwen3"}', "model.safetensors": "torn"},
            "not a usable model folder",
        ),
    ],
)
def test_an_unusable_model_folder(faults, tmp_path, content, says):
    folder = tmp_path / "weights"
    if content is not None:
        folder.mkdir()
        for name, text in content.items():
            (folder / name).write_text(text)
    source = {"path": str(folder), "config": None, "tokenizer": None}
    (found,) = faults(models={"policy": {"source": source}})
    assert found.startswith("models.policy.source.path")
    assert says in found


def test_faults_of_phases_are_named_within_them(tmp_path):
    tree = tiny.config("sequence", tmp_path, {"trainer": {"total_train_steps": None, "phases": [
        {"name": "a", "data": {"prompt_key": "x"}, "trainer": {"type": "self_hosted_grpo"}},
        {"name": "b", "data": {"answer_key": "y"}, "trainer": {"type": "self_hosted_grpo"}},
    ]}})  # fmt: skip
    file = tmp_path / "exp.yaml"
    file.write_text(yaml.safe_dump(tree))
    with pytest.raises(ConfigError) as caught:
        prepare(str(file))
    first, second = caught.value.faults
    lines = file.read_text().splitlines()
    for fault, key, text in ((first, "phases[0].data.prompt_key", "prompt_key: x"),
                             (second, "phases[1].data.answer_key", "answer_key: y")):  # fmt: skip
        number = next(n for n, line in enumerate(lines, 1) if text in line)
        assert f"trainer.{key} (" in fault
        assert f"exp.yaml:{number})" in fault


@pytest.mark.integration
@pytest.mark.parametrize("command", ["validate", "train"])
def test_a_refused_configuration_leaves_no_run(tmp_path, command):
    tree = tiny.config("self_hosted_grpo", tmp_path, {"data": {"data_files": None}})
    (tmp_path / "exp.yaml").write_text(yaml.safe_dump(tree))
    result = forking.run(["-m", "plugrl", command, "exp.yaml"], cwd=tmp_path, timeout=240)
    assert result.returncode == 2
    assert "error: data.data_files (exp.yaml:" in result.stderr
    assert "resume" not in result.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["a.b", "x[0]"])
def test_a_model_whose_name_no_path_can_hold_is_refused(tmp_path, name):
    tree = tiny.config("self_hosted_grpo", tmp_path)
    tree["models"] = {name: tree["models"]["policy"]}
    tree["rollout_worker"]["model"] = name
    with pytest.raises(ConfigError, match="the name of a model has no dot and no bracket"):
        prepare(tree)


def test_an_empty_mapping_of_models_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"models \(Python\): names no model"):
        prepare(tiny.config("self_hosted_grpo", tmp_path) | {"models": {}})


def test_layers_that_the_model_does_not_have(faults):
    for wanted, says in ((["nosuch"], "layers are: "), (["q_proj", "k_prok"], "k_proj")):
        adapter = {"target_modules": wanted}
        (found,) = faults(models={"policy": {"adapter": adapter}})
        assert found.startswith(f"models.policy.adapter.target_modules[{len(wanted) - 1}]")
        assert f"the model has no layer {wanted[-1]!r}" in found
        assert says in found
    for wanted in (["q_proj"], ["self_attn.q_proj", "mlp.up_proj"]):
        assert faults(models={"policy": {"adapter": {"target_modules": wanted}}}) == []


def test_keys_of_groups_that_nobody_gives(faults):
    (found,) = faults(trajectory_pool={"key_list": ["group_id", "anwser"]})
    assert found.startswith("trajectory_pool.key_list[1]")
    assert "'anwser' is no field of a trajectory" in found
    assert "problems.jsonl has no such column; it has: prompt, answer" in found
    assert faults(trajectory_pool={"key_list": ["answer"]}) == []
    assert faults(trajectory_pool={"key_list": ["group_id", "model"]}) == []


@pytest.mark.parametrize(("length", "refused"), [(15, False), (16, True), (400, True)])
def test_answers_that_leave_no_room_for_a_prompt(faults, length, refused):
    found = faults(rollout_worker={"max_response_length": length})
    assert [line.split(" ")[0] for line in found] == (
        ["rollout_worker.max_response_length"] if refused else []
    )
    if refused:
        assert "the context of model 'policy', which is 16 tokens" in found[0]


def test_a_limit_that_nobody_chose_is_not_refused(faults):
    assert faults(rollout_worker={"max_response_length": None}) == []


def test_answers_that_are_cut_short_are_warned_of(faults, caplog):
    assert faults(rollout_worker={"max_prompt_length": 13}) == []
    assert caplog.messages == []
    assert faults(rollout_worker={"max_prompt_length": 14}) == []
    assert faults(data={"filter_prompts": True}) == []
    assert len(caplog.messages) == 2
    end = "answers to prompts of more than 13 tokens are cut short"
    assert all(line.endswith(end) for line in caplog.messages)


def write_judge(folder, code):
    """A configuration whose evaluator is the class ``Judge`` of a file with this code."""
    (folder / "judge.py").write_text(code)
    tree = tiny.config("self_hosted_grpo", folder)
    tree["rollout_worker"]["evaluator"] = {
        "custom_evaluator_module_path": "judge.py",
        "custom_evaluator_class_name": "Judge",
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(tree))


def test_an_error_without_a_line_of_its_own_is_said_of_the_class(tmp_path, monkeypatch, capsys):
    lines = ["import operator", "from plugrl import Evaluator", "class Judge(Evaluator):"]
    lines += ["    preflight = classmethod(operator.add)", "    def evaluate(self, *_): ..."]
    write_judge(tmp_path, "\n".join(lines) + "\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["validate", "run.yaml"])
    assert " at judge.py:3" in capsys.readouterr().err


def test_an_error_inside_a_preflight_is_one_line_with_its_place(tmp_path, monkeypatch, capsys):
    write_judge(
        tmp_path,
        "from plugrl import Evaluator\n"
        "class Judge(Evaluator):\n"
        "    @classmethod\n"
        "    def preflight(cls, check):\n"
        "        return [1 / 0]\n"
        "    def evaluate(self, *_):\n"
        "        return 0.0\n",
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        main(["validate", "run.yaml"])
    said = capsys.readouterr()
    assert (left.value.code, said.out) == (3, "")
    assert said.err == (
        "error: rollout_worker.evaluator: Judge.preflight raised ZeroDivisionError: division by "
        "zero at judge.py:5; re-run with plugrl --debug for its traceback\n"
    )
    with pytest.raises((SystemExit, PluginError)):
        main(["--debug", "validate", "run.yaml"])
    assert "Traceback" in capsys.readouterr().err


def test_a_package_that_a_preflight_lacks_is_named_with_its_extra(tmp_path, monkeypatch, capsys):
    @classmethod
    def lacking(cls, check):
        raise ModuleNotFoundError("no", name="transformers.models")

    write_judge(tmp_path, "Judge = None\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ExactMatchEvaluator, "preflight", lacking, raising=False)
    with pytest.raises(SystemExit) as left:
        main(["validate", "run.yaml", "rollout_worker.evaluator=exact_match"])
    assert left.value.code == 3
    said = capsys.readouterr().err
    assert said.startswith("error: rollout_worker.evaluator: evaluator 'exact_match' of plugrl ")
    assert (
        ' needs transformers.models, which is not installed; run: pip install "plugrl[text]"'
        in said
    )


def test_what_a_preflight_says_hides_credentials(tmp_path, monkeypatch, capsys):
    """A component words its messages from values of which nobody said that they may be shown."""
    write_judge(
        tmp_path,
        "from plugrl import Evaluator\n"
        "class Judge(Evaluator):\n"
        "    @classmethod\n"
        "    def preflight(cls, check):\n"
        "        yield check.path, 'cannot reach https://me:horse-battery@example.com; start it'\n"
        "    def evaluate(self, *_):\n"
        "        return 0.0\n",
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["validate", "run.yaml"])
    said = capsys.readouterr().err
    assert "cannot reach https://" in said
    assert "horse-battery" not in said


def test_sections_of_a_trainer_that_cannot_be_imported_are_no_faults(tmp_path):
    (tmp_path / "mine.py").write_text("import nowhere_there\n")
    custom = {"custom_trainer_module_path": str(tmp_path / "mine.py")}
    tree = {
        "trainer": {**custom, "custom_trainer_class_name": "Mine"},
        # Only trainers of small networks read it.
        "validate": {"episodes": 2},
        "data": {"batch_sise": 2},
    }
    with pytest.raises(ConfigError) as caught:
        prepare(tree)
    broken, slip = caught.value.faults
    assert "No module named 'nowhere_there' at " in broken
    # What resembles a key is still told.
    assert "did you mean batch_size" in slip
    del tree["data"]
    with pytest.raises(PluginError, match="nowhere_there"):
        prepare(tree)


@pytest.mark.parametrize(
    ("folder", "says"),
    [
        ("/dev/null", "/dev/null is not a folder; name another folder"),
        ("/dev/null/below", "/dev/null is not a folder"),
        ("/proc/runs", "/proc is not writable"),
        ("/sys", "/sys is not writable"),
        ("a\0b", "has a null character, which no path has"),
        ("x" * 300, "is longer than file systems allow"),
        ("missing/" + "x" * 300, "is longer than file systems allow"),
        ("a/" * 2000, "is longer than file systems allow"),
        ("taken/runs", "taken is not a folder"),
        ("nowhere/runs", "nowhere: No such file or directory"),
    ],
    ids=lambda value: value[:16],
)
@pytest.mark.parametrize("key", ["runs_folder", "checkpoint_path"])
def test_folders_in_which_no_run_can_be_made(faults, tmp_path, monkeypatch, key, folder, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").touch()
    (tmp_path / "nowhere").symlink_to("nothing")
    (found,) = faults(settings={key: folder})
    assert found.startswith(f"settings.{key} (Python): cannot make the ")
    assert says in found
    assert len(found) < 700


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, which root alone may")
def test_a_folder_of_another_user_is_told(tmp_path):
    os.seteuid(65534)
    try:
        found = folder_fault(tmp_path / "new")
    finally:
        os.seteuid(0)
    assert found.endswith(" is not writable; change its permissions or name another folder")


def test_folders_that_can_be_made_are_no_faults_and_are_not_made(faults, tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    for name in ("there", "link", "a/b/c", "link/x"):
        assert faults(settings={"runs_folder": str(tmp_path / name)}) == []
    assert faults(settings={"checkpoint_path": "~/checkpoints"}) == []
    assert not (tmp_path / "a").exists()
    assert list((tmp_path / "there").iterdir()) == []


def test_a_variable_that_cannot_be_set_is_told(faults):
    (found,) = faults(environment={"variables": {"A": "x", "B": "y\0z"}})
    assert found == (
        "environment (Python): variables.B has a null character, which no variable can hold; "
        "leave it out"
    )
