"""What a worker process is told, and what it makes of it."""

import asyncio
import logging
import os
import signal
from dataclasses import replace

import pytest

from plugrl.core.config.check import configure
from plugrl.core.errors import ConfigError, PluginError, RunError
from plugrl.core.factory import Factory
from plugrl.core.plugins.registry import Registry
from plugrl.core.text.rollout.fibers import Fibers, wait_for
from plugrl.core.text.rollout.function_worker import as_worker
from plugrl.core.text.rollout.processes.handle import ProcessHandle, WorkerDied
from plugrl.core.text.rollout.processes.messages import Sent, pack_error, unpack_error, worker_setup
from plugrl.core.text.rollout.worker import RolloutWorker
from plugrl.plugins.transformers.tokenizer import HubTokenizer, character_tokenizer


@pytest.fixture
def handle():
    handle = ProcessHandle("worker-1")
    yield handle
    handle.kill()


def setup_of(name):
    registry = Registry()
    record = registry.resolve("rollout_worker", name)
    section = configure(registry.load(record), {"processes": 1, "evaluator": "exact_match"})
    return worker_setup(Factory(registry, {"rollout_worker": record}), section, {})


def test_a_process_builds_worker_and_evaluator_from_records(handle):
    handle.prepare(setup_of("single_turn"))
    assert handle.receive() == ("ready",)


def test_another_version_is_an_error(handle):
    setup = setup_of("single_turn")
    handle.prepare(replace(setup, worker=replace(setup.worker, version="0.0.1")))
    name, data, trace = handle.receive()
    assert name == "fatal"
    error = unpack_error(data)
    assert isinstance(error, PluginError)
    assert "has version" in str(error)
    assert "install plugrl==0.0.1 in the environment of every process" in str(error)
    assert "processes/process.py" in trace


def test_a_process_tells_how_it_died(handle):
    handle.prepare(setup_of("single_turn"))
    handle.receive()
    handle._process.send_signal(signal.SIGABRT)
    with pytest.raises(WorkerDied):
        handle.receive()
    assert handle.end() == "was ended by SIGABRT"


def test_a_process_ignores_what_the_terminal_sends_to_the_group_of_the_driver(handle):
    assert os.getpgid(handle.pid) == handle.pid != os.getpgid(0)


@pytest.mark.parametrize(
    "tokenizer", [character_tokenizer("ab+"), HubTokenizer(character_tokenizer("ab+").wrapped)]
)
def test_tokenizers_travel(tokenizer):
    copy = Sent.pack(tokenizer).unpack()
    assert type(copy) is type(tokenizer)
    assert copy.encode("a+b") == tokenizer.encode("a+b") == [2, 4, 3]
    assert copy.decode([2, 4, 3]) == "a+b"
    assert (copy.pad_token_id, copy.eos_token_id) == (0, 1)


class Fussy(RunError):
    def __init__(self, code, text):
        super().__init__(f"{text} ({code})")


def test_errors_travel_or_say_the_same():
    copy = unpack_error(pack_error(ConfigError("two faults", ["a", "b"])))
    assert type(copy) is ConfigError
    assert copy.faults == ("a", "b")
    copy = unpack_error(pack_error(Fussy(3, "engine is gone")))
    assert (type(copy), str(copy)) == (RunError, "engine is gone (3)")
    copy = unpack_error(pack_error(type("Odd", (Exception,), {})("here")))
    assert (type(copy), str(copy)) == (RuntimeError, "Odd: here")


def test_log_messages_below_the_level_of_the_driver_are_not_shown(handle, caplog):
    with caplog.at_level(logging.WARNING, "plugrl.agents"):
        handle.log("plugrl.agents", logging.INFO, "not shown", "")
        handle.log("plugrl.agents", logging.ERROR, "shown", "")
    assert [record.getMessage() for record in caplog.records] == ["worker-1: shown"]


def test_a_function_is_one_class_with_its_own_name_and_config():
    def mine(task):
        """Does it."""

    async def other(task, worker):
        return worker.config.model

    made = as_worker(mine)
    assert as_worker(mine) is made
    assert issubclass(made, RolloutWorker)
    assert (made.__name__, made.__doc__, made.__module__) == ("mine", "Does it.", __name__)
    assert as_worker(made) is made
    assert asyncio.run(as_worker(other)({"model": "writer"}).rollout(None)) == "writer"


def test_plain_functions_take_turns():
    inside, most = 0, 0

    async def answer():
        await asyncio.sleep(0)
        return 1

    def work():
        nonlocal inside, most
        total = 0
        for _ in range(50):
            inside += 1
            most = max(most, inside)
            sum(range(500))
            inside -= 1
            total += wait_for(answer(), "")
        return total

    async def all_of_them():
        fibers = Fibers()
        return await asyncio.gather(*(fibers.run(work) for _ in range(8)))

    assert asyncio.run(all_of_them()) == [50] * 8
    assert most == 1
