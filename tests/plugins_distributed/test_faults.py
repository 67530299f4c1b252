"""Which of the errors of several ranks is told, and what it recommends."""

import inspect
import re
from dataclasses import fields

import pytest
import torch

from plugrl.core.errors import ConfigError, RunError
from plugrl.plugins.distributed import ranks as ranks_module
from plugrl.plugins.distributed import train_service
from plugrl.plugins.distributed.ranks import _PHASES, Ranks, _smaller
from plugrl.plugins.distributed.train_service import FsdpTrainConfig

exceptions = pytest.importorskip("ray.exceptions")

FEWER = (
    "lower models.NAME.train.micro_batch_tokens or micro_batch_size, set gradient_checkpointing: "
    "true, or take more workers"
)
SPLIT = "take more models.NAME.train.workers with shard: full, or a smaller model"


def raised(cause):
    """What Ray raises for what the code of an actor raised."""
    task = exceptions.RayTaskError("call", str(cause), cause, "rank", 1, "10.0.0.1")
    return task.as_instanceof_cause()


def died(how):
    return exceptions.RayActorError(error_msg=how)


GLOO = raised(RuntimeError("[gloo/transport/tcp/pair.cc:525] Connection closed by peer"))
NCCL = raised(RuntimeError("NCCL error: remote process exited or there was a network error"))
LATE = raised(RuntimeError("Timed out waiting 120000ms for send operation to complete"))
KILLED = died("The actor died: connection error code 2. End of file.")
LOW = died("Task was killed due to the node running low on memory.")
HOST = raised(RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate"))
CARD = raised(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"))
WRONG = raised(KeyError("lm_head"))
WAS = "was killed (out of memory?) while it"


@pytest.mark.parametrize(
    ("faults", "method", "told"),
    [
        # Neighbours of a rank that is gone say only that they waited.
        ({0: GLOO, 1: KILLED}, "start_pass",
         f"rank 1 on node b {WAS} went forward; if it was, {FEWER}"),
        ({0: NCCL, 1: CARD}, "end_pass",
         f"rank 1 on node b ran out of memory while it went backward; {FEWER}"),
        ({0: LATE, 1: HOST}, "numbers",
         "rank 1 on node b ran out of memory while it computed log-probabilities or values; "
         f"{FEWER}"),
        ({0: LATE, 1: WRONG}, "restore",
         "rank 1 on node b raised KeyError: 'lm_head' while it read its part of the checkpoint"),
        # Memory explains what follows from it.
        ({0: WRONG, 1: HOST}, "load",
         f"rank 1 on node b ran out of memory while it loaded the model; {SPLIT}"),
        ({0: WRONG, 1: KILLED}, "apply_gradient",
         f"rank 1 on node b {WAS} took the optimizer step; if it was, {SPLIT}"),
        ({0: GLOO, 1: LOW}, "start_pass",
         "rank 1 on node b was ended because its node ran low on memory while it went forward; "
         f"{FEWER}"),
        # Of two that say as much, the first.
        ({0: KILLED, 1: KILLED}, "save",
         f"rank 0 on node a {WAS} wrote its part of the checkpoint; if it was, {SPLIT}"),
    ],
)  # fmt: skip
def test_the_error_that_explains_the_others_is_told(faults, method, told):
    ranks = object.__new__(Ranks)
    ranks._nodes, ranks.kill = ["a", "b"], lambda: None
    with pytest.raises(RunError) as error:
        ranks._fail(method, faults)
    assert str(error.value) == told
    assert error.value.__cause__ in faults.values()


def test_what_a_rank_says_of_a_configuration_is_told_as_it_is():
    ranks = object.__new__(Ranks)
    ranks._nodes, ranks.kill = ["a", "b"], lambda: None
    with pytest.raises(ConfigError, match="^models.policy.source: is empty$"):
        ranks._fail("load", {0: GLOO, 1: raised(ConfigError("models.policy.source: is empty"))})


@pytest.mark.parametrize("method", ["start_pass", "load"])
def test_the_options_that_are_recommended_are_there(method):
    named = set(re.findall(r"\b[a-z]+_[a-z_]+\b|\bworkers\b|\bshard\b", _smaller(method)))
    assert named
    assert named <= {field.name for field in fields(FsdpTrainConfig)}


def test_all_that_a_rank_is_asked_for_has_words():
    """A message says what a rank did, and not which method was called."""
    source = "".join(inspect.getsource(module) for module in (train_service, ranks_module))
    calls = re.findall(
        r'(?:_ask|\.all|\.each|\.send|_collect)\("([a-z_]+)"|\[\("([a-z_]+)"', source
    )
    asked = {name for call in calls for name in call} - {"", "ask"}
    assert {"load", "start_pass", "describe", "weight_slots", "place", "send_weights"} <= asked
    assert asked <= _PHASES.keys()


def test_ranks_on_one_card_are_named_with_what_parts_them():
    ranks = object.__new__(Ranks)
    ranks.kill = lambda: None
    with pytest.raises(RunError, match=r"^ranks 1 and 2 are on one GPU; .* above 0\.5, or give"):
        ranks._check_cards(["card A", "card B", "card B"])
    # On CPUs there are none.
    ranks._check_cards(["", ""])
    # What is recommended for each keeps two from one card.
    assert 2 * FsdpTrainConfig(gpus=0.51).gpus > 1


def test_machines_with_unequal_numbers_of_ranks_have_no_equal_copies(one_rank, monkeypatch):
    from here import RankHere, spec

    class Uneven(RankHere):
        turns = ((0, 2), (1, 2), (0, 1))

    monkeypatch.setattr(train_service, "take_ranks", lambda *key: Uneven())
    service = train_service.FsdpTrainService({"workers": 3, "shard": "hybrid"})
    with pytest.raises(ConfigError, match=r"policy\.train\.shard: hybrid needs as many ranks on"):
        service.load(spec())
