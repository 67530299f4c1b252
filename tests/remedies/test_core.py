"""Every remedy that messages of the rest of core recommend is tried, and helps."""

from __future__ import annotations

import contextlib
import re
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from command_lines import command
from remedies import untried
from trials import Read, Trial, refused, tiered_trials

import plugrl
from plugrl.core.chat_template import ChatTemplate
from plugrl.core.errors import ConfigError
from plugrl.core.experiment import TrainedRun, load_run
from plugrl.core.factory import make_component
from plugrl.core.hub.hub import model_folder
from plugrl.core.renamed_methods import RenamedMethods
from plugrl.core.run.run import Run
from plugrl.core.sandboxes import LocalSandbox, make_confined_sandbox
from plugrl.core.sweep import plan_runs
from plugrl.core.wording import misspelt_field


def swept(given):
    """Plan a sweep over words of a grid and a number of seeds, joined by ``--seeds``."""
    grid, _, seeds = given.partition(" --seeds ")
    plan_runs("sft", grid.split(), int(seeds or 1))


class Base(RenamedMethods):
    RENAMED_METHODS = {"former": "method"}
    FOREIGN = {"stop": "end(self)", "state": "held"}

    held = 1


def subclass(name):
    """A class of a user with a method of this name."""
    type("Mine", (Base,), {name: lambda self: None, "__module__": "own"})


def attribute(name):
    getattr(Base(), name)


class Sampling(plugrl.Trainer):
    """A trainer with a state and no way back."""

    def train(self):
        return None

    def state_dict(self):
        return {"a": 1}


def bound(context):
    trainer = object.__new__(Sampling)
    trainer._context = context
    trainer._bound("run")


def instance(section):
    return make_component("scenario", section).build(0)


def section(pattern=r"such as scenario: (\{.*\})"):
    return Read(pattern, yaml.safe_load)


class Open(LocalSandbox):
    """A sandbox of a machine that confines nothing."""

    def fault(self):
        return "here nothing is confined"


def sandboxed(unsafe):
    with_open = {"custom_sandbox_module_path": __file__, "custom_sandbox_class_name": "Open"}
    make_confined_sandbox(with_open, unsafe=unsafe)


def written(content):
    ChatTemplate("{% for m in messages %}{{ m.content + '' }}{% endfor %}")(
        [{"role": "user", "content": content}]
    )


def templated(template):
    ChatTemplate(template)([{"role": "user", "content": "a"}])


def in_template(field):
    refused(misspelt_field(f"Grade {{{field}}}.", ["prompt", "answer"]))


def a_model(given):
    """A model folder, or the name of one, with or without a revision."""
    with TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("mine").mkdir()
        path, revision = given
        try:
            model_folder({"path": path, "revision": revision}, weights=False)
        except ConfigError as error:
            refused(str(error) if "is a folder, and revision" in str(error) else None)


TRIALS = [
    Trial("}; did you mean {", in_template, "promt", Read(r"did you mean \{(\w+)\}\?")),
    Trial("leave revision out, or write a name that is no folder here", a_model, ("mine", "main"),
          ("mine", None)),
    Trial("{}: a value is empty; write null for no value", swept, "settings.keep_checkpoints=1,",
          "settings.keep_checkpoints=1,null"),
    Trial("{}: a value is repeated; write each value once", swept, "seed=1,1", "seed=1,2"),
    Trial("a key is repeated: {}; write all its values in one", swept, "seed=1 seed=2", "seed=1,2"),
    Trial("--seeds name the seeds twice; leave one out", swept, "seed=1,2 --seeds 2", "seed=1,2"),
    Trial("--seeds name the seeds twice; leave one out", swept, "seed=1,2 --seeds 2",
          "seed=1 --seeds 2"),
    Trial("{}{} is now called {}; write {}", subclass, "former", Read(r"write (\w+)")),
    Trial("{}.{} is called by nothing; write {}, or give", subclass, "stop",
          Read(r"write (\w+)")),
    Trial("or give a method of your own another name", subclass, "stop", "another"),
    Trial("{} has no {}; write {}", attribute, "state", Read(r"write (\w+)")),
    Trial("the chat template cannot write the messages: {}; change the messages", written, 3, "3"),
    Trial("or source.tokenizer.chat_template of the model", templated,
          "{{ messages[0].content + 1 }}", "{{ messages[0].content }}"),
    Trial("has no labels to learn from; take one that has, such as",
          lambda given: instance(given).labelled("train"), {"type": "arithmetic"}, section()),
    Trial("has no environment; take one that has, such as",
          lambda given: instance(given).environment("train").close(), {"type": "arithmetic"},
          section()),
    Trial("{}; to let programs do what they want, set unsafe: true", sandboxed, False,
          Read(r"set unsafe: (\w+)", lambda value: value == "true")),
    Trial("or call bind(context) first", bound, None, SimpleNamespace()),
]  # fmt: skip


@pytest.mark.parametrize("trial", tiered_trials(TRIALS))
def test_a_remedy_helps(trial):
    trial.run()


#: Commands about a run: the fixture with the run, the command, part of the message, what it says.
OF_RUNS = [
    ("shelf", "sample latest 1+2= --checkpoint best", "or take the newest", "sample latest 1+2="),
    ("shelf_of_networks", "eval latest nosuch", "for episodes in the run's own environment",
     Read(r"write (\w+) for", "eval latest {}".format)),
    *(
        ("shelf_of_networks", line, "run plugrl eval {} validation, or let plugrl.load_run",
         Read(r"run plugrl (eval \S+ validation)"))
        for line in ("sample latest", "sample latest x", "export latest out")
    ),
    ("shelf_of_files", "eval latest nosuch", "a YAML file that sets validate.data.data_files",
     "eval latest other.yaml"),
]  # fmt: skip


@pytest.mark.integration
@pytest.mark.parametrize(("name", "line", "says", "then"), OF_RUNS)
def test_a_remedy_of_a_command_about_a_run_helps(name, line, says, then, request, monkeypatch):
    folder = request.getfixturevalue(name)
    monkeypatch.chdir(folder)
    text = "validate: {data: {data_files: [train.jsonl]}}\n"
    (folder / "other.yaml").write_text(text, encoding="utf-8")
    Trial(says, command, line, then).run()


@pytest.mark.integration
def test_policies_act_as_a_message_about_a_run_says(shelf_of_networks, monkeypatch, call):
    monkeypatch.chdir(shelf_of_networks)
    said = call("sample", "latest")[2]
    run = re.search(r'plugrl\.load_run\("(.*?)"\)\.policies', said)[1]
    (policy,) = plugrl.load_run(run).policies.values()
    assert policy.act(np.zeros(4, np.float32)) in (0, 1)


class Restarting(Sampling):
    capabilities = plugrl.Capabilities(resume=False)


def test_a_trainer_that_takes_no_state_back_declares_it(tmp_path):
    settings = {"runs_folder": str(tmp_path), "progress": "none", "checkpoint_every": 1}
    validated = SimpleNamespace(tree={"experiment_name": "toy", "settings": settings})
    with Run.create(validated, SimpleNamespace(input_text="", overrides=())) as run:
        run.attach(object.__new__(Sampling))
        run.end_step(1, {})

    def resumed(cls):
        again = Run.open(run.folder)
        try:
            again.attach(object.__new__(cls))
            again.restore()
        finally:
            again.finish("failed")

    Trial(_RESUME, resumed, Sampling, Restarting).run()


_RESUME = ", or declare Capabilities(resume=False)"


@pytest.mark.integration
def test_a_model_folder_has_no_checkpoints(shelf, monkeypatch, tmp_path):
    monkeypatch.chdir(shelf)
    command(f"export latest {tmp_path}/model")
    for right in (f"sample {tmp_path}/model 1+2=", "sample latest 1+2= --checkpoint 1"):
        Trial(_MODEL, command, f"sample {tmp_path}/model 1+2= --checkpoint 1", right).run()


_MODEL = "is a model folder, which has no checkpoint {}; leave --checkpoint out, or name a run"


@pytest.mark.integration
def test_the_best_checkpoint_is_that_of_a_validation(shelf, monkeypatch):
    monkeypatch.chdir(shelf)

    def best(key):
        if key is not None:
            command(f"train own.yaml validate.enabled=true validate.every=1 {key}=1")
        command("sample latest 1+2= --checkpoint best")

    Trial(_BEST, best, None, Read(r"set ([\w.]+) so")).run()


_BEST = "no checkpoint of {} has a score; set settings.checkpoint_every"


@pytest.mark.integration
def test_another_run_has_a_checkpoint(shelf, monkeypatch, tmp_path, call):
    monkeypatch.chdir(shelf)
    whole = load_run("latest")

    def read(listed):
        if listed:
            line = re.search(r"plugrl (.*) shows", listed)[1]
            assert whole.folder.name in call(*line.split())[1]
        (whole if listed else TrainedRun(tmp_path, whole.config, {})).checkpoint()

    Trial(_OTHER, read, None, Read(r"(name another run; .*)")).run()


_OTHER = "has no checkpoint that can be read; name another run; plugrl runs list shows them"


@pytest.mark.integration
def test_a_run_without_checkpoints_is_not_sampled(shelf, monkeypatch, tmp_path):
    monkeypatch.chdir(shelf)
    copy = tmp_path / "20260101-000000-copy"
    shutil.copytree(load_run("latest").folder, copy)
    shutil.rmtree(copy / "checkpoints")
    (copy / "checkpoints").mkdir()
    listed = Read(r"plugrl (runs list) shows", str)
    Trial("it ended before the first one was saved; name another run", command,
          f"sample {copy} 1+2=", listed).run()  # fmt: skip
    command("sample latest 1+2=")


#: What those tests say that try one remedy each.
ALONE = {_RESUME, _MODEL, _BEST, _OTHER, *(says for _, _, says, _ in OF_RUNS)}
ALONE |= {
    "core/wording: ; did you mean {}?",
    "core/wording: {{}}; did you mean {{}}?",
    "core/loaded_run: name another run; plugrl runs list shows them",
}
#: Texts that name no key, value or command.
REASONS = {
    "core/searched_sweep: ": "tests/commands/test_search.py",
    "must be text or a path, not {}; write {}": "of an object in code: tests/test_results.py",
    "core/launch/": "of another machine, and what travels there: tests/core/launch",
    "here nothing limits {}; run where": "of what the kernel lacks",
    "core/foreign_names": "tried name by name in tests/core/plugins/test_foreign_names.py",
    "run folder %s": "says where a run is",
    "{} has no run, so run.{} is not there": "names nothing to write instead",
    "core/sandbox/inside/system_calls: call {}": "a number of the kernel",
}


def test_every_remedy_is_tried_or_names_nothing():
    assert untried("core", {each.says for each in TRIALS} | ALONE, REASONS) == []
