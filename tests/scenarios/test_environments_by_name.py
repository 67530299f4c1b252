"""What is found out about environments of several agents before a run begins."""

import importlib.util
from pathlib import Path

import pytest

from plugrl.core.errors import ConfigError
from plugrl.core.experiment import prepare
from plugrl.scenarios.import_by_name import find

CARTPOLES = "plugrl.scenarios.pettingzoo.two_cartpoles:TwoCartPoles"
SCRIPTS = str(Path(__file__).with_name("scripted_agents.py"))
FACTORY = """
from plugrl.scenarios.pettingzoo.two_cartpoles import TwoCartPoles

def short(max_steps=7):
    return TwoCartPoles(max_steps=max_steps)
"""


def faults(scenario):
    with pytest.raises(ConfigError) as refused:
        prepare({"trainer": "vanilla_ppo", "scenario": scenario})
    return str(refused.value).replace(" (Python)", "")


@pytest.mark.parametrize(
    ("scenario", "message"),
    [
        ({"type": "pettingzoo"}, "scenario.environment: is missing; name a module such as mpe2"),
        (
            {"type": "pettingzoo", "environment": "mpe2.simple_spred_v3"},
            "scenario.environment: mpe2 has no module 'simple_spred_v3'; did you mean",
        ),
        (
            {"type": "pettingzoo", "environment": CARTPOLES, "env_kwargs": {"steps": 3}},
            "scenario.env_kwargs: plugrl.scenarios.pettingzoo.two_cartpoles:TwoCartPoles cannot",
        ),
        (
            {"type": "pettingzoo", "environment": f"{SCRIPTS}:NoAgents"},
            "has no possible_agents; list there all that may take part",
        ),
        (
            {"type": "pettingzoo", "environment": "nowhere.py:Env"},
            "scenario.environment: no such file: nowhere.py",
        ),
        (
            {"type": "pettingzoo", "environment": CARTPOLES, "num_envs": 0},
            "num_envs: must be at least 1, not 0",
        ),
        ({"type": "torchrl"}, "scenario.environment: is missing; name a class such as torchrl"),
        (
            {"type": "torchrl", "environment": "torchrl.envs:GymEnvv"},
            "scenario.environment: torchrl.envs has no 'GymEnvv'; did you mean GymEnv",
        ),
        (
            {
                "type": "torchrl",
                "environment": "torchrl.envs:GymEnv",
                "env_kwargs": {"env_name": "CartPole-v1"},
                "transforms": [{"path": "torchrl.envs:StepConter"}],
            },
            "scenario.transforms: torchrl.envs has no 'StepConter'; did you mean StepCounter",
        ),
        (
            {
                "type": "torchrl",
                "environment": "torchrl.envs:GymEnv",
                "transforms": [{"name": "torchrl.envs:StepCounter"}],
            },
            "transforms[0] must be an import path, or {path: module:Class, kwargs: {...}}",
        ),
        (
            {
                "type": "torchrl",
                "environment": "torchrl.testing.mocking_classes:Str2StrEnv",
            },
            "observation is a NonTensor of shape (), which networks cannot take",
        ),
    ],
)
def test_faults_of_a_configuration_name_the_setting_and_the_remedy(scenario, message):
    assert message in faults(scenario)


@pytest.mark.parametrize(
    ("scenario", "written", "meant"),
    [
        ({"type": "gymnasium", "id": "CartPole-v1"}, "sutton_barto", "sutton_barto_reward"),
        ({"type": "pettingzoo", "environment": CARTPOLES}, "max_step", "max_steps"),
        # A function that hands its arguments on to a class.
        ({"type": "pettingzoo", "environment": "tictactoe_v3"}, "render_mod", "render_mode"),
        ({"type": "torchrl", "environment": "torchrl.envs:PendulumEnv"}, "sed", "seed"),
        ({"type": "gymnasium", "id": "CartPole-v1"}, "xyz", None),
    ],
)
def test_an_argument_that_an_environment_does_not_take_is_told(scenario, written, meant):
    found = faults(scenario | {"env_kwargs": {written: 1}})
    assert f"unexpected keyword argument '{written}'" in found
    close = found.partition("; did you mean ")[2]
    assert close == (f"{meant}?" if meant else "")


def test_what_a_package_imports_when_asked_for_it_may_be_missing(tmp_path, monkeypatch):
    package = tmp_path / "lazy_games"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import importlib\n\ndef __getattr__(name):\n    import nowhere_there\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    found = faults({"type": "pettingzoo", "environment": "lazy_games:Game"})
    assert "lazy_games.Game needs nowhere_there" in found
    assert "which is not installed; install the package that has it" in found


@pytest.mark.parametrize(
    ("scenario", "fault"),
    [
        ({"type": "pettingzoo", "environment": CARTPOLES}, None),
        ({"type": "pettingzoo", "environment": f"{SCRIPTS}:blind"}, "draws no frames of colours"),
        (
            {"type": "torchrl", "environment": "torchrl.testing.mocking_classes:CountingEnv"},
            "draws no frames of colours; write validate.film: none",
        ),
    ],
)
def test_films_are_asked_for_only_where_there_are_frames(scenario, fault):
    tree = {"trainer": "vanilla_ppo", "scenario": scenario, "validate": {"film": "gif"}}
    if fault is None:
        prepare(tree)
        return
    with pytest.raises(ConfigError, match=f"^validate.film.*{fault}"):
        prepare(tree)


@pytest.mark.parametrize("trainer", ["dqn", "sac", "td3"])
def test_torchrls_collector_is_refused_where_a_trainer_learns_between_steps(trainer):
    scenario = {
        "type": "torchrl",
        "environment": "torchrl.envs:GymEnv",
        "env_kwargs": {"env_name": "CartPole-v1"},
        "collector": "torchrl",
    }
    with pytest.raises(ConfigError, match=r"scenario\.collector.*scenario.collector: arrays"):
        prepare({"trainer": trainer, "scenario": scenario})


def test_without_pettingzoo_the_extra_is_named(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *a: None if name == "pettingzoo" else find(name, *a),
    )
    said = faults({"type": "pettingzoo", "environment": CARTPOLES})
    assert 'scenario: pettingzoo is not installed; run: pip install "plugrl[pettingzoo]"' in said


def test_a_file_is_looked_up_beside_the_configuration_that_names_it(tmp_path, monkeypatch):
    folder = tmp_path / "task"
    folder.mkdir()
    (folder / "factory.py").write_text(FACTORY, "utf-8")
    config = folder / "run.yaml"
    config.write_text(
        "trainer: vanilla_ppo\nscenario: {type: pettingzoo, environment: 'factory.py:short'}\n",
        "utf-8",
    )
    monkeypatch.chdir(tmp_path)
    validated = prepare(config).validated
    assert validated.tree["scenario"]["environment"] == f"{folder / 'factory.py'}:short"


def test_modules_of_the_working_directory_are_found(tmp_path, monkeypatch):
    (tmp_path / "here_only.py").write_text(FACTORY, "utf-8")
    monkeypatch.chdir(tmp_path)
    tree = {
        "trainer": "vanilla_ppo",
        "scenario": {"type": "pettingzoo", "environment": "here_only:short"},
    }
    assert prepare(tree).validated.tree["scenario"]["environment"] == "here_only:short"


def test_no_package_is_named_that_may_be_called_otherwise_than_its_module(tmp_path):
    (tmp_path / "mine.py").write_text("import cv2_gone\n", encoding="utf-8")
    (tmp_path / "other.py").write_text("import vmas.gone\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"needs cv2_gone .*; install the package that has it$"):
        find(str(tmp_path / "mine.py"))
    with pytest.raises(ConfigError, match=r"; run: pip install vmas$"):
        find(str(tmp_path / "other.py"))
