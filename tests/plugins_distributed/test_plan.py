"""Memory and traffic that ``plugrl validate --devices`` prints, by hand and as measured."""

import ctypes
import os
import socket
import struct
from dataclasses import replace
from types import SimpleNamespace

import pytest
from here import SIZES, batch, loss, spec

from plugrl.core.config.view import ConfigView
from plugrl.core.run.checkpoints import checkpoint
from plugrl.plugins.distributed.plan import DevicePlan, ModelShape, device_rows

#: The number of a system call, and a place in ``struct tcp_info`` of Linux.
PIDFD_GETFD, BYTES_RECEIVED = 438, 128
PLAN = {
    "tokens": 4096,
    "computed_again": True,
    "head_tokens": 1024,
}


def entry(source, adapter=None, **train):
    """An entry of ``models``."""
    own = {"micro_batch_tokens": None, "micro_batch_size": 64, "gradient_checkpointing": False}
    own |= {"head_chunk_tokens": 2048, "master_weights": "auto", **train}
    found = {"source": source, "train": own, "adapter": adapter}
    return ConfigView(found, checked=True)


def test_the_shape_of_a_published_model():
    # Qwen3-0.6B, whose card says 0.6B parameters, 0.44B without embedding.
    config = {
        "model_type": "qwen3",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    }
    source = {
        "path": None,
        "config": config,
        "tokenizer": {"characters": "ab"},
        "dtype": "bfloat16",
    }
    shape = ModelShape.of(entry(source))
    assert shape.parameters == 596_049_920
    # One embedding of 151,936 rows of 1,024, and the last norm.
    assert shape.root == 151936 * 1024 + 1024
    assert (shape.layers, shape.bytes, shape.vocabulary) == (28, 2, 151936)
    lora = ModelShape.of(entry(source, {"r": 8, "target_modules": ["q_proj", "v_proj"]}))
    assert lora.trained == 28 * 8 * ((1024 + 2048) + (1024 + 1024))


def test_a_plan_by_hand():
    shape = ModelShape(
        layers=2,
        layer=100,
        root=50,
        trained=250,
        hidden=8,
        inner=16,
        heads=12,
        vocabulary=10,
        bytes=2,
    )
    one = DevicePlan.of(shape, 1, split=1, masters=True, **PLAN)
    assert (one.weights, one.gradients, one.moments) == (1000, 1000, 2000)
    assert (one.gathered, one.received, one.synced) == (0, 0, 500)
    four = DevicePlan.of(shape, 4, split=4, masters=True, **PLAN)
    assert (four.weights, four.gradients, four.moments) == (250, 250, 500)
    # 2 (2 x 100 + 50) of weights, 6 x (100 + 50) of gradients.
    assert four.gathered == 500 + 900
    # Three quarters of 2 x (400 + 50) and 4 x 250.
    assert four.received == 0.75 * (900 + 1000)
    copies = DevicePlan.of(shape, 4, split=1, masters=True, **PLAN)
    assert (copies.weights, copies.moments) == (1000, 2000)
    # Twice three quarters of the gradient.
    assert copies.received == 1500
    adapter = DevicePlan.of(replace(shape, trained=20), 4, split=4, masters=True, **PLAN)
    assert (adapter.weights, adapter.gradients) == ((80 + 500) // 4, 20)


def test_what_is_printed_adds_up():
    source = spec().source
    rows = dict(device_rows(entry(source, shard="full"), 2))
    assert rows["parameters"].startswith("2") or "," in rows["parameters"]
    assert len(rows) == 9
    nothing = ConfigView({**source.to_dict(), "config": {"model_type": "no such"}}, checked=True)
    assert device_rows(entry(nothing), 2) == []


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
    shape = ModelShape.of(SimpleNamespace(source=source, get=lambda name, default=None: None))
    plan = DevicePlan.of(shape, 2, split=2, masters=False, **PLAN)
    service.forward_backward(batch(), loss({}))
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
        assert size == pytest.approx(plan.weights + plan.moments, rel=0.02)
        # gloo reduces gradients to all ranks, then takes the part: half of them more.
        assert came == pytest.approx(plan.received + plan.gradients, rel=0.05)
