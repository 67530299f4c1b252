"""Whole runs whose rollouts are made in processes."""

import json
import os
import subprocess

import kills
import pytest
import yaml
from waiting import DEADLINE, wait_until

from plugrl.core.errors import PluginError, RunError
from plugrl.core.experiment import load_run, prepare, start
from plugrl.testing import tiny
from plugrl.testing.comparison import assert_equal_states, comparable_metrics

MINE = """
import os
import plugrl
from plugrl.core.text.rollout.worker import trajectory_of


@plugrl.register_rollout_worker("mine")
def mine(task, worker):
    tokenizer = task.tokenizers["policy"]
    prompt = tokenizer.encode(task.prompt)
    completion = task.ask_now("policy", prompt)
    trajectory = trajectory_of(task, "policy", prompt, completion)
    if task.prompt == os.environ["REFUSED"] and not task.is_val:
        raise OSError("not this one")
    return worker.judge(task, trajectory, tokenizer.decode(completion.tokens))
"""


def numbers(run):
    return [
        {k: v for k, v in row.items() if "/worker_" not in k} for row in comparable_metrics(run)
    ]


@pytest.fixture
def workers(own_processes):
    """The numbers of the worker processes that run for this test."""
    module = "plugrl.core.text.rollout.processes.process"
    return lambda: [pid for pid, words in own_processes().items() if module in words]


def gone_soon(running):
    return wait_until(lambda: not running())


@pytest.fixture
def tree(tmp_path):
    return tiny.config("self_hosted_grpo", tmp_path, {"rollout_worker": {"processes": 2}})


@pytest.mark.integration
@pytest.mark.parametrize(
    "trainer", ["self_hosted_grpo", pytest.param("sequence", marks=pytest.mark.integration)]
)
def test_a_run_in_processes_equals_one_in_the_driver(tmp_path, trainer, own_processes):
    from plugrl.trainers.sequence import SequenceTrainer

    sections = SequenceTrainer.conformance if trainer == "sequence" else {}
    runs = {}
    for count in (0, 2):
        (tmp_path / str(count)).mkdir()
        base = tiny.config(trainer, tmp_path / str(count), sections)
        base["rollout_worker"]["processes"] = count
        runs[count] = start(prepare(base))
    assert numbers(runs[0]) == numbers(runs[2])
    states = [runs[count].checkpoint()["trainer"] for count in (0, 2)]
    states = [s["child"] if trainer == "sequence" else s for s in states]
    assert_equal_states(states[1]["models"], states[0]["models"])
    assert any(row.get("rollout/worker_restarts") == 0 for row in runs[2].metrics)
    assert own_processes() == {}


@pytest.mark.integration
def test_a_function_registered_by_p_is_found_in_processes(tmp_path, tree):
    (tmp_path / "mine.py").write_text(MINE)
    tree["rollout_worker"]["type"] = "mine"
    tree["environment"] = {"variables": {"REFUSED": "ab"}}
    tree["data"]["batch_size"] = 4
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(tree))
    rows = []
    for count in (2, 0):
        options = ["-p", "mine.py", "train", "run.yaml", f"rollout_worker.processes={count}"]
        errors = kills.finish(*options, cwd=tmp_path)
        folder = max((tmp_path / "runs").glob("*/[0-9]*"), key=os.path.getmtime)
        rows.append(numbers(load_run(folder)))
        assert "an attempt is invalid: worker mine raised OSError: not this one" in errors
        log = (folder / "log.txt").read_text()
        assert 'raise OSError("not this one")' in log
    # A group whose members all fail is counted, and the others are trained on.
    assert rows[0] == rows[1]
    assert rows[0][1]["rollout/invalid"] == 0.25
    assert rows[0][1]["train/grad_norm"] > 0


@pytest.mark.integration
def test_processes_are_light_and_have_one_thread(tmp_path, tree):
    (tmp_path / "light.py").write_text(
        "import os\nimport sys\n\nfrom plugrl.core.text.rollout.worker import trajectory_of\n\n\n"
        "def light(task, worker):\n"
        "    prompt = task.tokenizers['policy'].encode(task.prompt)\n"
        "    trajectory = trajectory_of(task, 'policy', prompt, task.ask_now('policy', prompt))\n"
        "    heavy = {'torch', 'transformers', 'omegaconf'} & set(sys.modules)\n"
        "    trajectory.metrics['heavy'] = float(len(heavy))\n"
        "    trajectory.metrics['threads'] = float(os.environ['OMP_NUM_THREADS'])\n"
        "    return worker.judge(task, trajectory, 'a')\n"
    )
    tree["rollout_worker"] |= {
        "custom_rollout_worker_module_path": str(tmp_path / "light.py"),
        "custom_rollout_worker_class_name": "light",
    }
    last = start(prepare(tree)).last_metrics
    assert last["rollout/heavy"] == 0
    assert last["rollout/threads"] == 1


def test_an_async_worker_that_asks_like_a_plain_one_is_told(tmp_path, tree):
    (tmp_path / "mixed.py").write_text("async def mixed(task):\n    task.ask_now('policy', [2])\n")
    tree["rollout_worker"] |= {
        "custom_rollout_worker_module_path": str(tmp_path / "mixed.py"),
        "custom_rollout_worker_class_name": "mixed",
    }
    with pytest.raises(RunError, match="in an async one write `await task.ask"):
        start(prepare(tree))


def test_two_workers_of_one_name_are_refused(registry):
    def worker(task):
        raise NotImplementedError

    def other(task):
        raise NotImplementedError

    registry.register("rollout_worker", "twice", worker)
    with pytest.raises(PluginError, match="rollout_worker 'twice' is already registered by"):
        registry.register("rollout_worker", "twice", other)


def test_a_function_with_other_parameters_is_refused(tmp_path, registry):
    (tmp_path / "mine.py").write_text("def mine(a, b, c):\n    return None\n")
    with pytest.raises(PluginError, match=r"mine\(a, b, c\) has the wrong parameters; write mine"):
        registry.load_path("rollout_worker", tmp_path / "mine.py", "mine")


@pytest.mark.integration
def test_a_worker_whose_every_attempt_dies_ends_the_run(tmp_path, tree):
    (tmp_path / "dead.py").write_text("import os\n\n\ndef dead(task):\n    os._exit(3)\n")
    tree["rollout_worker"] |= {
        "custom_rollout_worker_module_path": str(tmp_path / "dead.py"),
        "custom_rollout_worker_class_name": "dead",
    }
    tree["runtime_monitor"] = {"max_worker_restarts": 3}
    reason = r"code 3 while it attempted problem \d in step \d; 4 worker processes have died"
    with pytest.raises(RunError, match=reason):
        start(prepare(tree))


@pytest.mark.integration
def test_a_worker_that_hangs_meets_the_deadline(tmp_path, tree, workers, own_processes):
    (tmp_path / "hangs.py").write_text(
        "import time\n\n\nasync def hangs(task):\n    time.sleep(300)\n"
    )
    tree["rollout_worker"] |= {
        "custom_rollout_worker_module_path": str(tmp_path / "hangs.py"),
        "custom_rollout_worker_class_name": "hangs",
    }
    # Longer than the start of processes takes on a busy machine.
    tree["settings"]["deadlines"] = {"validate": 8}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(tree), "utf-8")
    process = kills.start("train", "run.yaml", cwd=tmp_path, stderr=subprocess.PIPE)
    wait_until(lambda: len(workers()) == 2, process)
    _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 1
    assert "phase 'validate' after step 0 passed its deadline of 8 s" in errors
    assert gone_soon(own_processes)


@pytest.mark.parametrize("number", kills.tiers([1], [3]))
def test_killed_and_resumed_it_equals_the_uninterrupted_run(
    tmp_path, tree, workers, own_processes, number
):
    tree["trainer"]["total_train_steps"] = number * kills.MOST_LINES
    tree["settings"] |= {"checkpoint_every": 2, "keep_checkpoints": 3}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(tree), "utf-8")
    wanted = []
    for count in (0, 2):
        runs = tmp_path / f"straight{count}"
        options = (f"settings.runs_folder={runs}", f"rollout_worker.processes={count}")
        kills.finish("train", "run.yaml", *options, cwd=tmp_path)
        wanted.append(load_run(next(runs.glob("*/[0-9]*"))))
    assert numbers(wanted[0]) == numbers(wanted[1])

    runs = tmp_path / "killed"
    words = ["train", "run.yaml", f"settings.runs_folder={runs}"]
    for line, seconds in kills.moments(0, number, 0.3):
        process = kills.dying(line, seconds, *words, cwd=tmp_path)
        wait_until(lambda: len(workers()) == 2, process)
        kills.has_died(process)
        assert gone_soon(own_processes)
        (folder,) = runs.glob("*/[0-9]*")
        assert json.loads((folder / "status.json").read_text("utf-8"))["state"] != "done"
        words = ["resume", folder]
    kills.finish(*words, cwd=tmp_path)
    assert gone_soon(own_processes)
    got = load_run(folder)
    assert comparable_metrics(got) == comparable_metrics(wanted[1])
    for want in wanted:
        assert_equal_states(
            got.checkpoint()["trainer"]["models"], want.checkpoint()["trainer"]["models"]
        )
