"""Callbacks: what is one, what it is called with, and what is refused."""

import functools
import logging
import types

import pytest

from plugrl.core.errors import StopRun, UsageError
from plugrl.core.plugins.callbacks import as_callbacks
from plugrl.core.plugins.hooks import HookCaller
from plugrl.core.plugins.hookspecs import hookimpl

RUN = object()


def called(*callbacks, **options):
    """Call the end of step 3, as a run does."""
    caller = HookCaller(callbacks=as_callbacks(callbacks), **options)
    caller.call("plugrl_step_end", run=RUN, step=3, metrics={"loss": 0.5})
    return caller


class Recorder:
    def __init__(self):
        self.seen = []

    def plugrl_step_end(self, step, metrics):
        self.seen.append((step, dict(metrics)))

    def plugrl_run_end(self, outcome):
        self.seen.append(outcome)


def test_methods_are_hooks_without_a_mark():
    recorder = Recorder()
    caller = called(recorder)
    caller.call("plugrl_run_end", run=RUN, outcome="done")
    caller.call("plugrl_run_start", run=RUN)
    assert recorder.seen == [(3, {"loss": 0.5}), "done"]


def test_only_what_there_is_is_listened_to():
    caller = HookCaller(callbacks=as_callbacks([Recorder()]))
    assert caller.listens("plugrl_run_end")
    assert not caller.listens("plugrl_run_start")
    assert not HookCaller().listens("plugrl_run_end")


def test_marked_methods_and_modules_do_too():
    seen = []
    module = types.ModuleType("watch")

    @hookimpl
    def plugrl_step_end(run, **others):
        seen.append((run is RUN, sorted(others)))

    module.plugrl_step_end = plugrl_step_end
    called(module)
    # So does the function alone, by its name.
    called(plugrl_step_end)
    assert seen == [(True, ["metrics", "step"])] * 2


@pytest.mark.parametrize(
    "make",
    [
        lambda seen: lambda step, metrics: seen.append((step, metrics)),
        lambda seen: lambda metrics, step: seen.append((step, metrics)),
        lambda seen: lambda s, m: seen.append((s, m)),
        lambda seen: lambda s, m, more=None: seen.append((s, m)),
        lambda seen: lambda *both: seen.append(both),
        lambda seen: lambda step, metrics, *, run: seen.append((step, metrics)),
        lambda seen: functools.partial(lambda out, s, m: out.append((s, m)), seen),
    ],
)
def test_a_plain_function_gets_step_and_metrics(make):
    seen = []
    called(make(seen))
    assert seen == [(3, {"loss": 0.5})]


def test_they_are_called_in_their_order_and_get_copies():
    seen = []

    def first(step, metrics):
        metrics["loss"] = 7.0
        seen.append("first")

    def second(step, metrics):
        seen.append(metrics["loss"])

    called(first, second)
    assert seen == ["first", 0.5]


def test_stop_run_passes_after_the_others_were_called():
    seen = []

    def stops(step, metrics):
        raise StopRun("enough")

    with pytest.raises(StopRun, match="enough"):
        called(stops, lambda step, metrics: seen.append(step))
    assert seen == [3]


def test_a_failure_is_logged_once_and_counted(caplog):
    def fails(step, metrics):
        raise ValueError("oh")

    with caplog.at_level(logging.WARNING):
        caller = called(fails)
        caller.call("plugrl_step_end", run=RUN, step=4, metrics={})
    assert len(caplog.records) == 1
    assert "callback fails: hook plugrl_step_end failed: ValueError: oh" in caplog.text
    assert caller.failures == {("fails", "plugrl_step_end"): 2}


class Misspelt:
    def plugrl_step_ends(self): ...


class Early:
    def plugrl_register_components(self, registry): ...


class OfAnotherLibrary:
    def on_step_end(self, args, state, control): ...


class TakesMore:
    def plugrl_step_end(self, step, loss): ...


class Raises:
    @property
    def plugrl_step_end(self):
        raise OSError("not here")


class RaisesAtAnyName:
    def __getattr__(self, name):
        raise OSError("nowhere")


@pytest.mark.parametrize(
    ("callbacks", "said"),
    [
        ([Raises()], "callback of type Raises cannot be looked into: OSError: not here"),
        ([RaisesAtAnyName()], "of type RaisesAtAnyName cannot be looked into: OSError: nowhere"),
        ("f", "callbacks must be a list, not 'f'"),
        (print, "callbacks must be a list"),
        ([Recorder], "callback Recorder is a class; give an object of it, Recorder()"),
        ([Misspelt()], "unknown hook plugrl_step_ends; did you mean plugrl_step_end?"),
        ([Early()], "plugrl_register_components comes too late"),
        ([OfAnotherLibrary()], "callback OfAnotherLibrary has no hook; write an object with"),
        ([TakesMore()], "plugrl_step_end has no argument 'loss'"),
        ([lambda: 0], "has the wrong parameters; write an object with methods named as hooks"),
        ([lambda a, b, c: 0], "or a function f(step, metrics)"),
        ([3], "callback int has no hook"),
    ],
)
def test_what_is_none_is_refused_in_one_line(callbacks, said):
    with pytest.raises(UsageError) as caught:
        as_callbacks(callbacks)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
