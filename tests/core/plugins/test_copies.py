"""Copies for user code: changes of them reach nothing else."""

import numpy as np
import torch

from plugrl.core.plugins.user_code.copies import own_copy
from plugrl.core.text.data.files import FileItem
from plugrl.core.text.trajectory import Trajectory


class Named(dict):
    name = ""


def test_containers_and_arrays_are_copied_all_the_way_down():
    shared = object()
    value = {
        "list": [1, [2, {"deep": 3}]],
        "tuple": ([4],),
        "set": {5},
        "array": np.zeros(2),
        "tensor": torch.zeros(2),
        "object": shared,
        "text": "abc",
    }
    made = own_copy(value)
    made["list"][1][1]["deep"] = made["tuple"][0][0] = 9
    made["set"].add(9)
    made["array"] += 9
    made["tensor"] += 9
    made["new"] = 9
    assert value["list"] == [1, [2, {"deep": 3}]]
    assert (value["tuple"], value["set"]) == (([4],), {5})
    assert value["array"].tolist() == value["tensor"].tolist() == [0.0, 0.0]
    assert "new" not in value
    # Nobody knows how to copy it.
    assert made["object"] is shared


def test_mappings_keep_their_class_and_what_they_know():
    item = FileItem({"tags": ["a"]}, "file.jsonl:3")
    made = own_copy(item)
    made["tags"].append("b")
    assert (type(made), made.place, item["tags"]) == (FileItem, "file.jsonl:3", ["a"])
    named = Named(tags=["a"])
    named.name = "one"
    made = own_copy(named)
    made["tags"].append("b")
    assert (made.name, named["tags"]) == ("one", ["a"])


def test_trajectories_are_copied_with_their_lists():
    one = Trajectory([1, 2], [0, 1], logprobs=[0.0, -1.0], extra_fields={"of": ["x"]})
    (made,) = own_copy([one])
    assert made == one
    made.tokens[0] = made.logprobs[0] = 9
    made.metrics["m"] = 1.0
    made["of"].append("y")
    assert (one.tokens, one.logprobs, one.metrics, one["of"]) == ([1, 2], [0.0, -1.0], {}, ["x"])
