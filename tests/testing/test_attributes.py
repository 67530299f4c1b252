"""What a resumed trainer has forgotten is named by its attributes."""

import random

import numpy as np
import pytest
import torch

from plugrl.testing.attributes import Attributes, forgotten, snapshot


class Part:
    def __init__(self):
        self.seen = 0


class Trainer:
    """Counts in attributes of many sorts, of which a resumed one gets some back."""

    def __init__(self):
        self.scale, self.call = 2.0, print
        self.total, self.part, self.weights = 0, Part(), torch.zeros(2)
        self.layer, self.noise = torch.nn.Linear(1, 1, bias=False), np.random.default_rng(0)
        torch.nn.init.zeros_(self.layer.weight)
        self.dice, self.history, self.lazy = random.Random(0), [], None

    def train(self, saved=None):
        self.lazy = 0 if saved is None else saved["lazy"]
        for _ in range(2 if saved is None else 1):
            self.step()
            self.watch.plugrl_step_end(self)

    trainer = property(lambda self: self)

    def step(self):
        self.total += 1
        self.part.seen += 1
        self.weights = self.weights + 1
        with torch.no_grad():
            self.layer.weight += 1
        self.noise.normal()
        self.dice.random()
        self.history.append(self.total)
        self.lazy += 1


CHANGED = {"total", "part.seen", "weights", "layer", "noise", "dice", "history"}


def watched(trainer):
    trainer.watch = Attributes(Trainer)
    return trainer.watch


@pytest.mark.parametrize("back", [set(), {"total", "history"}, {"part.seen", "noise"}, CHANGED])
def test_what_was_changed_and_is_not_back_is_named(back):
    whole, resumed = Trainer(), Trainer()
    other = Trainer()
    with watched(whole).watched():
        whole.train()
    # A trainer after one step, from which some of its state is taken over.
    other.watch, other.lazy = Attributes(Trainer), 0
    other.step()
    for name in back - {"part.seen"}:
        setattr(resumed, name, getattr(other, name))
    if "part.seen" in back:
        resumed.part = other.part
    after = watched(resumed)
    after.before = snapshot(resumed)
    resumed.train({"lazy": 1})
    assert set(forgotten(whole.watch, after, 1)) == CHANGED - back


def test_the_class_is_left_as_it_was():
    train = Trainer.__dict__["train"]
    with Attributes(Trainer).watched():
        assert Trainer.train is not train
    assert Trainer.__dict__["train"] is train

    class Heir(Trainer):
        pass

    with Attributes(Heir).watched():
        pass
    assert "train" not in vars(Heir)
