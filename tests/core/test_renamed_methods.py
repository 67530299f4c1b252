"""Methods by the names that they had before: overridden, called, and through super()."""

import warnings

import pytest

from plugrl.core.errors import PlugrlDeprecationWarning
from plugrl.core.renamed_methods import RenamedMethods
from plugrl.core.text.agents.parsing import Parser
from plugrl.core.text.data.loader import Prompt
from plugrl.core.text.dialogue.dialogue import Dialogue
from plugrl.core.text.dialogue.language_models import LanguageModelSystem
from plugrl.core.text.dialogue.system import System
from plugrl.core.text.inference.services import TrainService
from plugrl.core.text.jobs.fine_tuning import FineTuneService
from plugrl.core.text.rollout import worker
from plugrl.core.text.trajectory import Trajectory
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


@pytest.mark.parametrize(
    ("base", "former", "name"),
    [
        (System, "updated", "sync_weights"),
        (System, "stepped", "after_optimizer_step"),
        (LanguageModelSystem, "updated", "sync_weights"),
        (TrainService, "stepped", "after_optimizer_step"),
        (Dialogue, "said", "with_message"),
        (Parser, "begun", "reply_prefix"),
        (FineTuneService, "again", "retry"),
        (Trajectory, "copied", "clone"),
    ],
)
def test_an_override_by_its_name_of_0_1_is_called_by_the_new_one(base, former, name):
    with pytest.warns(PlugrlDeprecationWarning, match=f"{former} is now called {name}"):
        own = type("Own", (base,), {former: lambda self, *given: ("mine", *given)})
    assert getattr(own, name)(None, 1) == ("mine", 1)


def test_former_names_are_not_asked_of_whoever_writes_a_subclass():
    assert {"sync_weights", "after_optimizer_step"} <= System.__abstractmethods__
    assert not {"updated", "stepped"} & System.__abstractmethods__


def test_values_are_still_made_and_copied_by_their_names_of_0_1():
    with pytest.warns(PlugrlDeprecationWarning, match="write with_message"):
        assert Dialogue("a").said("tester", "b").messages == (("tester", "b"),)
    one = Trajectory([1, 2], [0, 1])
    with pytest.warns(PlugrlDeprecationWarning, match="write clone"):
        made = one.copied()
    assert made == one
    assert made.tokens is not one.tokens


def test_a_demonstration_is_still_made_by_its_name_of_0_1():
    attempt = Prompt({}, index=0, run_id=2, group_id="0/0", turn=0)
    with pytest.warns(PlugrlDeprecationWarning, match="write demonstration_of"):
        made = worker.written(attempt, "policy", [1], [2, 3], level=1)
    assert made == worker.demonstration_of(attempt, "policy", [1], [2, 3], level=1)
    assert (made.tokens, made.loss_mask, made.run_id) == ([1, 2, 3], [0, 1, 1], 2)


@pytest.mark.parametrize("value", [Dialogue("a"), Trajectory([1], [0])])
def test_a_base_with_former_names_leaves_a_value_without_other_attributes(value):
    """There are millions of them, and a slip in a name must not make a new one."""
    with pytest.raises((AttributeError, TypeError)):
        value.rewards = 1.0


@pytest.mark.parametrize("base", [Trainer, TrajectoryTrainer, TrainService])
def test_what_hands_weights_on_by_its_name_of_0_1_still_does(base):
    with pytest.warns(PlugrlDeprecationWarning, match="export_weights"):
        own = type("Own", (base,), {"hand_over": lambda self: "mine"})
    assert own.export_weights(None) == "mine"
