"""Tensors as arrays."""

import numpy as np
import torch

from plugrl.plugins.distributed import wire


def test_tensors_come_back_equal_and_writable():
    one = torch.arange(9.0).view(3, 3)
    sent = {
        "one": one,
        "same": one,
        "half": one.bfloat16(),
        ("a", 0): {"scalar": torch.tensor(3), "none": torch.zeros(0, 4), "view": one.T},
        "text": "x",
    }
    packed = wire.pack(sent)
    assert isinstance(packed["half"].data, np.ndarray)
    back = wire.unpack(packed)
    assert back["text"] == "x"
    inner = back["a", 0]
    pairs = [(back[name], sent[name]) for name in ("one", "same", "half")]
    pairs += [(inner[name], value) for name, value in sent["a", 0].items()]
    for found, wanted in pairs:
        assert found.dtype == wanted.dtype
        assert torch.equal(found, wanted)
    assert back["one"] is back["same"], "weights that are one stay one"
    back["one"].zero_()
    assert float(one.sum()) == 36


def test_what_is_no_mapping_stays_as_it_is():
    answer = (torch.zeros(2), {"values": torch.ones(1)})
    assert wire.unpack(wire.pack(answer)) is answer
