"""States that other processes save in parts, within a checkpoint."""

import copy
import json

import pytest
import torch
from safetensors.torch import save_file

from plugrl.core.errors import RunError
from plugrl.core.run.checkpoints import checkpoint
from plugrl.core.run.checkpoints.shards import SavedShards, Shard, ShardedState

WHOLE = {"w": torch.arange(15.0).view(5, 3), "m": torch.arange(4).to(torch.bfloat16)}
TREE = {
    "weights": {"a": Shard("w"), "tied": Shard("w")},
    "optimizer": {0: {"step": torch.tensor(2.0), "exp_avg": Shard("m")}},
    "optimizer_steps": 2,
}


class TwoParts(ShardedState):
    """What two processes hold: three rows and two of one tensor, and all of another."""

    def read(self, names):
        return {name: WHOLE[name] for name in names}

    def write(self, folder):
        folder.mkdir()
        parts = [
            {"w": (WHOLE["w"][:3], [0, 0]), "m": (WHOLE["m"], [0])},
            {"w": (WHOLE["w"][3:], [3, 0])},
        ]
        for number, part in enumerate(parts):
            # As DCP writes them: where each part begins in the whole.
            begins = {name: {"saved_offsets": begin} for name, (_, begin) in part.items()}
            save_file(
                {name: tensor.contiguous() for name, (tensor, _) in part.items()},
                folder / f"shard-{number}.safetensors",
                metadata={"DCP_SHARDING_INFO": json.dumps(begins)},
            )


class Nothing(TwoParts):
    """What writes to a disk that this machine does not have."""

    def write(self, folder):
        pass


def assert_whole(state):
    assert state["optimizer_steps"] == 2
    assert torch.equal(state["weights"]["a"], WHOLE["w"])
    assert torch.equal(state["weights"]["tied"], WHOLE["w"])
    assert torch.equal(state["optimizer"][0]["exp_avg"], WHOLE["m"])
    assert state["optimizer"][0]["step"] == 2


@pytest.fixture
def saved(tmp_path):
    return checkpoint.save(tmp_path / "checkpoints", 3, {"model": TwoParts(TREE), "step": 3})


def test_parts_are_put_together_when_they_are_read(saved):
    state = checkpoint.load(saved)
    assert state["step"] == 3
    assert isinstance(state["model"], SavedShards)
    assert_whole(state["model"])
    assert_whole(copy.deepcopy(state["model"]))
    assert dict(state["model"]).keys() == TREE.keys()


def test_a_state_of_parts_is_saved_again_as_it_is(saved):
    again = checkpoint.save(saved.parent, 4, {"phase": checkpoint.load(saved)})
    assert_whole(checkpoint.load(again)["phase"]["model"])


def test_every_part_is_verified(saved):
    names = checkpoint.read_manifest(saved)["files"]
    assert {"shards-0/shard-0.safetensors", "shards-0/shard-1.safetensors"} <= set(names)
    part = saved / "shards-0" / "shard-1.safetensors"
    whole = part.read_bytes()
    part.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(checkpoint.BrokenCheckpointError, match="shard-1.safetensors is damaged"):
        checkpoint.load(saved)
    part.unlink()
    with pytest.raises(
        checkpoint.BrokenCheckpointError, match=r"shard-1.safetensors cannot be read"
    ):
        checkpoint.verify(saved)


def test_parts_that_lie_elsewhere_make_no_checkpoint(tmp_path):
    folder = tmp_path / "checkpoints"
    with pytest.raises(RunError, match="put the run folder on a disk that all machines share"):
        checkpoint.save(folder, 1, {"model": Nothing(TREE)})
    assert list(folder.iterdir()) == []
