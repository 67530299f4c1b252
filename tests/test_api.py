"""The Python forms: the configurations that they make, and what their data may be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import plugrl
from plugrl.api import data_section
from plugrl.core.errors import ConfigError, UsageError

TINY = {"config": {"model_type": "qwen3"}, "tokenizer": {"characters": "0123"}}


def test_a_form_makes_the_configuration_that_a_file_would_hold() -> None:
    form = plugrl.PPO(
        "CartPole-v1", num_envs=8, hidden=[32], learning_rate=1e-3, total_steps=5000, seed=3
    )
    assert form.config == {
        "experiment_name": "ppo",
        "seed": 3,
        "scenario": {"type": "gymnasium", "id": "CartPole-v1", "num_envs": 8},
        "agents": {"_default": {"body": {"type": "mlp", "hidden": [32], "activation": "tanh"}}},
        "rl": {"lr": 1e-3, "num_epochs": 10, "num_iterations": 3},
        "validate": {"every": 1},
        "trainer": {"type": "vanilla_ppo"},
    }


@pytest.mark.parametrize(
    ("form", "trainer", "environment"),
    [
        (plugrl.PPO, "vanilla_ppo", "CartPole-v1"),
        (plugrl.DQN, "dqn", "CartPole-v1"),
        (plugrl.SAC, "sac", "Pendulum-v1"),
        (plugrl.TD3, "td3", "Pendulum-v1"),
    ],
)
def test_the_forms_of_small_networks_are_valid_and_as_long_as_asked(
    form: Any, trainer: str, environment: str
) -> None:
    from plugrl.core.experiment import prepare

    made = form(environment, total_steps=12_345)
    tree = prepare(made.config).validated.tree
    assert tree["trainer"]["type"] == trainer
    steps = tree["rl"]["num_iterations"] * tree["rl"]["frames_per_batch"]
    assert 12_345 <= steps < 12_345 + tree["rl"]["frames_per_batch"]
    assert 1 <= tree["rl"]["num_iterations"] // tree["validate"]["every"] <= 20
    assert repr(made) == f"{form.__name__}(environment={environment!r})"


@pytest.mark.parametrize(
    ("form", "trainer", "row"),
    [
        (plugrl.SFT, "self_hosted_cross_entropy", {"prompt": "1", "completion": "2"}),
        (plugrl.DPO, "self_hosted_dpo", {"prompt": "1", "chosen": "2", "rejected": "3"}),
        (plugrl.GRPO, "self_hosted_grpo", {"prompt": "1"}),
    ],
)
def test_the_forms_of_language_models_are_valid(
    form: Any, trainer: str, row: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from plugrl.core.experiment import prepare

    monkeypatch.chdir(tmp_path)
    given = {"reward": "exact_match"} if form is plugrl.GRPO else {}
    made = form(TINY, [row] * 4, batch_size=2, learning_rate=1e-3, steps=7, **given)
    file = made.save("run.yaml")
    validated = prepare(str(file), preflight=False).validated
    assert validated.tree["trainer"]["type"] == trainer
    assert validated.tree["trainer"]["total_train_steps"] == 7
    assert validated.tree["models"]["policy"]["train"]["learning_rate"] == 1e-3
    rows = Path(made.config["data"]["data_files"][0])
    assert [json.loads(line) for line in rows.read_text("utf-8").splitlines()] == [row] * 4
    if form is plugrl.DPO:
        assert made.config["models"]["reference"]["source"] == TINY


def test_further_arguments_are_sections_and_take_precedence() -> None:
    form = plugrl.GRPO(
        "some/model",
        "owner/name",
        "math",
        samples=4,
        data_is_not_a_section=None,
        models={"policy": {"train": {"weight_decay": 0.0}, "adapter": {"type": "lora"}}},
        rollout_worker={"max_response_length": 99},
        trainer={"algorithm": {"minibatches": 2}},
        experiment_name="mine",
    )
    config = form.config
    assert config["experiment_name"] == "mine"
    assert config["data"] == {"name": "owner/name", "batch_size": 16, "rollout_repeat_n": 4}
    assert config["models"]["policy"] == {
        "source": {"path": "some/model"},
        "train": {"type": "local", "weight_decay": 0.0},
        "adapter": {"type": "lora"},
    }
    assert config["rollout_worker"]["max_response_length"] == 99
    assert config["trainer"]["algorithm"] == {"minibatches": 2}
    assert config["trainer"]["type"] == "self_hosted_grpo"
    with pytest.raises(ConfigError, match="data_is_not_a_section"):
        form.train()


def test_config_is_a_copy() -> None:
    form = plugrl.DQN("CartPole-v1")
    form.config["rl"]["num_iterations"] = -1
    assert form.config["rl"]["num_iterations"] == 100
    reward = {"type": "regex", "pattern": "1"}
    judged = plugrl.GRPO(TINY, "a.jsonl", reward)
    judged.config["rollout_worker"]["evaluator"]["pattern"] = "2"
    assert judged.config["rollout_worker"]["evaluator"] == {"type": "regex", "pattern": "1"}
    assert reward["pattern"] == "1"


@pytest.mark.parametrize(
    "form",
    [
        plugrl.GRPO(TINY, "a.jsonl", "math"),
        plugrl.GRPO(TINY, "a.jsonl", {"type": "regex", "pattern": "1"}),
        plugrl.GRPO(TINY, "a.jsonl", "math", rollout_worker={"evaluator": {"type": "regex"}}),
        plugrl.SFT(TINY, "a.jsonl"),
        plugrl.DPO(TINY, "a.jsonl"),
        plugrl.PPO("CartPole-v1"),
        plugrl.DQN("CartPole-v1"),
        plugrl.SAC("Pendulum-v1"),
        plugrl.TD3("Pendulum-v1"),
    ],
    ids=repr,
)
def test_what_is_saved_is_the_whole_configuration(form: Any, tmp_path: Path) -> None:
    saved = yaml.safe_load(form.save(tmp_path / "run.yaml").read_text("utf-8"))
    assert saved == form.config


@pytest.mark.parametrize("reward", ["math", {"type": "regex", "pattern": "1"}])
def test_a_reward_by_name_is_in_the_configuration_and_functions_are_not(reward: Any) -> None:
    other = {"rollout_worker": {"evaluator": {"type": "math", "digits": 3}}}
    for sections in ({}, other):
        named = plugrl.GRPO(TINY, "a.jsonl", reward, **sections)
        assert named.config["rollout_worker"]["evaluator"] == reward
    function = plugrl.GRPO(TINY, "a.jsonl", lambda completions: [0.0 for _ in completions])
    assert "evaluator" not in function.config["rollout_worker"]


class _DataSet:
    """What a ``datasets.Dataset`` has."""

    def to_list(self) -> list[dict[str, str]]:
        return [{"prompt": "a"}]


def test_data_may_be_files_a_name_rows_or_a_section(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("owner/folder").mkdir(parents=True)
    files = ["train.jsonl", "data/*.jsonl", "hf://datasets/a/b/train.parquet", "owner/folder"]
    for name in files:
        assert data_section(name) == ({"data_files": [name]}, None)
    assert data_section(Path("x")) == ({"data_files": ["x"]}, None)
    assert data_section(["a.csv", Path("b.csv")]) == ({"data_files": ["a.csv", "b.csv"]}, None)
    assert data_section("openai/gsm8k") == ({"name": "openai/gsm8k"}, None)
    assert data_section({"name": "x/y", "subset": "main"})[0] == {"name": "x/y", "subset": "main"}
    assert data_section(None) == ({}, None)
    section, rows = data_section(_DataSet(), "elsewhere")
    assert rows == [{"prompt": "a"}]
    (file,) = section["data_files"]
    assert file.startswith("elsewhere/.data/")
    assert data_section([{"prompt": "a"}], "elsewhere")[0] == section
    assert data_section([{"prompt": "b"}], "elsewhere")[0] != section


@pytest.mark.parametrize("data", [3, [], [1, 2], [{"prompt": "a"}, "b.jsonl"], object()])
def test_other_data_is_refused_with_what_to_write(data: Any) -> None:
    with pytest.raises(ConfigError, match=r"data must be files.*write data='train\.jsonl'"):
        data_section(data)


def test_rows_that_no_file_can_hold_are_refused() -> None:
    with pytest.raises(ConfigError, match="rows of data must be text, numbers"):
        data_section([{"prompt": object()}])


@pytest.mark.parametrize(
    ("form", "given", "remedy"),
    [
        (
            plugrl.SFT,
            object(),
            r"model is of type object; give a folder that save_pret",
        ),
        (plugrl.GRPO, None, r"model is of type NoneType; give a folder"),
        (plugrl.PPO, object(), r"environment is of type object; .*give \"file\.py:Mine-v0\""),
        (plugrl.SAC, int, r"environment is of type type; register it in a file"),
    ],
)
def test_an_object_that_no_file_can_name_is_refused_with_what_to_give(
    form: Any, given: Any, remedy: str
) -> None:
    with pytest.raises(ConfigError, match=remedy):
        form(given)


def test_an_environment_of_a_file_is_registered_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from plugrl.core.experiment import prepare

    monkeypatch.chdir(tmp_path)
    entry = '"gymnasium.envs.classic_control:CartPoleEnv"'
    text = f'import gymnasium\ngymnasium.register("Mine-v0", entry_point={entry})\n'
    Path("own_env.py").write_text(text, "utf-8")
    tree = prepare(plugrl.PPO("own_env.py:Mine-v0").config).validated.tree
    assert tree["scenario"]["id"] == "own_env.py:Mine-v0"


@pytest.mark.parametrize("steps", [0, -1, 1.5, True, "100"])
def test_a_wrong_length_says_so(steps: Any) -> None:
    with pytest.raises(UsageError, match="total_steps must be a whole number above 0"):
        plugrl.PPO("CartPole-v1", total_steps=steps)


def test_a_file_holds_no_function(tmp_path: Path) -> None:
    def reward(prompts: list[str], completions: list[str]) -> list[float]:
        return [0.0 for _ in completions]

    with pytest.raises(UsageError, match=r"give reward=.*custom_evaluator_class_name"):
        plugrl.GRPO(TINY, "a.jsonl", reward).save(tmp_path / "run.yaml")
    named = plugrl.GRPO(TINY, "a.jsonl", {"type": "math", "boxed": "require"})
    written = yaml.safe_load(named.save(tmp_path / "run.yaml").read_text("utf-8"))
    assert written["rollout_worker"]["evaluator"] == {"type": "math", "boxed": "require"}
    with pytest.raises(UsageError, match="cannot write"):
        named.save(tmp_path / "run.yaml" / "below")


def test_held_out_problems_are_files_splits_or_a_section() -> None:
    def validate(given: Any) -> Any:
        return plugrl.SFT(TINY, "a.jsonl", validation=given).config["validate"]

    assert validate(None) == {"enabled": "auto"}
    assert validate("b.jsonl") == {"data": {"data_files": ["b.jsonl"], "splits": []}}
    assert validate(["test", "x/c.csv"]) == {
        "data": {"data_files": ["x/c.csv"], "splits": ["test"]}
    }
    assert validate({"every": 5}) == {"every": 5}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"num_envs": 0}, "scenario.num_envs (Python): must be at least 1, not 0"),
        ({"hidden": 64}, "agents._default.body.hidden (Python): must be a list, not 64"),
        ({"hidden": "64"}, "agents._default.body.hidden (Python): must be a list, not '64'"),
        ({"rl": "lr"}, "rl (Python): must be a mapping, not 'lr'"),
        ({"rl": [1]}, "rl (Python): must be a mapping, not a list"),
        ({"rl": {"frames_per_batch": 0}}, "rl.frames_per_batch (Python): must be at least 1"),
        ({"rl": {"frames_per_batch": "all"}}, "must be a whole number, not 'all'"),
        ({"rl": {"frames_per_batch": None}}, "must be a whole number, not null"),
        ({"rl": {"frames_per_batch": float("inf")}}, "rl.frames_per_batch (Python): must be"),
        ({"validate": 3}, "validate (Python): must be a mapping, not 3"),
        ({"validate": "every"}, "validate (Python): must be a mapping, not 'every'"),
        ({"scenario": None}, "scenario"),
        ({"experiment_name": "\udc80"}, "experiment_name (Python): '\\udc80' is no Unicode"),
    ],
)
@pytest.mark.parametrize("form", [plugrl.PPO, plugrl.DQN])
def test_a_wrong_value_of_a_form_is_refused_as_that_of_a_file(
    form: Any, arguments: dict[str, Any], said: str
) -> None:
    """The form itself does not fail, nor does it put another value in the place of a wrong one."""
    from plugrl.core.experiment import prepare

    made = form("CartPole-v1", **arguments)
    assert repr(made).startswith(form.__name__)
    with pytest.raises(ConfigError) as caught:
        prepare(made.config)
    assert said in str(caught.value)


def test_a_section_that_is_null_is_that_of_the_trainer() -> None:
    from plugrl.core.experiment import prepare

    made = plugrl.PPO("CartPole-v1", rl=None, validate=None, total_steps=4096)
    assert prepare(made.config).validated.tree["rl"]["num_iterations"] == 2


@pytest.mark.parametrize("form", [plugrl.GRPO, plugrl.SFT, plugrl.DPO])
@pytest.mark.parametrize(
    "sections",
    [
        {"models": None},
        {"models": [1]},
        {"models": {"policy": None}},
        {"models": {"policy": {"source": {"path": None, "config": None}}}},
        {"models": {"policy": {"source": {"path": None, "config": "qwen3"}}}},
    ],
)
def test_a_form_whose_models_are_wrong_is_refused_when_it_is_checked(
    form: Any, sections: dict[str, Any], tmp_path: Path
) -> None:
    from plugrl.core.experiment import prepare

    file = tmp_path / "a.jsonl"
    file.write_text('{"prompt": "1", "answer": "2", "chosen": "2", "rejected": "3"}\n', "utf-8")
    made = form(TINY, file, **sections)
    assert repr(made).startswith(form.__name__)
    with pytest.raises(ConfigError, match="models"):
        prepare(made.config)


class _Raises:
    def to_list(self) -> list[dict[str, str]]:
        raise OSError("the disk is gone")


class _Frame:
    """What a DataFrame gives when it is looped over: the names of its columns."""

    def __iter__(self) -> Any:
        return iter(["prompt", "answer"])

    def __repr__(self) -> str:
        return "   prompt answer\n0  a      b"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (_Raises(), "of type _Raises, cannot be read: OSError: the disk is gone; give a list of"),
        (_Raises, "the rows of data, of type type, cannot be read: TypeError"),
        (_Frame(), "data must be files, a data set of the hub, rows as mappings or a section, not"),
        ([{"prompt": "\udc80"}], "rows of data must be text, numbers, lists and mappings"),
    ],
)
def test_data_that_cannot_be_read_is_refused_in_one_line(data: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plugrl.SFT(TINY, data)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("validation", [5, True, 0.1, [None], [], [{"prompt": "a"}]])
def test_held_out_problems_of_another_form_are_refused(validation: Any) -> None:
    with pytest.raises(ConfigError, match=r"validation must be .* write validation='held_out"):
        plugrl.SFT(TINY, "a.jsonl", validation=validation)


@pytest.mark.parametrize("name", ["a" * 5000, "~nobody-of-this-name/a.jsonl", "a\0b.jsonl"])
def test_a_path_that_cannot_be_looked_at_is_one_that_is_not_there(name: str) -> None:
    """Too long, of a user whom the machine does not know, or with a null character."""
    from plugrl.core.experiment import prepare

    reward = {"reward": "exact_match"}
    for form in (plugrl.GRPO(TINY, name, **reward), plugrl.GRPO(name, "a.jsonl", **reward)):
        with pytest.raises(ConfigError):
            prepare(form.config)
    with pytest.raises(ConfigError):
        plugrl.SFT(TINY, "a.jsonl", validation=name).train()
    with pytest.raises(UsageError, match="no run"):
        plugrl.load_run(name)


def test_a_form_is_saved_as_values_of_a_file_or_not_at_all(tmp_path: Path) -> None:
    import numpy

    file = tmp_path / "run.yaml"
    made = plugrl.PPO("CartPole-v1", learning_rate=numpy.float32(0.5), seed=numpy.int64(3))
    written = yaml.safe_load(made.save(file).read_text("utf-8"))
    assert (written["rl"]["lr"], written["seed"]) == (0.5, 3)
    loop: dict[str, Any] = {}
    loop["rl"] = loop
    for wrong in (object(), lambda: 1, "\udc80"):
        with pytest.raises(ConfigError, match=r"^seed \(Python\): "):
            plugrl.PPO("CartPole-v1", seed=wrong).save(tmp_path / "other.yaml")
    with pytest.raises(ConfigError, match="a section holds itself"):
        plugrl.PPO("CartPole-v1", rl=loop)
    for path in (5, None):
        with pytest.raises(UsageError, match="path must be text or a Path"):
            made.save(path)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="cannot write"):
        made.save("a\0b")
    assert [each.name for each in tmp_path.iterdir()] == ["run.yaml"]


def test_rows_that_cannot_be_written_are_a_wrong_call() -> None:
    """A folder of runs in which nobody can make files, not even the superuser."""
    made = plugrl.SFT(TINY, [{"prompt": "a"}], settings={"runs_folder": "/proc/runs"})
    with pytest.raises(UsageError, match=r"cannot write /proc/runs/\.data/"):
        made.train()
