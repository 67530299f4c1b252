"""What the rules of plugins, packages and files of users recommend is tried."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import gymnasium
import pettingzoo
import pytest
import torchrl.envs
import yaml
from packages import packages
from remedies import NETS, TEXT, untried
from trials import Read, Trial, refused, tiered_trials

import plugrl
from plugrl.core.config.sources.lookup import find_main
from plugrl.core.experiment import prepare
from plugrl.core.plugins import hookspecs, loading
from plugrl.core.plugins.arguments import resumed_rewards, reward_arguments
from plugrl.core.plugins.callbacks import as_callbacks
from plugrl.core.plugins.discovery import check_hook_plugin
from plugrl.core.plugins.kinds import current_kind, former_group_warning
from plugrl.core.plugins.packages.installed import group_problem
from plugrl.core.plugins.packages.requirements import check_requirements
from plugrl.core.plugins.registry import Registry, default_registry
from plugrl.core.plugins.resolution import check_installed
from plugrl.core.plugins.user_code.user_files import load_file


class Swings(gymnasium.Env):
    """Learned by small networks."""


class Plays(pettingzoo.ParallelEnv):
    """The same, with several agents."""


class Steps(torchrl.envs.EnvBase):
    """The same, of TorchRL."""


@contextlib.contextmanager
def own_registry():
    """This process's registry, which forgets what is registered meanwhile."""
    registry = default_registry()
    before = registry.snapshot()
    try:
        yield registry
    finally:
        registry.restore(before)


def registered(kind, name, value):
    with own_registry() as registry:
        registry.load(registry.register(kind, name, value))


def twice(given):
    """Two losses of other places are registered under names, with options for the second."""
    names, options = given
    with own_registry() as registry:
        for name, text, more in zip(names, ("a", "b"), ({}, options), strict=True):
            space = {"__name__": f"own_{text}"}
            exec("def loss(logp, batch, config):\n    return logp.sum(), {}", space)
            registry.register("loss", name, space["loss"], **more)


def inside(nested):
    """A class that is made in a function, or stands at the top level."""

    class Inner(plugrl.Evaluator):
        def evaluate(self, data, evaluation_target):
            return 1.0

    if not nested:
        Inner.__qualname__, Inner.__module__ = "Top", __name__
        globals()["Top"] = Inner
    with own_registry() as registry:
        check = registry.register("evaluator", "mine", Inner)
        Registry(registry.entry_points).load(check)


def function(kind, name):
    """An attempt to register a function with the line that a message tells."""

    def attempt(line):
        space = {"Sequence": Sequence, "__name__": "own"}
        exec(f"def {line.partition(' -> ')[0]}:\n    return 0.0", space)
        registered(kind, name, space[name])

    return attempt


def method(line):
    space = {"plugrl": plugrl}
    exec(f"class Mine(plugrl.Evaluator):\n    def {line}:\n        return 1.0", space)
    registered("evaluator", "mine", space["Mine"])


def hooks(**names):
    return type("Hooks", (), {name: staticmethod(value) for name, value in names.items()})


def hook(name, argument="step"):
    space = {}
    exec(f"def hook({argument}):\n    pass", space)
    check_hook_plugin(hooks(**{name: plugrl.hookimpl(space["hook"])}))


def declared(group):
    refused(group_problem(group) or former_group_warning(group))


_FILES = {"own_a/mine.yaml": "seed: 1\n", "own_a/__init__.py": ""}


def recipe(target):
    with packages({"plugrl-a": {"plugrl.recipes": {"mine": target}}}, _FILES):
        find_main("plugrl-a/mine")


def of_two(name):
    """A recipe and a loss that two packages provide."""
    given = {
        f"plugrl-{end}": {
            "plugrl.recipes": {"mine": "own_a:mine.yaml"},
            "plugrl.losses": {"mine": "own_a:loss"},
        }
        for end in "ab"
    }
    return packages(given, _FILES)


def a_recipe_of_two(name):
    with of_two(name):
        find_main(name)


def a_loss_of_two(name):
    with of_two(name):
        Registry().resolve("loss", name)


def required(text):
    refused(next(iter(check_requirements([text])), None))


def another_version(number):
    """A component that another process names, which has this version of its package."""
    with packages({"plugrl-a": {"plugrl.losses": {"mine": "own_a:loss"}}}, version="1.0"):
        record = Registry().resolve("loss", "mine")
    with packages({"plugrl-a": {"plugrl.losses": {"mine": "own_a:loss"}}}, version=number):
        check_installed(record, Registry().entry_points)


def resolved(name):
    with own_registry() as registry:
        registry.resolve("trainer", name)


class Talks(plugrl.DialogueEnvironment):
    """Nothing differs."""


def decorated(name):
    with own_registry():
        getattr(plugrl, name)("mine")(Talks)


_MINE = (
    "from plugrl.trainers.self_hosted_grpo import SelfHostedGrpoTrainer\n\n\n"
    "class Mine(SelfHostedGrpoTrainer):\n    pass\n"
)


def told_keys(text):
    """The keys in ``A: x with B: y``."""
    return dict(part.split(": ") for part in text.split(" with "))


def of_file(trainer):
    """A trainer of a file in the working folder, by the keys that a message tells."""
    with TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("own.py").write_text(_MINE, encoding="utf-8")
        prepare(TEXT | {"trainer": {**trainer, "total_train_steps": 1}})


def registered_by_file(path):
    """A trainer that a file registers, which is imported before."""
    with TemporaryDirectory() as folder, contextlib.chdir(folder), own_registry():
        text = f'import plugrl\n{_MINE}\n\nplugrl.register_trainer("own.py:Mine")(Mine)\n'
        Path("own.py").write_text(text.replace("own.py:Mine", "mine"), encoding="utf-8")
        if path is not None:
            loading.import_user_module(path)
        name = "own.py:Mine" if path is None else "mine"
        prepare(TEXT | {"trainer": {"type": name, "total_train_steps": 1}})


def neighbour(statement):
    """A file that imports the one beside it, of which another folder has a namesake."""
    sys.modules.pop("helper_of_two", None)
    with TemporaryDirectory() as folder:
        first, second = Path(folder, "first"), Path(folder, "second")
        for place, text in ((first, "import helper_of_two"), (second, statement)):
            place.mkdir()
            (place / "helper_of_two.py").write_text("", encoding="utf-8")
            (place / "tools.py").write_text(text, encoding="utf-8")
            load_file(place / "tools.py")
    sys.modules.pop("helper_of_two", None)


_MAKERS = {
    "pettingzoo": "from pettingzoo.classic import tictactoe_v3\n\n\ndef make():\n"
    "    return tictactoe_v3.env()\n",
    "torchrl": "from torchrl.envs import GymEnv\n\n\ndef make():\n"
    '    return GymEnv("CartPole-v1")\n',
}


def environment(given):
    """Register an environment for dialogues, or name it as a scenario in a configuration."""
    if not isinstance(given, str):
        return registered("dialogue_environment", "mine", given)
    section = yaml.safe_load(given)["scenario"]
    with TemporaryDirectory() as folder:
        if section["type"] in _MAKERS:
            file = Path(folder, "own.py")
            file.write_text(_MAKERS[section["type"]], encoding="utf-8")
            section["environment"] = f"{file}:make"
        else:
            section["id"] = "CartPole-v1"
        return prepare(json.loads(json.dumps(NETS)) | {"scenario": section})


_ANY = "letters, digits, '_', '-' and '.'"


def length(completions, **kwargs):
    return [float(len(text)) for text in completions]


def resumed_with(reward):
    resumed_rewards("runs/x", ["a", "b"], reward)


def resumed_without(reward):
    resumed_rewards("runs/x", [], reward)


def rewarded(arguments):
    reward_arguments(*arguments)


def written_reward(form):
    """A reward function of the form that a message tells."""
    space = {"__name__": "own"}
    exec(f"def {form}:\n    return [1.0]", space)
    reward_arguments(space["f"])


def yields(step, metrics):
    yield metrics


def called_back(value):
    as_callbacks([value])


class Stepping:
    def plugrl_step_end(self, run, step, metrics):
        return None


class Registering:
    def plugrl_register_components(self, registry):
        return None


TRIALS = [
    Trial(
        "reward functions ({}), not {}; give them in the same order",
        resumed_with,
        length,
        [length, length],
    ),
    Trial("write plugrl.resume({}, reward={}), or ", resumed_with, None, [length, length]),
    Trial(
        "was trained without functions of a program; leave reward out",
        resumed_without,
        length,
        None,
    ),
    Trial("reward is an empty list; give at least one function", rewarded, ([],), ([length],)),
    Trial(
        "reward_weights has {} numbers for {} rewards; give one each",
        rewarded,
        (length, [1, 2]),
        (length, [1]),
    ),
    *(
        Trial(
            "reward must be a function or a list of them, not {}; write {}",
            lambda form: written_reward(form) if form else rewarded((3,)),
            None,
            Read(pattern),
        )
        for pattern in (r"write (f\([^)]*\))", r"; or (f\([^)]*\))")
    ),
    Trial(
        "write an object with methods named as hooks, such as", called_back, object(), Stepping()
    ),
    Trial("or a function f(step, metrics)", called_back, object(), lambda step, metrics: None),
    Trial("callback {} is a class; give an object of it, {}()", called_back, Stepping, Stepping()),
    Trial("callback {}: {} is async or has a yield", called_back, yields, lambda step, metrics: 0),
    Trial(
        "register components before plugrl.train, with decorators such as",
        called_back,
        Registering(),
        Stepping(),
    ),
    Trial(
        "there is no kind {}; did you mean {}?",
        lambda kind: Registry().resolve(kind, "dqn"),
        "trainr",
        Read(r"did you mean (\w+)"),
    ),
    Trial(
        "the kind {} is now called {}; write {}",
        current_kind,
        "environment",
        Read(r"write '(\w+)'"),
    ),
    Trial(
        "the group [{}] is now called [{}]; rename it",
        declared,
        "plugrl.environments",
        Read(r"called \[([\w.]+)\]"),
    ),
    Trial(
        "never used: there is no group [{}]; write [{}]",
        declared,
        "Plugrl",
        Read(r"write \[([\w.]+)\]"),
    ),
    Trial("write [{}.{}]", declared, "plugrl.trainer", Read(r"write \[([\w.]+)\]")),
    Trial(
        "write package.folder:file.yaml, and list the file",
        recipe,
        "own_a:other.yaml",
        "own_a:mine.yaml",
    ),
    Trial("recipe {} is provided by {}; write {}", a_recipe_of_two, "mine", Read(r"write (\S+)")),
    Trial("recipe {} is provided by {}; write {}", a_recipe_of_two, "mine", Read(r" or (\S+)$")),
    Trial("{} {} is provided by {}; write {}", a_loss_of_two, "mine", Read(r"write (\S+)")),
    Trial("{} {} is provided by {}; write {}", a_loss_of_two, "mine", Read(r" or (\S+)$")),
    Trial(
        "{} is required, but {} {} is installed; run: pip install",
        required,
        "packaging>999",
        f"packaging>={version('packaging')}",
    ),
    Trial("{} is not a requirement such as", required, "pack age>1", "packaging>=1.2"),
    Trial("{} is not installed; run: pip install", required, "zzzzzz>=1", "packaging>=1.2"),
    Trial("did you mean", required, "pakaging", Read(r"did you mean ([\w-]+)\?")),
    Trial(
        "install {}=={} in the environment of every process",
        another_version,
        "1.1",
        Read(r"==(\S+) in"),
    ),
    Trial("; see plugrl ls {}; {}", resolved, "zzzz", "dqn"),
    Trial(
        "names must be a list such as [{}], not {}",
        lambda names: Registry().disable(names),
        "plugrl-a",
        ["plugrl-a"],
    ),
    Trial(
        f"cannot name a {{}}: use {_ANY}",
        lambda name: registered("loss", name, of_loss),
        "my loss",
        "my_loss",
    ),
    Trial(
        "choose another name for {} or pass replace=True", twice, (("x", "x"), {}), (("x", "y"), {})
    ),
    Trial(
        "choose another name for {} or pass replace=True",
        twice,
        (("x", "x"), {}),
        (("x", "x"), {"replace": True}),
    ),
    Trial("no other process can import it; move it there", inside, True, False),
    *(
        Trial(says, environment, cls, Read(r"write (scenario: \{.*?\})"))
        for cls, says in (
            (Swings, "and a dialogue_environment holds dialogues for red-teaming; write {}"),
            (Plays, "scenario: {type: pettingzoo, environment: ...}, such as FILE.py:NAME"),
            (Steps, "scenario: {type: torchrl, environment: ...}, such as FILE.py:NAME"),
        )
    ),
    Trial(
        "is now called register_dialogue_environment; write @",
        decorated,
        "register_environment",
        Read(r"write @plugrl\.(\w+)"),
    ),
    Trial(
        "for your own write custom_{}_module_path: {} with custom_{}_class_name: {} and no type",
        of_file,
        {"type": "own.py:Mine"},
        Read(r"write (.*?) and no", told_keys),
    ),
    Trial(
        "or register its name in a file and give -p {}",
        registered_by_file,
        None,
        Read(r"give -p (\S+)"),
    ),
    Trial(
        "and not the file beside it; write from . import {}",
        neighbour,
        "import helper_of_two",
        Read(r"write (from . import \w+)"),
    ),
    Trial(
        "{}{} has the wrong parameters; write {}({}) -> {}",
        function("loss", "mine"),
        "mine(logp)",
        Read(r"write (mine\(.*?\))"),
    ),
    Trial(
        "{}{} has the wrong parameters; write {}({}) or {}({})",
        function("rollout_worker", "work"),
        "work(a, b, c)",
        Read(r"write (work\(.*?\))"),
    ),
    Trial(
        "{}{} has the wrong parameters; write {}({}) or {}({})",
        function("rollout_worker", "work"),
        "work(a, b, c)",
        Read(r" or (work\(.*?\))"),
    ),
    Trial(
        "{}.{}{} has the wrong parameters; write {}",
        method,
        "evaluate(self)",
        Read(r"write .*?(evaluate\(.*?\))"),
    ),
    Trial(
        "unknown hook {}; did you mean {}?",
        hook,
        "plugrl_step_ended",
        Read(r"did you mean (\w+)\?"),
    ),
    Trial(
        "install a version of the plugin for this plugrl",
        lambda api: check_hook_plugin(type("Hooks", (), {"PLUGRL_HOOK_API": api})),
        999,
        hookspecs.HOOK_API,
    ),
    Trial(
        "{} is async or has a yield: calling it runs nothing; write a plain def",
        lambda hook: check_hook_plugin(SimpleNamespace(plugrl_step_end=hookspecs.hookimpl(hook))),
        yields,
        lambda step, metrics: 0,
    ),
]


def of_loss(logp, batch, config):
    return logp.sum(), {}


@pytest.mark.parametrize("trial", tiered_trials(TRIALS))
def test_a_remedy_helps(trial):
    trial.run()


#: Texts that name no key, value or command.
REASONS = {
    "reward_weights must be a list of numbers, not {}; give one": "of an object in code",
    "f(rewards[R], group[R], run[R], valid[R], batch, config)": "the form of a kind of component",
    "run(self, job, limits) -> ProgramOutcome": "the form of a kind of component",
    "create(self, name, examples, base)": "the form of a kind of component",
    "model(self, name, revision": "the form of a kind of component",
    "start(self, name) -> WorkerHandle": "the form of a kind of component",
    "log(self, step, metrics) -> None": "the form of a kind of component",
    "You write": "documentation",
    "preview(self, job) -> text; start(self, job)": "the form of a kind of component",
    "needs {}, which is not installed; run": "tried for each package by test_plugins.py",
}


def test_every_remedy_is_tried_or_names_nothing():
    assert untried("core/plugins", {each.says for each in TRIALS}, REASONS) == []
