"""The service ``fsdp`` with two ranks: gradients, trajectories and states against ``local``."""

import copy
import ctypes
import os
import resource
import signal
import socket
import struct
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from here import ROWS, SIZES, batch, local, loss, moments, spec

from plugrl.core.config.view import ConfigView
from plugrl.core.errors import RunError
from plugrl.core.run.checkpoints import checkpoint
from plugrl.core.run.process import determinism
from plugrl.plugins.distributed.plan import DevicePlan
from plugrl.plugins.transformers.model_shape import ModelShape
from plugrl.testing.suite.test_train_service import TrainServiceContract

#: The number of a system call, and a place in ``struct tcp_info`` of Linux.
PIDFD_GETFD, BYTES_RECEIVED = 438, 128

#: What a plan reads of a train service.
TRAIN = {"optimizer": "adamw", "master_weights": "auto"}
SPLIT = {"micro_batch_size": 2, "head_chunk_tokens": 3}
CASES = {
    "plain": (spec(), {}),
    "tied, in micro-batches": (spec("tied"), {**SPLIT, "value_head": True}),
    "padded, computed again": (spec("gemma2"), {"gradient_checkpointing": True, **SPLIT}),
    "copies on each": (spec(), {"shard": "none", "value_head": True}),
    "split within one machine": (spec(), {"shard": "hybrid", "value_head": True}),
    "adapter": (spec(adapter={}), {"value_head": True}),
}


def without(options):
    return {name: value for name, value in options.items() if name != "shard"}


def step(service, options, rows=ROWS):
    metrics = service.forward_backward(batch(rows), loss(options))
    return metrics, service.optimizer_step()


def assert_close(one, other, atol):
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(other[name].float(), value.float(), rtol=0, atol=atol)


@pytest.mark.integration
@pytest.mark.parametrize("case", CASES)
def test_the_gradient_is_that_of_one_process(ranks, case):
    model, options = CASES[case]
    ours, expected = ranks(model, options), local(model, without(options))
    found, wanted = step(ours, options), step(expected, options)
    assert found[0].keys() == wanted[0].keys()
    for name, (total, count) in wanted[0].items():
        assert found[0][name] == (pytest.approx(total, rel=1e-6), count)
    assert found[1]["grad_norm"] == pytest.approx(wanted[1]["grad_norm"], rel=1e-6)
    # A tenth of the clipped gradient each; so is the bound.
    assert_close(moments(expected), moments(ours), 1e-7)


@pytest.mark.integration
@pytest.mark.parametrize(
    "case",
    [
        "tied, in micro-batches",
        *(pytest.param(case, marks=pytest.mark.slow) for case in ("copies on each", "adapter")),
    ],
)
def test_weights_that_are_gathered_layer_by_layer_give_the_same_gradient(ranks, case):
    model, options = CASES[case]
    ours = ranks(model, {**options, "reshard_after_forward": True})
    expected = local(model, without(options))
    for _ in range(2):
        step(ours, options)
        step(expected, options)
    assert_close(moments(expected), moments(ours), 2e-7)
    found, wanted = (each.compute_log_prob(batch()) for each in (ours, expected))
    torch.testing.assert_close(found, wanted, rtol=0, atol=2e-5)


@pytest.mark.integration
def test_a_model_with_an_adapter_is_exported_and_trained_on(ranks, tmp_path):
    from safetensors.torch import load_file

    from plugrl.plugins.transformers.loading import load_tokenizer

    tokenizer = load_tokenizer(spec())
    ours, expected = (make(spec(adapter={}), {}) for make in (ranks, local))
    for service, folder in ((ours, "ours"), (expected, "expected")):
        step(service, {})
        service.export(tmp_path / folder, tokenizer)
        step(service, {})
    assert_close(moments(expected), moments(ours), 2e-7)
    files = [tmp_path / folder / "model.safetensors" for folder in ("expected", "ours")]
    assert_close(*map(load_file, files), 1e-6)


@pytest.mark.slow
def test_ranks_are_as_deterministic_as_their_run(ranks, cluster):
    def modes():
        asked = lambda actor: torch.are_deterministic_algorithms_enabled()  # noqa: E731
        service = ranks(spec())
        found = cluster.get([a.__ray_call__.remote(asked) for a in service.ranks._actors])
        service.close()
        return found, service.ranks.processes

    determinism.configure(True)
    try:
        exact, processes = modes()
    finally:
        determinism.configure(False)
    assert exact == [True, True]
    # Those that a run has used are not for one of the other kind.
    free, others = modes()
    assert free == [False, False]
    assert not set(processes) & set(others)


# A row alone leaves a rank without any; one long row against many gives unequal numbers of passes.
@pytest.mark.integration
@pytest.mark.parametrize("rows", [ROWS[:1], ROWS[3:5], [([2] * 30, [0] + [1] * 29), *ROWS]])
def test_ranks_with_fewer_rows_or_none(ranks, rows):
    options = {**SPLIT, "value_head": True}
    ours, expected = ranks(spec("tied"), options), local(spec("tied"), options)
    step(ours, options, rows)
    step(expected, options, rows)
    assert_close(moments(expected), moments(ours), 1e-7)
    for name in ("compute_log_prob", "compute_values"):
        wanted, found = getattr(expected, name)(batch(rows)), getattr(ours, name)(batch(rows))
        torch.testing.assert_close(found, wanted, rtol=0, atol=2e-5)


@pytest.mark.integration
def test_a_batch_in_which_nothing_is_trained_changes_nothing(ranks):
    service = ranks(spec(), {})
    before = dict(service.weights())
    assert step(service, {}, ROWS[3:4])[1]["grad_norm"] == 0
    assert all(torch.equal(before[name], value) for name, value in service.weights().items())


@pytest.mark.integration
def test_pairs_are_compared_on_one_rank(ranks):
    from plugrl.core.config.check import configure
    from plugrl.core.plugins.registry import default_registry
    from plugrl.core.text.learn.losses import WeightedLoss
    from plugrl.testing.batches import PAIRS, batch_of, trajectories

    function = default_registry().get("loss", "plugrl/dpo")
    pairs = WeightedLoss(function, configure(function, {}))
    ours, expected = ranks(spec(), {}), local(spec(), {})
    for service in (ours, expected):
        service.forward_backward(batch_of(trajectories(PAIRS)), pairs)
        service.optimizer_step()
    assert_close(moments(expected), moments(ours), 1e-7)


@pytest.mark.integration
def test_twenty_steps_stay_together(ranks):
    options = {**SPLIT, "value_head": True, "learning_rate": 1e-3}
    ours, expected = ranks(spec("tied"), options), local(spec("tied"), options)
    for number in range(20):
        rows = ROWS[number % 3 :]
        found, wanted = step(ours, options, rows), step(expected, options, rows)
        assert found[0]["loss"][0] == pytest.approx(wanted[0]["loss"][0], abs=2e-5)
    # AdamW divides by the gradient's size, so that where it is almost 0 roundings are as large.
    assert_close(dict(expected.weights()), dict(ours.weights()), 0.02 * 20 * 1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["tied, in micro-batches", "adapter"])
def test_a_state_goes_from_two_ranks_to_one_to_two_and_to_local(ranks, case, tmp_path):
    model, options = CASES[case]
    two = ranks(model, options)
    step(two, options)
    saved = checkpoint.load(checkpoint.save(tmp_path, 1, {"own": two.state_dict()}))["own"]
    assert not list(tmp_path.rglob("*.metadata")), "DCP writes its plans as pickle elsewhere"
    held = copy.deepcopy(two.state_dict())
    wanted = step(two, options)
    two.close()
    alone = local(model, options)
    alone.load_state_dict(saved)
    assert step(alone, options)[1]["grad_norm"] == pytest.approx(wanted[1]["grad_norm"], rel=1e-6)
    one = ranks(model, options, workers=1)
    one.load_state_dict(saved)
    between = checkpoint.load(checkpoint.save(tmp_path, 2, {"own": one.state_dict()}))["own"]
    one.close()
    again = ranks(model, options)
    again.load_state_dict(between)
    assert step(again, options) == wanted
    again.load_state_dict(held)
    assert step(again, options) == wanted


def received_bytes(process):
    """Bytes that have come to the sockets of another process, as the kernel counts them."""
    kernel, handle, total = ctypes.CDLL(None, use_errno=True), os.pidfd_open(process), 0
    for number in os.listdir(f"/proc/{process}/fd"):
        if not os.readlink(f"/proc/{process}/fd/{number}").startswith("socket"):
            continue
        copy = kernel.syscall(PIDFD_GETFD, handle, int(number), 0)
        if copy < 0:
            pytest.skip("the kernel lets nobody look at sockets of other processes")
        with socket.socket(fileno=copy) as there:
            if there.family != socket.AF_UNIX:
                facts = there.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                total += struct.unpack_from("Q", facts, BYTES_RECEIVED)[0]
    os.close(handle)
    return total


@pytest.mark.integration
def test_two_ranks_hold_and_receive_what_was_planned(ranks, tmp_path):
    config = {**SIZES, "model_type": "qwen3", "hidden_size": 256, "intermediate_size": 512}
    source = ConfigView({**spec().source.to_dict(), "config": config}, checked=True)
    service = ranks(replace(spec(), source=source))
    shape = ModelShape.of(ConfigView({"source": source, "train": TRAIN}, checked=True))
    planned = DevicePlan.of(shape, 2, split=2, tokens=64, computed_again=False, head_tokens=64)
    service.forward_backward(batch(), loss({}))
    service.optimizer_step()
    before = [received_bytes(process) for process in service.ranks.processes]
    service.forward_backward(batch(), loss({}))
    received = [
        received_bytes(process) - old
        for process, old in zip(service.ranks.processes, before, strict=True)
    ]
    service.optimizer_step()
    path = checkpoint.save(tmp_path, 1, {"own": service.state_dict()})
    sizes = [file.stat().st_size for file in sorted((path / "shards-0").iterdir())]
    assert len(sizes) == 2
    for size, came in zip(sizes, received, strict=True):
        assert size == pytest.approx(planned.weights + planned.moments, rel=0.02)
        # gloo reduces gradients to all ranks, then takes the part: half of them more.
        assert came == pytest.approx(planned.received + planned.gradients, rel=0.05)


@pytest.mark.slow
class TestKit(TrainServiceContract):
    """The suite of the kit for train services."""

    __test__ = True
    plugrl_train_service = "fsdp"
    conformance: ClassVar = {"config": {"workers": 2, "timeout": 120.0, "learning_rate": 0.01}}

    @pytest.fixture(autouse=True)
    def joined(self, cluster):
        """The cluster of the tests."""


@pytest.mark.integration
def test_ranks_with_other_weights_are_found(ranks):
    service = ranks(spec(), {})
    given = [(service.config, spec(seed=rank), rank, 2, 1, False) for rank in range(2)]
    digests = [each["digest"] for each in service.ranks.each("load", given)]
    with pytest.raises(RunError, match="rank 1 loaded other weights than rank 0"):
        service._check_equal(digests)


@pytest.mark.slow
def test_what_a_rank_raises_is_told_with_rank_and_phase(ranks):
    service = ranks(spec(), {}, workers=1)
    with pytest.raises(RunError, match=r"rank 0 on node \S+ raised KeyError: .*nothing"):
        service.ranks.all("gather", ["nothing"])
    assert len(service.ranks) == 0


@pytest.mark.integration
def test_a_dead_rank_is_named(ranks):
    service = ranks(spec(), {})
    os.kill(service.ranks.processes[1], signal.SIGKILL)
    with pytest.raises(RunError, match=r"rank 1 on node \S+ was killed .* while it went forward"):
        step(service, {})


@pytest.mark.integration
def test_a_rank_that_runs_out_of_memory_is_named(ranks):
    service = ranks(spec(), {"micro_batch_size": 2000}, workers=2)
    process = service.ranks.processes[1]
    with open(f"/proc/{process}/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.prlimit(process, resource.RLIMIT_AS, (used + 2**24, used + 2**24))
    said = r"^rank 1 on node \S+ .*out of memory.* while it went forward; .*lower models.NAME.train"
    with pytest.raises(RunError, match=said):
        step(service, {}, [([2] * 60, [0] + [1] * 59)] * 2000)
    assert len(service.ranks) == 0


@pytest.mark.slow
def test_a_rank_that_hangs_is_named(ranks):
    service = ranks(spec(), {}, timeout=40.0)
    os.kill(service.ranks.processes[1], signal.SIGSTOP)
    with pytest.raises(RunError, match=r"rank 1 on node \S+ did not answer in \d+ s while it went"):
        step(service, {})
