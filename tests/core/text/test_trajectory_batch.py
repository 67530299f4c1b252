"""Trajectories and batches: invariants, padding, round trips."""

import pytest
import torch

from plugrl.core.text.batch import Batch, compute_position_id_with_mask, padding_data
from plugrl.core.text.trajectory import Trajectory


def rollout(tokens=(1, 2, 3), **changes):
    tokens = list(tokens)
    fields = {
        "loss_mask": [0] + [1] * (len(tokens) - 1),
        "logprobs": [0.0] + [-0.5] * (len(tokens) - 1),
        "versions": [-1] + [4] * (len(tokens) - 1),
        "reward": 1.0,
        "group_id": "g",
    }
    return Trajectory(tokens, **{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"tokens": [], "loss_mask": []}, "no tokens"),
        ({"loss_mask": [1]}, "loss_mask has 1 values for 3 tokens"),
        ({"loss_mask": [0, 1, 2]}, "other than 0 and 1"),
        ({"logprobs": [0.0]}, "logprobs has 1 values"),
        ({"logprobs": [0.0, float("nan"), 0.0]}, "NaN or infinite"),
        ({"logprobs": [0.0, float("-inf"), 0.0]}, "NaN or infinite"),
        ({"versions": [1, 2]}, "versions has 2 values"),
        ({"tokens": [1, -2, 3]}, "negative"),
    ],
)
def test_broken_trajectories_cannot_be_built(changes, complaint):
    with pytest.raises(ValueError, match=complaint):
        rollout(**changes)


def test_item_and_attribute_are_one_field():
    t = rollout()
    t.advantage = 0.5
    assert t["advantage"] == 0.5
    t["advantage"] = 0.25
    assert t.advantage == 0.25
    t["note"] = "kept"
    assert t.extra_fields == {"note": "kept"}
    assert "note" in t
    assert t.get("absent", 3) == 3
    assert dict(t.items())["note"] == "kept"
    with pytest.raises(KeyError):
        t["absent"]


def test_rows_are_padded_on_the_right():
    batch = Batch.from_trajectories([rollout(), rollout((7, 8))], pad_token_id=9)
    assert batch.values["input_ids"].tolist() == [[1, 2, 3], [7, 8, 9]]
    assert batch.values["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch.values["position_ids"].tolist() == [[0, 1, 2], [0, 1, 0]]
    assert batch.values["loss_mask"].tolist() == [[0, 1, 1], [0, 1, 0]]
    assert batch.values["old_log_probs"].tolist() == [[0, -0.5, -0.5], [0, -0.5, 0]]
    assert batch.values["versions"].tolist() == [[-1, 4, 4], [-1, 4, -1]]
    assert batch.metadata["rewards"].tolist() == [1.0, 1.0]
    assert len(batch) == 2


def test_the_round_trip_gives_the_same_trajectories():
    before = [rollout(run_id=1), rollout((7, 8), reward=0.25, valid=False, finish_reason="length")]
    assert Batch.from_trajectories(before).to_trajectories() == before


def test_extra_fields_become_metadata():
    one, two = rollout(), rollout()
    one["score"], two["score"] = 1, 2
    one["text"], two["text"] = "a", "b"
    batch = Batch.from_trajectories([one, two])
    assert batch.metadata["score"].tolist() == [1, 2]
    assert batch.metadata["text"] == ["a", "b"]
    del two.extra_fields["text"]
    with pytest.raises(ValueError, match="'text' is missing"):
        Batch.from_trajectories([one, two])


def test_models_do_not_mix():
    with pytest.raises(ValueError, match="one model"):
        Batch.from_trajectories([rollout(), rollout(model="other")])
    with pytest.raises(ValueError, match="at least one"):
        Batch.from_trajectories([])


def test_reordering_moves_values_and_metadata():
    batch = Batch.from_trajectories([rollout(), rollout((7, 8), group_id="h")])
    turned = batch.reorder([1, 0])
    assert turned.values["input_ids"][0].tolist() == [7, 8, 0]
    assert turned.metadata["group_id"] == ["h", "g"]
    with pytest.raises(ValueError, match="permutation"):
        batch.reorder([0, 0])


def test_a_copy_is_independent():
    batch = Batch.from_trajectories([rollout()])
    copy = batch.copy()
    copy.values["input_ids"][0, 0] = 99
    copy.metadata["group_id"][0] = "changed"
    assert batch.values["input_ids"][0, 0] == 1
    assert batch.metadata["group_id"] == ["g"]


@pytest.mark.parametrize(("rows", "world_size", "expected"), [(1, 8, 8), (3, 2, 4), (4, 2, 4)])
def test_padding_to_a_world_size_trains_nothing_twice(rows, world_size, expected):
    batch = Batch.from_trajectories([rollout(run_id=i) for i in range(rows)])
    padded = batch.pad_to_world_size(world_size)
    assert len(padded) == expected == len(padded.values["input_ids"])
    assert len(padded.metadata["group_id"]) == len(padded.metadata["rewards"]) == expected
    assert int(padded.values["loss_mask"].sum()) == int(batch.values["loss_mask"].sum())
    assert int(padded.metadata["valid"].sum()) == rows


def left_padded():
    return Batch(
        {
            "input_ids": torch.tensor([[0, 0, 5, 0], [0, 4, 5, 6]]),
            "attention_mask": torch.tensor([[0, 0, 1, 1], [0, 1, 1, 1]]),
            "loss_mask": torch.tensor([[0, 0, 0, 1], [0, 0, 1, 1]]),
            "untouched": torch.zeros(2, 4),
        }
    )


def test_common_left_padding_goes_on_the_named_fields_only():
    stripped = Batch.remove_redundant_left_padding(
        left_padded(), 0, fields=["input_ids", "attention_mask", "loss_mask"]
    )
    assert stripped.values["input_ids"].tolist() == [[0, 5, 0], [4, 5, 6]]
    assert stripped.values["untouched"].shape == (2, 4)


def test_a_real_last_token_equal_to_the_padding_is_kept():
    batch = Batch(
        {
            "input_ids": torch.tensor([[5, 0, 0], [4, 0, 0]]),
            "attention_mask": torch.tensor([[1, 1, 0], [1, 1, 0]]),
        }
    )
    stripped = Batch.remove_redundant_right_padding(batch, 0)
    assert stripped.values["input_ids"].tolist() == [[5, 0], [4, 0]]


def test_positions_count_real_tokens():
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 0]])
    assert compute_position_id_with_mask(mask).tolist() == [[0, 0, 0, 1], [0, 1, 2, 0]]


def test_padding_data_sets_only_padding():
    padded = padding_data(left_padded(), 9)
    assert padded.values["input_ids"].tolist() == [[9, 9, 5, 0], [9, 4, 5, 6]]


def test_extra_fields_of_failed_attempts_may_be_missing_and_those_of_others_not():
    good = [rollout(extra_fields={"score": 1.5, "tool": "a"}) for _ in range(2)]
    failed = rollout(valid=False)
    batch = Batch.from_trajectories([*good, failed])
    assert batch.metadata["score"][:2].tolist() == [1.5, 1.5]
    assert batch.metadata["score"].isnan().tolist() == [False, False, True]
    assert batch.metadata["tool"] == ["a", "a", None]
    with pytest.raises(ValueError, match="'score' is missing"):
        Batch.from_trajectories([*good, rollout()])
