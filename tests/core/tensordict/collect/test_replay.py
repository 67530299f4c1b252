"""The replay buffer against a plain list of the newest steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from plugrl.core.errors import ConfigError, ContractError
from plugrl.core.run.checkpoints import checkpoint
from plugrl.core.tensordict.collect.replay_buffer import ReplayBuffer


def steps(numbers: list[int], shape: tuple[int, ...] | None = None, **more: torch.Tensor):
    """Steps that can be told apart: everything in step ``i`` is made of ``i``."""
    shape = shape or (len(numbers),)
    i = torch.tensor(numbers, dtype=torch.float32).reshape(shape)
    following = {
        "observation": torch.stack([i + 0.5, -i], -1),
        "reward": (10 * i).unsqueeze(-1),
        "terminated": (i % 2 == 0).unsqueeze(-1),
        "done": torch.ones(*shape, 1, dtype=torch.bool),
    }
    return TensorDict(
        {
            "observation": torch.stack([i, -i], -1),
            "action": i.long(),
            "next": TensorDict(following, batch_size=shape),
            **more,
        },
        batch_size=shape,
    )


def held(buffer: ReplayBuffer, draws: int = 2000) -> set[int]:
    return set(buffer.sample(draws)["action"].tolist()) if len(buffer) else set()


@given(capacity=st.integers(1, 12), sizes=st.lists(st.integers(0, 30), max_size=8))
def test_it_holds_the_newest_steps(capacity: int, sizes: list[int]) -> None:
    buffer, everything = ReplayBuffer(capacity, seed=1), []
    for size in sizes:
        new = list(range(len(everything), len(everything) + size))
        assert buffer.add(steps(new)) == size
        everything += new
    newest = everything[-capacity:]
    assert len(buffer) == len(newest)
    assert held(buffer) == set(newest)


@given(
    capacity=st.integers(1, 12),
    before=st.lists(st.integers(1, 9), max_size=5),
    after=st.lists(st.integers(1, 9), min_size=1, max_size=5),
)
def test_a_loaded_buffer_goes_on_as_the_saved_one(
    capacity: int, before: list[int], after: list[int]
) -> None:
    buffer = ReplayBuffer(capacity, seed=3)
    count = 0
    for size in before:
        buffer.add(steps(list(range(count, count + size))))
        buffer.sample(5)
        count += size
    other = ReplayBuffer(capacity, seed=99)
    other.load_state_dict(buffer.state_dict())
    for size in after:
        for each in (buffer, other):
            each.add(steps(list(range(count, count + size))))
        count += size
        one, two = buffer.sample(7), other.sample(7)
        assert (one == two).all()
        assert len(buffer) == len(other)


def test_the_rows_of_a_step_stay_together() -> None:
    buffer = ReplayBuffer(7)
    for start in range(0, 20, 4):
        buffer.add(steps([start, start + 1, start + 2, start + 3], shape=(2, 2)))
    drawn = buffer.sample(50)
    i = drawn["action"].float()
    assert torch.equal(drawn["observation"], torch.stack([i, -i], -1))
    assert torch.equal(drawn["next", "observation"], torch.stack([i + 0.5, -i], -1))
    assert torch.equal(drawn["next", "reward"], 10 * i.unsqueeze(-1))
    assert torch.equal(drawn["next", "terminated"], (i % 2 == 0).unsqueeze(-1))
    assert drawn["next", "reward"].shape == (50, 1)


def test_invalid_steps_are_not_kept() -> None:
    buffer = ReplayBuffer(10)
    valid = torch.tensor([[True, False], [False, True]])
    assert buffer.add(steps([1, 2, 3, 4], shape=(2, 2), valid=valid)) == 2
    assert held(buffer) == {1, 4}
    assert buffer.add(steps([5, 6], valid=torch.zeros(2, dtype=torch.bool))) == 0
    assert len(buffer) == 2


def test_each_step_is_drawn_equally_often() -> None:
    buffer = ReplayBuffer(20, seed=5)
    buffer.add(steps(list(range(30))))
    counts = np.bincount(buffer.sample(40_000)["action"].numpy(), minlength=30)
    assert not counts[:10].any()
    # 19 degrees of freedom: chi-squared is above 43.8 once in a thousand.
    assert ((counts[10:] - 2000) ** 2 / 2000).sum() < 43.8


def test_what_is_drawn_depends_on_the_seed_alone() -> None:
    buffers = [ReplayBuffer(50, seed=s) for s in (1, 1, 2)]
    for i, buffer in enumerate(buffers):
        torch.manual_seed(i)
        np.random.seed(i)
        buffer.add(steps(list(range(50))))
    one, same, another = (buffer.sample(30)["action"] for buffer in buffers)
    assert torch.equal(one, same)
    assert not torch.equal(one, another)


@pytest.mark.parametrize(("number", "count"), [(1, 5), (7, 3), (2, 700), (3, 2000)])
def test_minibatches_are_the_next_draws(number: int, count: int) -> None:
    one, other = (ReplayBuffer(50, seed=1) for _ in range(2))
    for buffer in (one, other):
        buffer.add(steps(list(range(40))))
    drawn = list(one.minibatches(number, count))
    assert len(drawn) == number
    for minibatch in drawn:
        assert (minibatch == other.sample(count)).all()
    assert torch.equal(one.sample(4)["action"], other.sample(4)["action"])
    with pytest.raises(ContractError, match="empty"):
        next(ReplayBuffer(50).minibatches(1, 2))


def test_what_minibatches_have_in_common_is_prepared_for_all_at_once() -> None:
    plain, prepared = (ReplayBuffer(50, seed=1) for _ in range(2))
    for buffer in (plain, prepared):
        buffer.add(steps(list(range(40))))
    sizes = []

    def prepare(rows: TensorDict) -> TensorDict:
        sizes.append(len(rows))
        return rows.set("doubled", 2 * rows["action"])

    pairs = list(zip(plain.minibatches(5, 300), prepared.minibatches(5, 300, prepare), strict=True))
    # No more than 1,024 rows at once.
    assert sizes == [900, 600]
    for one, other in pairs:
        assert torch.equal(other["doubled"], 2 * one["action"])


def test_what_is_drawn_is_a_copy() -> None:
    buffer = ReplayBuffer(3)
    batch = steps([1, 2, 3])
    buffer.add(batch)
    batch["observation"].zero_()
    buffer.sample(10)["observation"].zero_()
    assert buffer.sample(10)["observation"].abs().min() >= 1


def test_images_stay_bytes() -> None:
    buffer = ReplayBuffer(4)
    batch = steps([1, 2])
    batch["observation"] = torch.full((2, 3, 4, 4), 200, dtype=torch.uint8)
    batch["next", "observation"] = torch.full((2, 3, 4, 4), 201, dtype=torch.uint8)
    buffer.add(batch)
    assert buffer.sample(5)["next", "observation"].dtype == torch.uint8
    assert buffer.state_dict()["arrays"]["observation"].shape == (2, 3, 4, 4)


def test_a_checkpoint_holds_it(tmp_path: Path) -> None:
    buffer = ReplayBuffer(6, seed=2)
    buffer.add(steps(list(range(8))))
    path = checkpoint.save(tmp_path, 1, {"buffer": buffer.state_dict()})
    other = ReplayBuffer(6, seed=7)
    other.load_state_dict(checkpoint.load(path)["buffer"])
    assert (buffer.sample(20) == other.sample(20)).all()


def test_an_empty_buffer_is_saved_and_loaded() -> None:
    other = ReplayBuffer(6, seed=7)
    other.load_state_dict(ReplayBuffer(6, seed=2).state_dict())
    assert len(other) == 0
    with pytest.raises(ContractError, match="empty"):
        other.sample(1)


@pytest.mark.parametrize(("added", "capacity"), [(8, 5), (6, 7), (8, 9)])
def test_a_buffer_of_another_size_is_refused(added: int, capacity: int) -> None:
    buffer = ReplayBuffer(6)
    buffer.add(steps(list(range(added))))
    with pytest.raises(ConfigError, match="buffer_size"):
        ReplayBuffer(capacity).load_state_dict(buffer.state_dict())


def test_steps_of_another_form_are_refused() -> None:
    buffer = ReplayBuffer(6)
    buffer.add(steps([1]))
    other = steps([1])
    other["observation"] = torch.zeros(1, 3)
    with pytest.raises(ContractError, match=r"observation .*\[2\].*\[3\]"):
        buffer.add(other)
    with pytest.raises(ContractError, match="next/terminated"):
        buffer.add(steps([1]).exclude(("next", "terminated")))
    with pytest.raises(ConfigError, match="at least 1"):
        ReplayBuffer(0)


def test_a_buffer_that_does_not_fit_into_memory_says_how_large_it_is() -> None:
    buffer = ReplayBuffer(10**13, seed=0)
    steps = {
        "observation": torch.zeros(1, 4),
        "action": torch.zeros(1, dtype=torch.int64),
        ("next", "observation"): torch.zeros(1, 4),
        ("next", "reward"): torch.zeros(1, 1),
        ("next", "terminated"): torch.zeros(1, 1, dtype=torch.bool),
    }
    # 16 + 8 + 16 + 4 + 1 bytes a step.
    with pytest.raises(ConfigError, match=r"takes 450,000\.0 GB, which there are not; lower buff"):
        buffer.extend(steps)
