"""Methods by the names that they had before: overridden, called, and through super()."""

import warnings

import pytest

from plugrl.core.errors import PlugrlDeprecationWarning
from plugrl.core.renamed_methods import RenamedMethods
from plugrl.core.text.inference.services import TrainService
from plugrl.core.text.trajectory_trainer import TrajectoryTrainer
from plugrl.core.trainer import Trainer


class Base(RenamedMethods):
    RENAMED_METHODS = {"old": "new"}

    def new(self, number):
        return ["base", number]


class Middle(Base):
    def new(self, number):
        return ["middle", *super().new(number)]


def test_an_override_by_the_former_name_is_one_and_reaches_its_parent():
    with pytest.warns(PlugrlDeprecationWarning, match=r"Own\.old is now called new; write new"):

        class Own(Middle):
            def old(self, number):
                return ["own", *super().old(number)]

    with pytest.warns(PlugrlDeprecationWarning, match="^old is now called new"):
        assert Own().new(3) == ["own", "middle", "base", 3]


def test_a_call_by_the_former_name_warns_where_it_is_written():
    with pytest.warns(PlugrlDeprecationWarning, match="write new") as said:
        assert Middle().old(3) == ["middle", "base", 3]
    assert said[0].filename == __file__


def test_the_new_name_says_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        class Own(Middle):
            def new(self, number):
                return ["own", *super().new(number)]

        assert Own().new(3) == ["own", "middle", "base", 3]


@pytest.mark.parametrize("base", [Trainer, TrajectoryTrainer, TrainService])
def test_what_hands_weights_on_by_its_name_of_0_1_still_does(base):
    with pytest.warns(PlugrlDeprecationWarning, match="export_weights"):
        own = type("Own", (base,), {"hand_over": lambda self: "mine"})
    assert own.export_weights(None) == "mine"
