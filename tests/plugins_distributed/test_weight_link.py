"""Weights on their way from ranks to engines, with both ends in this process."""

import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from plugrl.plugins.distributed.weight_link import (
    Arriving,
    HostCopy,
    Link,
    Receiver,
    Sender,
    Slot,
    TransferError,
    end,
    fill_buckets,
    memory_name,
    size_of,
    views,
)

WEIGHTS = {
    "embedding": torch.arange(12, dtype=torch.bfloat16).reshape(3, 4),
    "norm": torch.linspace(-1, 1, 5),
    "count": torch.tensor(7),
    "empty": torch.zeros(0, 2),
    "last": torch.arange(40.0).reshape(2, 20),
}
SLOTS = [
    Slot((name, "head") if name == "embedding" else (name,), value.dtype, tuple(value.shape))
    for name, value in WEIGHTS.items()
]
BUCKETS = fill_buckets(SLOTS, 64)


def fill(bucket, flat):
    if flat is not None:
        for slot, place in views(bucket, flat):
            place.copy_(WEIGHTS[slot.names[0]])


def new_store():
    limit = timedelta(seconds=30)
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=limit)


@pytest.fixture
def store():
    return new_store()


def together(*functions):
    """What each gives or raises, all at the same time."""
    found = [None] * len(functions)

    def run(number):
        try:
            found[number] = functions[number]()
        except Exception as error:
            found[number] = error

    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return found


def sends(link, store, times=2):
    def send():
        sender = Sender(link, store, 0, "cpu")
        for number in range(times):
            sender.send(number, BUCKETS, fill)

    return send


def receives(link, number, times=2):
    def receive():
        receiver = Receiver(link, number)
        return [dict(receiver.receive(each, BUCKETS)) for each in range(times)]

    return receive


def test_all_engines_get_the_weights_each_time(store):
    # Two read the memory of rank 0, two get the broadcast.
    link = Link("127.0.0.1", store.port, (0, None, 0, None), "gloo", 30.0)
    sent, *received = together(sends(link, store), *(receives(link, n) for n in range(4)))
    assert sent is None
    for engine in received:
        for weights in engine:
            assert weights.keys() == {*WEIGHTS, "head"}
            assert torch.equal(weights["head"], WEIGHTS["embedding"])
            for name, value in WEIGHTS.items():
                assert weights[name].dtype == value.dtype
                assert torch.equal(weights[name], value), name
    # Nothing is left for a run of thousands of syncs to collect: the group's own keys stay.
    assert not store.check(["0/0"])
    assert not store.check(["0/0/0/read"])


def test_an_end_that_failed_ends_the_others(store):
    link = Link("127.0.0.1", store.port, (0, None), "gloo", 3000.0)

    def fails():
        Receiver(link, 1)
        end(link)

    sent, first, _ = together(sends(link, store), receives(link, 0), fails)
    assert isinstance(sent, TransferError)
    assert isinstance(first, TransferError)


def test_no_group_is_awaited_whose_member_failed(store):
    link = Link("127.0.0.1", store.port, (None, None), "gloo", 3000.0)
    sent, first, _ = together(sends(link, store), receives(link, 0), lambda: end(link))
    assert isinstance(sent, TransferError)
    assert isinstance(first, TransferError)


def test_an_end_that_does_not_come_is_not_awaited_for_ever(store):
    link = Link("127.0.0.1", store.port, (0,), "gloo", 0.2)
    with pytest.raises(TransferError, match=r"did not come in 0\.2 s"):
        Sender(link, store, 0, "cpu").send(0, BUCKETS, fill)
    with pytest.raises(TransferError, match=r"did not come in 0\.2 s"):
        dict(Receiver(link, 0).receive(1, BUCKETS))


def test_engines_end_with_the_store_of_rank_0():
    store = new_store()
    receiver = Receiver(Link("127.0.0.1", store.port, (0,), "gloo", 3000.0), 0)
    del store
    with pytest.raises(TransferError, match="rank 0 is gone"):
        dict(receiver.receive(0, BUCKETS))


def test_weights_come_when_they_are_read():
    come = []

    def flats():
        for bucket in BUCKETS:
            flat = torch.zeros(size_of(bucket), dtype=torch.uint8)
            fill(bucket, flat)
            come.append(len(come))
            yield flat

    arriving = Arriving(BUCKETS, flats())
    assert len(BUCKETS) > 2
    assert len(arriving) == len(WEIGHTS) + 1
    assert torch.equal(arriving["embedding"], WEIGHTS["embedding"])
    assert come == [0]
    # The other name of a weight may be read much later.
    assert torch.equal(arriving["last"], WEIGHTS["last"])
    assert torch.equal(arriving["head"], WEIGHTS["embedding"])
    with pytest.raises(RuntimeError, match="was read before"):
        arriving["last"]
    with pytest.raises(KeyError):
        arriving["nothing"]
    arriving.drain()
    assert come == list(range(len(BUCKETS)))


def test_buckets_hold_whole_weights_in_their_order():
    slots = [
        Slot((n,), torch.uint8, (size,)) for n, size in zip("abcd", (16, 16, 48, 1), strict=True)
    ]
    names = [[slot.names[0] for slot in bucket] for bucket in fill_buckets(slots, 32)]
    assert names == [["a", "b"], ["c"], ["d"]]
    assert fill_buckets([], 32) == []
    # As aligned.
    assert size_of(fill_buckets(slots, 32)[2]) == 16


def test_processes_of_a_machine_share_its_memory():
    assert memory_name("cpu") == memory_name("cpu")
    assert memory_name("cpu").startswith("cpu ")


def test_a_copy_on_the_host_has_what_was_sent_last():
    copy = HostCopy("cpu")
    assert copy.weights() == {}
    for added in (1, 2):
        for bucket in BUCKETS:
            flat = torch.zeros(size_of(bucket), dtype=torch.uint8)
            copy.let_write(flat)
            for slot, place in views(bucket, flat):
                place.copy_(WEIGHTS[slot.names[0]] + added)
            copy.take(bucket, flat)
            # The rank uses its memory for the next bucket.
            flat.zero_()
    kept = copy.weights()
    assert kept.keys() == {*WEIGHTS, "head"}
    assert torch.equal(kept["head"], WEIGHTS["embedding"] + 2)
    for name, value in WEIGHTS.items():
        assert torch.equal(kept[name], value + 2), name
