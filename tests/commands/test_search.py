"""``plugrl sweep --with``: a searcher proposes, hopeless runs end, what was killed goes on."""

import errno
import itertools
import json
import os
import signal

import forking
import optuna
import pytest
import yaml

import plugrl

# So that no test pays for the import.
import plugrl.plugins.transformers.train_service  # noqa: F401
import plugrl.trainers.self_hosted_grpo  # noqa: F401
from plugrl.core.config.check import configure
from plugrl.core.config.schemas.sweep import ParameterConfig
from plugrl.core.config.sources.compose import compose
from plugrl.core.errors import ConfigError, RunError, UsageError
from plugrl.core.searched_sweep import SearchedSweep, override
from plugrl.core.searcher import Searcher, Trial
from plugrl.plugins.optuna.searcher import JOURNAL, OptunaSearcher
from plugrl.testing import tiny

SPACE = {
    "models.policy.train.learning_rate": {"type": "float", "low": 1e-5, "high": 1e-2, "log": True},
    "data.rollout_repeat_n": {"type": "choice", "values": [2, 3]},
}


@pytest.fixture
def file(tmp_path):
    return written(tmp_path, {"space": SPACE})


def written(folder, sweep, **sections):
    tree = tiny.config("self_hosted_grpo", folder)
    path = folder / "exp.yaml"
    path.write_text(yaml.safe_dump(tiny.merged(tree, {"sweep": sweep, **sections})))
    return path


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"low": 1, "high": 1}, "is 1, which is not below high, 1"),
        ({"low": 1}, "needs low and high"),
        ({"low": 0, "high": 1, "log": True}, "needs a low above 0, not 0"),
        ({"type": "int", "low": 0.5, "high": 2}, "whole numbers"),
        ({"type": "int", "low": 0, "high": 1e20}, "must be between"),
        ({"type": "choice"}, "a choice needs values"),
        ({"type": "choice", "values": [1, 1]}, "one value twice"),
        ({"type": "choice", "values": [[1]]}, "write numbers, texts, true or null"),
        ({"type": "choice", "values": [1], "low": 1}, "neither low nor high"),
        ({"values": [1, 2]}, "values are of a choice"),
        ({"type": "flaot", "low": 1, "high": 2}, "float"),
        ({"low": 1, "hihg": 2}, "hihg"),
    ],
)
def test_spaces_that_are_slips(tmp_path, section, said):
    path = written(tmp_path, {"space": {"seed": section}})
    with pytest.raises(ConfigError, match=said) as caught:
        SearchedSweep(path, [], searcher="optuna", trials=1)
    assert "sweep.space.seed" in str(caught.value).replace("[", ".").replace("]", "")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "value", [1e-05, 0.1, 3, -2, True, None, "a b", "1e-3", "true", "ä'\"", ""]
)
def test_a_value_reaches_the_configuration_as_it_is(value):
    tree = compose({"a": {"b": "before"}}, [override("a.b", value)]).tree
    assert (type(tree["a"]["b"]), tree["a"]["b"]) == (type(value), value)


@pytest.mark.parametrize(
    ("sweep", "given", "said"),
    [
        ({}, {}, "has no sweep.space"),
        ({"space": {"seed": {"low": 0.5, "high": 2}}}, {}, r"sweep\.space: seed=0\.5: "),
        ({"space": {"sede": {"type": "int", "low": 1, "high": 2}}}, {}, "did you mean seed"),
        ({"space": SPACE}, {"searcher": "optunna"}, "did you mean optuna"),
        ({"space": SPACE, "searcher": {"sampler": "tpo"}}, {}, "sampler"),
        ({"space": SPACE}, {"metric": "validation/rewrd"}, "validation/reward"),
        ({"space": SPACE}, {"trials": 1001}, "1000 are possible"),
    ],
)
def test_searches_that_are_slips(tmp_path, sweep, given, said):
    path = written(tmp_path, sweep)
    with pytest.raises((ConfigError, UsageError), match=said):
        SearchedSweep(path, [], **{"searcher": "optuna", "trials": 1, **given})
    assert not list(tmp_path.glob("runs/*/*"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--with", "optuna"], "--with needs --trials N"),
        (["--with", "optuna", "--trials", "2", "--seeds", "2"], "and no --seeds"),
        (["--with", "optuna", "--trials", "2", "seed=1,2"], "a choice of sweep.space"),
        (["--with", "optuna", "--trials", "2", "--metric", "a/b", "--metric", "c/d"], "one metric"),
        (["--trials", "2"], "add --with optuna"),
        (["--name", "a"], "add --with optuna"),
    ],
)
def test_words_that_do_not_go_together(file, call, words, said):
    code, _, err = call("sweep", "exp.yaml", *words)
    assert (code, len(err.splitlines())) == (2, 1)
    assert said in err


def test_a_sweep_goes_on_as_it_was_begun_or_not_at_all(file, tmp_path):
    given = {"searcher": "optuna", "trials": 2}
    SearchedSweep(file, [], **given)
    # What changes nothing of the runs may change.
    SearchedSweep(file, ["settings.keep_checkpoints=1"], searcher="optuna", trials=9)
    with pytest.raises(UsageError, match=r"data\.batch_size 2, now 1\b.*another --name"):
        SearchedSweep(file, ["data.batch_size=1"], **given)
    with pytest.raises(UsageError, match="metric None, now validation/reward"):
        SearchedSweep(file, [], metric="validation/reward", **given)
    SearchedSweep(file, ["data.batch_size=1"], name="other", **given)
    folder = tmp_path / "runs/.sweeps"
    assert {path.name for path in folder.iterdir()} == {"conformance", "other"}
    (folder / "other/sweep.json").write_text("{")
    with pytest.raises(UsageError, match="cannot be read"):
        SearchedSweep(file, [], name="other", **given)


@pytest.mark.parametrize(
    "sweep",
    [
        "{space: {seed: {type: int, low: 0, high: 9}}}",
        "{space: {seed: {type: choice, values: [32, 64]}}}",
    ],
)
def test_what_messages_recommend_helps(tmp_path, sweep):
    path, given = written(tmp_path, {}), {"searcher": "optuna", "trials": 1}
    with pytest.raises(UsageError) as caught:
        SearchedSweep(path, [], **given)
    if "int" in sweep:
        assert str(caught.value).endswith(f"such as sweep: {sweep}")
    assert len(SearchedSweep(path, [f"sweep={sweep}"], **given).space) == 1
    with pytest.raises(UsageError, match="give this one another --name"):
        SearchedSweep(path, [f"sweep={sweep}", "data.batch_size=1"], **given)
    SearchedSweep(path, [f"sweep={sweep}", "data.batch_size=1"], name="another", **given)


def searcher(folder, maximize=True, **options):
    made = OptunaSearcher(configure(OptunaSearcher, {"type": "optuna", **options}))
    made.open(folder, {"a": ParameterConfig(low=0, high=1)}, maximize=maximize, seed=0)
    return made


@pytest.mark.parametrize("maximize", [True, False])
def test_optuna_ends_what_is_below_the_median(tmp_path, maximize):
    made = searcher(tmp_path, maximize, pruner_startup_trials=3, pruner_warmup_steps=1)
    sign = 1 if maximize else -1
    for height in (1.0, 2.0, 3.0):
        trial = made.ask()
        ends = [made.report(trial.number, step, sign * height) for step in (1, 2, 3)]
        assert ends == [False, False, False]
        made.tell(trial.number, "done", sign * height)
    # The median is 2, and in the first step nothing ends.
    for height, expected in ((1.9, [False, True]), (2.1, [False, False])):
        number = made.ask().number
        assert [made.report(number, step, sign * height) for step in (1, 2)] == expected


def test_optuna_prunes_nothing_unless_it_is_to(tmp_path):
    made = searcher(tmp_path, pruner="none")
    for height in range(8, 0, -1):
        number = made.ask().number
        assert not any(made.report(number, step, float(height)) for step in (1, 2, 3))
        made.tell(number, "done", float(height))


def test_its_study_is_read_by_optuna_itself(tmp_path):
    made = searcher(tmp_path)
    for value in (0.25, 0.75, 0.5):
        made.tell(made.ask().number, "done", value)
    storage = optuna.storages.JournalStorage(
        optuna.storages.journal.JournalFileBackend(str(tmp_path / "optuna.journal"))
    )
    study = optuna.load_study(study_name="sweep", storage=storage)
    assert (study.best_trial.number, study.best_value) == (1, 0.75)


class Scripted(Searcher):
    """Proposes the seeds 0, 1, ... and ends the trials that it is told to, in memory."""

    hopeless: tuple = ()

    def open(self, folder, space, *, maximize, seed):
        self.all = []

    def trials(self):
        return self.all

    def ask(self):
        self.all.append(Trial(len(self.all), {"seed": len(self.all)}))
        return self.all[-1]

    def report(self, number, step, value):
        return number in self.hopeless

    def tell(self, number, state, value=None):
        self.all[number] = Trial(number, self.all[number].values, state, value)


@pytest.mark.integration
def test_a_pruned_run_ends_and_the_best_one_is_marked(tmp_path, monkeypatch):
    plugrl.register_searcher("scripted")(Scripted)
    monkeypatch.setattr(Scripted, "hopeless", (1,))
    # Its metric is the number of tokens a sequence, which the seed decides.
    path = written(tmp_path, {"space": {"seed": {"type": "int", "low": 0, "high": 9}}})
    sweep = SearchedSweep(path, ["trainer.total_train_steps=3"], searcher="scripted", trials=3)
    assert [one.state for one in sweep.train()] == ["done", "pruned", "done"]
    runs = [plugrl.load_run(sweep.run_of(number)) for number in range(3)]
    assert [run.status["state"] for run in runs] == ["done"] * 3
    assert [run.status["step"] for run in runs] == [3, 1, 3]
    assert [run.config.seed for run in runs] == [0, 1, 2]
    rewards = [runs[number].last_metrics["validation/reward"] for number in (0, 2)]
    assert [sweep.trials()[number].value for number in (0, 2)] == rewards
    best = (0, 2)[rewards.index(max(rewards))]
    marks = [json.loads((run.folder / "sweep.json").read_text()) for run in runs]
    assert [mark["best"] for mark in marks] == [number == best for number in range(3)]
    found = json.loads((sweep.folder / "best.json").read_text())
    assert (found["trial"], found["run"]) == (best, str(runs[best].folder))


@pytest.fixture
def searched(tmp_path):
    """A sweep with one trial, as another process opens it."""
    path = written(tmp_path, {"space": {"seed": {"type": "int", "low": 0, "high": 9}}})

    def opened(trials, **given):
        return SearchedSweep(
            path, ["trainer.total_train_steps=1"], **{"searcher": "optuna", **given}, trials=trials
        )

    assert [one.state for one in opened(1).train()] == ["done"]
    return opened


def test_a_journal_that_was_cut_short_loses_its_last_line_alone(searched):
    journal = searched(1).folder / JOURNAL
    whole = journal.read_bytes()
    with open(journal, "ab") as file:
        # As an append that a kill or a full disk ended.
        file.write(whole[: whole.index(b"\n") // 2])
    sweep = searched(2)
    assert journal.read_bytes().startswith(whole)
    assert all(json.loads(line) for line in journal.read_bytes().splitlines())
    assert [one.state for one in sweep.train()] == ["done"]
    assert [one.state for one in searched(2).trials()] == ["done", "done"]


@pytest.mark.parametrize("line", [b"null\n", b"{}\n", b"[]\n", b'{"op_code": 99}\n', b"{\n{\n"])
def test_a_damaged_journal_is_one_error_that_names_its_folder(searched, line):
    folder = searched(1).folder
    (folder / JOURNAL).write_bytes(line)
    with pytest.raises(RunError, match="damaged, give the sweep another --name") as caught:
        searched(2)
    assert folder.name in str(caught.value)


@pytest.mark.parametrize("text", ["", "null", "[]", "{", "\xff", "[" * 100_000, '{"run": [1]}'])
def test_a_damaged_note_of_a_trial_is_none(searched, text):
    sweep = searched(1)
    (sweep.folder / "trial-0000" / "trial.json").write_text(text, encoding="latin-1")
    assert sweep.run_of(0) is None
    assert [one.state for one in searched(2).train()] == ["done"]


@pytest.mark.parametrize(
    ("method", "given", "said"),
    [
        ("ask", None, "the searcher proposed NoneType, which is no Trial"),
        ("ask", Trial(0, {"sede": 1}), "sede=1, outside of its space"),
        ("ask", KeyError("k"), "Scripted.ask raised KeyError: 'k'"),
        ("tell", ZeroDivisionError("z"), "Scripted.tell raised ZeroDivisionError: z"),
        ("trials", TypeError("t"), "Scripted.trials raised TypeError: t"),
        ("open", RecursionError("r"), "Scripted.open raised RecursionError: r"),
        ("tell", OSError(errno.ENOSPC, "full"), "cannot keep the trials .* free some space"),
    ],
)
def test_a_searcher_that_fails_is_named(tmp_path, monkeypatch, method, given, said):
    def fail(*_, **__):
        if isinstance(given, Exception):
            raise given
        return given

    plugrl.register_searcher("scripted")(Scripted)
    monkeypatch.setattr(Scripted, method, fail)
    path = written(tmp_path, {"space": {"seed": {"type": "int", "low": 0, "high": 9}}})
    words = ["trainer.total_train_steps=1"]
    with pytest.raises(RunError, match=said):
        list(SearchedSweep(path, words, searcher="scripted", trials=1).train())


def test_a_fault_in_an_end_of_the_space_is_said_once(tmp_path, call):
    written(tmp_path, {"space": {"data": {"type": "int", "low": 0, "high": 1}}})
    code, _, err = call("sweep", "exp.yaml", "--with", "optuna", "--trials", "1")
    assert (code, err.count("must be a mapping")) == (2, 1), err
    assert err.startswith("error: sweep.space: data=0: data ")


KILLED = """
import os, signal
from plugrl import EvaluationRunResult, Evaluator

calls = 0


class Judge(Evaluator):
    def evaluate(self, data, evaluation_target):
        global calls
        calls += 1
        if calls == int(os.environ.get("DIES_AT", 0)):
            os.kill(os.getpid(), signal.SIGKILL)
        return EvaluationRunResult(reward=float(len(evaluation_target.final_answer)))
"""


@pytest.mark.integration
def test_a_sweep_that_is_killed_ends_as_one_that_was_not(tmp_path):
    tables = {}
    for name, deaths in (("whole", []), ("killed", ["30", "50"])):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "judge.py").write_text(KILLED)
        path = written(folder, {"space": SPACE}, trainer={"total_train_steps": 2})
        tree = yaml.safe_load(path.read_text())
        del tree["rollout_worker"]["evaluator"]
        tree["rollout_worker"]["evaluator_module_path"] = "judge.py:Judge"
        path.write_text(yaml.safe_dump(tree))
        command = ["-m", "plugrl", "sweep", "exp.yaml", "--with", "optuna", "--trials", "4"]
        for death in deaths:
            done = forking.run(command, cwd=folder, env={**os.environ, "DIES_AT": death})
            assert done.returncode == -signal.SIGKILL, done.stderr
        done = forking.run([*command, "--json"], cwd=folder, env=dict(os.environ))
        assert done.returncode == 0, done.stderr
        tables[name] = json.loads(done.stdout)
        # No trial was trained twice: a killed one went on in its own run.
        assert len(list(folder.glob("runs/conformance/*"))) == 4
    runs = [[row.pop("run") for row in rows] for rows in tables.values()]
    assert all(itertools.chain(*runs))
    assert tables["killed"] == tables["whole"]
    assert [row["state"] for row in tables["whole"]] == ["done"] * 4


@pytest.mark.integration
def test_several_processes_share_the_trials(file, tmp_path, call):
    code, out, err = call(
        "sweep", "exp.yaml", "--with", "optuna", "--trials", "4", "--workers", "2", "--json"
    )
    assert code == 0, err
    rows = json.loads(out)
    assert [row["state"] for row in rows] == ["done"] * 4
    assert len({row["run"] for row in rows}) == 4
    assert [row["best"] for row in rows].count("*") == 1
    code, out, _ = call("runs", "list", "--json")
    assert code == 0
    assert [row["sweep"].endswith("best") for row in json.loads(out)].count(True) == 1
