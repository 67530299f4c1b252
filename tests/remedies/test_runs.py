"""Every remedy that messages of a run and its folder recommend is tried."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from remedies import TEXT, untried
from trials import Read, Trial, refused, tiered_trials

from plugrl.core.config.schemas.sections import RuntimeMonitorConfig
from plugrl.core.experiment import prepare
from plugrl.core.plugins.kinds import Record
from plugrl.core.run import folder as folders
from plugrl.core.run.checkpoints import checkpoint
from plugrl.core.run.checkpoints.compatibility import check_resume
from plugrl.core.run.checkpoints.folder import checkpoint_folder
from plugrl.core.run.guards import Guards
from plugrl.core.run.initialization import check_plugins, read_config
from plugrl.core.run.loaded_state import refuse_state, restore_state
from plugrl.core.run.process.compiler import missing_compiler
from plugrl.core.run.process.launchers import refuse_copies
from plugrl.core.run.process.memory import ParameterCounter, memory_shortage
from plugrl.core.run.process.setup_script import exported_variables
from plugrl.core.run.records.records import plain_numbers
from plugrl.core.run.run import Run


def told_policy(key):
    """The policy with the option ``runtime_monitor.KEY=VALUE`` that a message tells."""
    return Read(rf"set runtime_monitor\.({key}=\w+)", lambda text: dict([text.split("=")]))


def not_finite(policy):
    Guards(RuntimeMonitorConfig(**policy)).check_finite("loss", float("nan"), step=1)


def large_rewards(reward):
    guards = Guards()
    guards.rewards(1, [reward, 0.0], [1.0, 1.0])
    guards.watch_rewards(lambda: None if abs(reward) < 1e9 else f"a reward is {reward:g}")
    guards.check_finite("loss", torch.tensor(reward) ** 4, step=1)


def dead(policy):
    Guards(RuntimeMonitorConfig(**policy)).dead_coefficients("trainer.algorithm.loss", {"kl": 0.5})


class Counting:
    """A component with a state of two versions."""

    def load_state_dict(self, state):
        self.count = state["count"]


class Later(Counting):
    def load_state_dict(self, state):
        self.count = state.get("count", 0)


class Saving:
    def state_dict(self):
        return {"a": 1}


def state_of(cls):
    """Load what an earlier version saved, where a class has a method for it."""
    if hasattr(cls, "load_state_dict"):
        restore_state(cls(), {}, "trainer", "step-00000001")
    else:
        refuse_state(cls(), {"a": 1})


def a_compiler(name):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXX", name)
        refused(missing_compiler("cpu"))


def triton(there, compiler=sys.executable):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CC", compiler)
        spec = importlib.util.spec_from_loader("triton", None)
        patch.setitem(sys.modules, "triton", SimpleNamespace(__spec__=spec) if there else None)
        refused(missing_compiler("cuda"))


def networks(size):
    with ParameterCounter().limit_size():
        torch.nn.Linear(size, size)


TRIALS = [
    Trial("the networks are larger than any memory; take smaller sizes", networks, 2**40, 4),
    Trial("{} is not finite in step {}{}; {}, or set runtime_monitor", not_finite, {},
          told_policy("non_finite")),
    Trial("its rewards are the likely cause: {}; correct or scale them", large_rewards, 1e12, 1.0),
    Trial("{}: the gradient does not depend on it; use it in the loss", dead,
          {"dead_coefficients": "stop"}, told_policy("dead_coefficients")),
    Trial("let it take what an earlier version saved, such as with state.get", state_of, Counting,
          Later),
    Trial("has state_dict() but no load_state_dict(state); write it", state_of, Saving, Later),
    Trial("there is no C++ compiler {}, which torch.compile needs; install it", a_compiler,
          "no-such-compiler", sys.executable),
    Trial("there is no triton, which torch.compile needs; install it", triton, False, True),
    Trial("there is no C compiler {}, which triton needs; install it",
          partial(triton, True), "no-such-compiler", sys.executable),
    Trial("start it once, without the launcher", refuse_copies, {"WORLD_SIZE": "2", "RANK": "0"},
          {}),
    Trial("and there are {}; take smaller sizes",
          lambda size: refused(memory_shortage(size, 4, 4)), 10**15, 10**5),
    Trial("metric {} is a {}, but a metric is one number; use run.sample()", plain_numbers,
          {"a": "text"}, {"a": 1.0}),
]  # fmt: skip


@pytest.mark.parametrize("trial", tiered_trials(TRIALS))
def test_a_remedy_helps(trial):
    trial.run()


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def a_run(here, records=(), **settings):
    own = {"runs_folder": "runs", "progress": "none", **settings}
    validated = SimpleNamespace(tree={"experiment_name": "toy", "settings": own})
    composed = SimpleNamespace(input_text="seed: 0\n", overrides=())
    return Run.create(validated, composed, records=records)


def test_runs_of_one_beginning(here):
    for _ in range(2):
        a_run(here).finish("finished")
    first = folders.find_all(Path("runs"))[0].id

    def found(reference):
        folders.find(reference, Path("runs"))

    Trial(_BEGIN, found, first[:2], first).run()


_BEGIN = " runs begin with {}: {}; write more characters"


def test_a_folder_of_checkpoints_of_its_own(here):
    def create(place):
        settings = {} if place is None else {"checkpoint_path": place}
        a_run(here, **settings).finish("finished")

    for right in ("other", None):
        Trial(_OWN_FOLDER, create, "runs/toy", right).run()


_OWN_FOLDER = "is where the run folders lie; write another folder, or leave it out"


def test_checkpoints_elsewhere(here):
    run = a_run(here, checkpoint_path="elsewhere")
    run.finish("finished")
    place = Path(os.readlink(run.folder / "checkpoints"))

    def of(step):
        step()
        checkpoint_folder(run.folder)

    def lost():
        place.rename(here / "lost")

    Trial(_NOT_THERE, of, lost, lambda: (here / "lost").rename(place)).run()
    Trial(_NOT_THERE, of, lost, Read(r"or delete (\S+) to begin", lambda link: Path(link).unlink)
          ).run()  # fmt: skip


_NOT_THERE = "which is not there; mount or restore it, or delete {} to begin without them"


def test_a_copy_of_a_run_has_a_copy_of_its_checkpoints(here):
    run = a_run(here, checkpoint_path="elsewhere")
    run.finish("finished")
    copy = run.folder.with_name("copy")
    shutil.copytree(run.folder, copy, symlinks=True)

    def owned(text):
        if text is not None:
            place, link = re.fullmatch(r"(\S+) in the place of (\S+)", text).groups()
            Path(link).unlink()
            shutil.copytree(place, link)
        checkpoint_folder(copy, owned=True)

    Trial(_COPY, owned, None, Read(r"put a copy of (.*)$")).run()


_COPY = "of which it is a copy; put a copy of {} in the place of {}"


def test_broken_checkpoints_are_moved_away(here):
    broken = checkpoint.save(here / "checkpoints", 1, {"a": 1})
    (broken / "manifest.json").write_text("{", encoding="utf-8")

    def newest(folder):
        if folder is not None:
            for path in checkpoint.candidates(Path(folder)):
                path.rename(here / path.name)
        assert checkpoint.load_newest(here / "checkpoints") is None

    Trial(_BROKEN, newest, None, Read(r"checkpoints in (\S+) can")).run()


_BROKEN = "can be read; move them away to start this run from its beginning"


def test_a_run_whose_folder_is_gone(here):
    run = a_run(here)

    def goes_on(back):
        (here / "away").rename(run.folder) if back else run.folder.rename(here / "away")
        run._check_folder()

    try:
        Trial(_GONE, goes_on, False, True).run()
    finally:
        run.finish("failed")


_GONE = "put it back and resume it, or start a new run"


def test_a_trainer_is_attached(here):
    run = a_run(here)
    trainer = SimpleNamespace(state_dict=dict, load_state_dict=lambda state: None)

    def restore(attached):
        if attached:
            run.attach(trainer)
        run.restore()

    try:
        Trial(_ATTACH, restore, False, True).run()
    finally:
        run.finish("failed")


_ATTACH = "run.restore() needs a trainer: call run.attach(trainer) first"


def test_plugins_that_changed(here):
    def installed(version):
        own = {"kind": "loss", "name": "mine", "target": "own:loss", "distribution": "plugrl-a"}
        return [Record(**own, version=version)]

    run = a_run(here, installed("1.0"))
    run.finish("finished")

    def resumed(given):
        version, strict = given
        check_plugins(run.folder, installed(version), strict=strict)

    Trial(_CHANGED, resumed, ("2.0", True), ("1.0", True)).run()
    told = Read(r"set plugins\.strict=(\w+)", lambda value: ("2.0", value == "true"))
    Trial(_CHANGED, resumed, ("2.0", True), told).run()


_CHANGED = "the plugins of {} changed: {}; install what it began with or set plugins.strict"


def test_a_folder_that_is_not_writable(here):
    (here / "file").write_text("", encoding="utf-8")

    def below_a_file(key):
        a_run(here, **({key: "runs"} if key else {"runs_folder": "file/runs"})).finish("finished")

    Trial(_WRITABLE, below_a_file, None, Read(r"or set settings\.(\w+)")).run()


_WRITABLE = "is not writable ({}); change its permissions or set {}"


@pytest.mark.integration
def test_a_run_is_resumed_with_its_own_values(shelf, monkeypatch):
    monkeypatch.chdir(shelf)
    copy = shelf / "runs" / "own" / "20260101-000000-copy"
    original = folders.find("latest", Path("runs"))
    shutil.copytree(original, copy)
    config = (copy / "config.yaml").read_text(encoding="utf-8")

    def resume(edited):
        (copy / "config.yaml").write_text(edited(config), encoding="utf-8")
        check_resume(copy / "checkpoints", read_config(copy))

    try:
        Trial("or start a new run", resume, lambda text: f"{text}\nseed: 7\n", str).run()
    finally:
        shutil.rmtree(copy)


def scripted(here, text, **setup):
    (here / "setup.sh").write_text(text, encoding="utf-8")
    return exported_variables(here / "setup.sh", **setup)


_SCRIPTS = [
    ("write `return` for `exit`, and no `exec`", "exec true\n", "true\n"),
    ("correct it; plugrl validate --setup tries it", "false\n", "true\n"),
]


@pytest.mark.integration
@pytest.mark.parametrize(("says", "wrong", "right"), _SCRIPTS)
def test_a_setup_script(here, says, wrong, right):
    Trial(says, lambda text: scripted(here, text), wrong, right).run()


@pytest.mark.integration
def test_a_setup_script_needs_bash(here, monkeypatch):
    def on(path):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PATH", path)
            scripted(here, "true\n")

    Trial(_BASH, on, str(here), os.environ["PATH"]).run()


_BASH = "needs bash and env, which are not on the PATH; install them"


@pytest.mark.integration
def test_a_setup_script_has_more_time(here):
    (here / "setup.sh").write_text("sleep 0.5\n", encoding="utf-8")

    def prepared(key):
        section, name = (key or "settings.deadlines.setup_script").rsplit(".", 1)
        assert section == "settings.deadlines"
        settings = TEXT["settings"] | {"deadlines": {name: 600 if key else 0.05}}
        given = TEXT | {"settings": settings, "environment": {"setup_script": "setup.sh"}}
        prepare(given, setup=True)

    Trial(_TIME, prepared, None, Read(r"more with ([\w.]+),")).run()


_TIME = "allow more with settings.deadlines.setup_script, or do long"
#: What those tests say that try one remedy each.
ALONE = {
    *(
        _BEGIN,
        _OWN_FOLDER,
        _NOT_THERE,
        _COPY,
        _BROKEN,
        _GONE,
        _ATTACH,
        _CHANGED,
        _WRITABLE,
        _BASH,
        _TIME,
    ),
    *(says for says, _, _ in _SCRIPTS),
    "core/run/checkpoints/compatibility: or start a new run",
}
#: Texts that name no key, value or command.
REASONS = {
    "put the run folder on a disk that all machines share": "of several machines",
    "core/run/folder: make the run folder": "what was done when the disk failed",
    "core/run/checkpoints/folder: make the folder": "what was done when the disk failed",
    "core/run/lock: take the lock": "what was done when the disk failed",
    "core/run/records/journal: write down": "what was done when the disk failed",
    "core/run/records/jsonl_file: write a record": "what was done when the disk failed",
    "core/run/records/records: write the status": "what was done when the disk failed",
    "core/run/shutdown: run": "says how a run ended",
    "core/run/guards: lower the learning rate": "names no number: which helps depends on the run",
    "all rewards were equal in": "names no number: what helps depends on the data",
    "bytes{}; let it print less": "names nothing of the script",
    "; delete {} if it is damaged": "of torch's own files, which a GPU test damages",
}


def test_every_remedy_is_tried_or_names_nothing():
    assert untried("core/run", {each.says for each in TRIALS} | ALONE, REASONS) == []
