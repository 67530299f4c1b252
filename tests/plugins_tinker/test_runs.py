"""Whole runs over servers of the Tinker API: what they learn, what stops them, how they go on."""

import json
import os
import shlex
import signal
import subprocess
from pathlib import Path

import forking
import pytest
import yaml
from servers import against
from waiting import DEADLINE, wait_until

import plugrl
from plugrl.core.errors import RunError
from plugrl.core.experiment import prepare, resume, start
from plugrl.core.plugins.hookspecs import hookimpl

pytest.importorskip("tinker")
SECRET = "tml-word-that-nobody-may-see"
#: A run that ends by itself, or is over after this many steps.
STEPS = 4
#: Seconds that a run waits for a server that is silent; a busy one answers within them.
PATIENCE = 20.0
#: Every second answer or so has a digit of these, so that a beginner's groups differ in reward.
LUCK = {"type": "regex", "pattern": "^[0-4]", "format_reward": 1.0}


def of(metrics, name):
    return [line[name] for line in metrics if name in line]


class Then:
    """A hook plugin that does something once the rollouts of a step are there."""

    def __init__(self, step, action):
        self.step, self.action = step, action

    @hookimpl
    def plugrl_rollouts_collected(self, run, step, trajectories, metrics):
        if step == self.step:
            self.action()


def started(config, step, action):
    """Train, and do something at a step."""
    experiment = prepare(config)
    experiment.plugins.manager.register(Then(step, action))
    return start(experiment)


def folder_of(config):
    (folder,) = Path(config["settings"]["runs_folder"]).glob("*/*")
    return folder


@pytest.fixture
def small(own_server, tree, tmp_path):
    """Makes the configuration of a run of three steps, each over the same problems."""

    def make(name):
        return tree(
            own_server, trainer__total_train_steps=3, data__batch_size=4,
            scenario__demonstrations=4, settings__runs_folder=str(tmp_path / name),
        )  # fmt: skip

    return make


def restart(server, **how):
    server.end()
    server.start(**how)


@pytest.mark.integration
@against("own_server")
def test_a_run_syncs_and_goes_on_where_its_session_was_lost(own_server, small):
    whole = plugrl.train(small("whole"))
    losses = of(whole.metrics, "train/loss")
    assert len(losses) == 3
    assert losses[-1] < losses[0]
    parities = of(whole.metrics, "sync/parity")
    assert len(parities) == 3
    assert max(parities) < 1e-4
    # Sessions end with a server; what was saved does not.
    config = small("restarted")
    with pytest.raises(RunError, match=f"the tinker service at {own_server.url}") as caught:
        started(config, 2, lambda: restart(own_server))
    # What holds the lost session, such as a notebook, does not keep a resume from one of its own.
    assert caught.value.__traceback__
    on = resume(folder_of(config))
    assert of(on.metrics, "train/loss") == pytest.approx(losses, abs=1e-5)
    assert [m["step"] for m in on.metrics if "train/loss" in m] == [1, 2, 3]


@against("own_server")
def test_a_resume_says_that_the_service_kept_nothing_of_the_run(own_server, small):
    config = small("lost")
    with pytest.raises(RunError):
        started(config, 1, lambda: restart(own_server, fresh=True))
    with pytest.raises(RunError, match="has lost what is needed to load tinker://"):
        resume(folder_of(config))


@pytest.mark.parametrize("server", ["beginner"], indirect=True)
def test_rewards_move_the_weights_that_answers_are_sampled_from(server, tree):
    config = tree(server, "remote_api_grpo", rollout_worker__evaluator=LUCK)
    config["data"].update(batch_size=2, rollout_repeat_n=8)
    config["models"]["policy"]["train"]["learning_rate"] = 0.05
    run = plugrl.train(config | {"trainer": {"type": "remote_api_grpo", "total_train_steps": 4}})
    rewards = of(run.metrics, "rollout/reward")
    assert rewards[-1] > rewards[0] + 0.2, rewards
    # One optimizer step a batch: the sampler's weights are the trained ones.
    assert max(of(run.metrics, "train/kl_to_sampler")) < 1e-6
    assert max(of(run.metrics, "sync/parity")) < 1e-4


def phases(config, teacher_steps, student_steps, **data):
    """Distil a model that a first phase taught into its base."""
    policy, worker = config["models"].pop("policy"), config.pop("rollout_worker")
    own = config.pop("data")
    service, train = policy["inference"], policy["train"]
    config["models"] = {"policy": {"source": policy["source"], "inference": service}}
    config["models"]["teacher"] = dict(config["models"]["policy"])
    config["rollout_worker"] = {**worker, "type": "single_turn"}
    config["trainer"] = {
        "type": "sequence",
        "phases": [
            {
                "name": "teacher",
                "models": {"teacher": {"train": train}},
                "data": {
                    **own, "split": "demonstrations", "batch_size": 64, "rollout_repeat_n": 1,
                },
                "rollout_worker": {"type": "demonstration", "model": "teacher"},
                "trainer": {
                    "type": "remote_api_cross_entropy", "total_train_steps": teacher_steps,
                },
            },
            {
                "name": "student",
                "models": {"policy": {"train": {**train, "learning_rate": 0.0005}}},
                "data": {"split": "train", "rollout_repeat_n": 4, **data},
                "trainer": {"type": "remote_api_opd", "total_train_steps": student_steps},
            },
        ],
    }  # fmt: skip
    return config


@pytest.mark.integration
@pytest.mark.parametrize("server", ["beginner"], indirect=True)
def test_a_phase_distils_what_the_one_before_trained(server, tree):
    config = tree(server, "sequence", settings__checkpoint_every=0)
    run = plugrl.train(phases(config, 2, 2, batch_size=1))
    gaps = of(run.metrics, "train/teacher_kl")
    assert len(gaps) == 2
    assert gaps[0] > 0.05, "the student was the teacher from the beginning"


SLOW = (pytest.mark.slow, pytest.mark.timeout(900))


class Started:
    """A command of plugrl in a process of its own."""

    def __init__(self, folder, *words):
        self.process = forking.Process(
            ["-m", "plugrl", *words],
            cwd=folder,
            env={**os.environ, "TINKER_API_KEY": SECRET},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def end(self):
        """Wait; gives the exit code and all that was printed."""
        text, _ = self.process.communicate(timeout=DEADLINE)
        return self.process.returncode, text


def lines(folder):
    file = folder / "metrics.jsonl"
    read = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [line for line in read if "train/loss" in line]


def until_step(begun, runs, step):
    """Wait until a run has ended a step; gives its folder."""

    def found():
        return [f for f in runs.glob("*/*") if any(line["step"] >= step for line in lines(f))]

    return wait_until(found, begun.process)[0]


def numbers(folder):
    """(step, loss, mean log-probability) of every step."""
    return [(m["step"], m["train/loss"], m["train/log_prob"]) for m in lines(folder)]


def assert_same(found, expected):
    """The same steps, each once, over the same items, with the same weights."""
    assert [row[0] for row in found] == [row[0] for row in expected]
    for row, other in zip(found, expected, strict=True):
        assert row[1:] == pytest.approx(other[1:], abs=1e-5), row[0]


@pytest.fixture
def begin(own_server, tree, tmp_path):
    """Begins a run of this name in a process of its own; gives that, and where its folder is."""

    def one(name, **how):
        runs = tmp_path / name
        config = tree(
            own_server, trainer__total_train_steps=STEPS, settings__runs_folder=str(runs), **how
        )
        (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
        return Started(tmp_path, "train", "run.yaml"), runs

    return one


def uninterrupted(begin):
    """The numbers of a whole run."""
    begun, runs = begin("whole")
    code, text = begun.end()
    assert code == 0, text[-2000:]
    found = numbers(*runs.glob("*/*"))
    assert [row[0] for row in found] == list(range(1, STEPS + 1))
    return found


def resumed(folder):
    """The numbers of a run that goes on and comes to its end."""
    code, text = Started(folder.parents[2], "resume", folder).end()
    assert code == 0, text[-2000:]
    return numbers(folder)


@against("own_server", pytest.mark.integration, pytest.mark.timeout(900))
def test_a_run_goes_on_after_it_was_killed(own_server, begin, tmp_path):
    begun, runs = begin("killed")
    folder = until_step(begun, runs, 2)
    # No word, no clean end.
    os.killpg(begun.process.pid, signal.SIGKILL)
    begun.process.wait()
    assert_same(resumed(folder), uninterrupted(begin))
    for file in tmp_path.rglob("*"):
        if file.is_file() and "server" not in file.name and "state" not in str(file.parent):
            assert SECRET.encode() not in file.read_bytes(), file


@against("own_server", *SLOW)
def test_a_run_goes_on_after_its_server_was_silent(own_server, begin):
    begun, runs = begin("hung", patience=PATIENCE)
    folder = until_step(begun, runs, 2)
    # It accepts connections and does not answer.
    own_server.halt()
    code, text = begun.end()
    own_server.go_on()
    assert code == 1, text[-2000:]
    assert f"the tinker service at {own_server.url} was silent for" in text
    assert "does not answer" in text
    assert f"plugrl resume {shlex.quote(str(folder))}" in text
    assert_same(resumed(folder), uninterrupted(begin))


@against("own_server", *SLOW)
def test_a_run_goes_on_after_its_server_died_and_came_back(own_server, begin):
    begun, runs = begin("dead", patience=PATIENCE)
    folder = until_step(begun, runs, 2)
    own_server.end()
    code, text = begun.end()
    assert code == 1, text[-2000:]
    assert own_server.url in text
    assert "Connection refused" in text
    # With what it had saved.
    own_server.start()
    assert_same(resumed(folder), uninterrupted(begin))


@against("server", *SLOW, model="adder")
def test_supervised_training_is_right_more_often(server, tree):
    run = plugrl.train(
        tree(
            server, data__batch_size=64, scenario__demonstrations=3000,
            scenario__validation=100, trainer__total_train_steps=30, validate={"every": 30},
            settings__checkpoint_every=0,
        )
    )  # fmt: skip
    scores = of(run.metrics, "validation/exact_match")
    assert scores[-1] >= scores[0] + 0.1, scores
    parities = of(run.metrics, "sync/parity")
    assert len(parities) == 30
    assert max(parities) < 1e-4


@against("server", *SLOW, model="adder")
def test_rewards_alone_teach_too(server, tree):
    run = plugrl.train(
        tree(
            server, "remote_api_grpo", data__batch_size=16, data__rollout_repeat_n=8,
            models__policy__train__lora_rank=16, models__policy__train__learning_rate=0.002,
            rollout_worker__evaluator={**LUCK, "pattern": "[0-4]$"},
            trainer__total_train_steps=15, settings__checkpoint_every=0,
        )
    )  # fmt: skip
    rewards = of(run.metrics, "rollout/reward")
    assert len(rewards) == 15
    # About half of the answers have the reward at first, so that the mean of two steps, of 128
    # answers each, has a standard error of 0.03. Of right sums there are too few: what 60 steps add
    # to them is no more than what is left to luck.
    assert sum(rewards[-5:]) / 5 > sum(rewards[:2]) / 2 + 0.2, rewards
    kl = of(run.metrics, "train/kl_to_sampler")
    assert max(kl) < 1e-6, "one optimizer step a batch: the sampler's weights are the trained ones"


@against("server", *SLOW, model="adder")
def test_a_student_learns_from_a_teacher_of_an_earlier_phase(server, tree):
    config = tree(server, "sequence", settings__checkpoint_every=0, scenario__demonstrations=3000)
    run = plugrl.train(phases(config, 25, 15, batch_size=16, rollout_repeat_n=16))
    gaps = of(run.metrics, "train/teacher_kl")
    assert len(gaps) == 15
    assert gaps[0] > 0.05, "the student was the teacher from the beginning"
    # The mean of five steps fell from 0.12 to 0.07 on an installed server, from 0.21 to 0.10 on the
    # other one. At a learning rate of 0.002 it stays above 0.12 on both: there the other one begins
    # with a rise, for it trains the last layer too, and what looked like learning undid that.
    assert sum(gaps[-5:]) < 0.8 * sum(gaps[:5]), gaps
