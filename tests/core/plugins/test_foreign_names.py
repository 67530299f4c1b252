"""Names of similar frameworks: methods that nothing would call, attributes that are not there."""

import pytest

from plugrl import RolloutWorker, SelfHostedTrainer, StopRun, Trainer
from plugrl.core.foreign_names import OF_TRAINERS, OF_WORKERS
from plugrl.core.renamed_methods import RenamedMethods
from plugrl.trainers.self_hosted_grpo import SelfHostedGrpoTrainer
from plugrl.trainers.vanilla_ppo import VanillaPpoTrainer


def nothing(self, *args):
    return None


@pytest.mark.parametrize("name", OF_TRAINERS)
def test_a_method_of_another_trainer_that_nothing_calls_is_refused_with_ours(name):
    base = VanillaPpoTrainer if name == "_get_log_stats" else SelfHostedGrpoTrainer
    with pytest.raises(TypeError) as refused:
        type("Mine", (base,), {name: nothing})
    said = str(refused.value)
    assert said.startswith(f"Mine.{name} is called by nothing; write {OF_TRAINERS[name]}")
    assert "\n" not in said


@pytest.mark.parametrize("name", OF_WORKERS)
def test_so_is_one_of_another_worker(name):
    with pytest.raises(TypeError, match=f"^Mine.{name} is called by nothing; write "):
        type("Mine", (RolloutWorker,), {name: nothing, "rollout": nothing})


def test_a_method_that_the_class_calls_is_its_own():
    class Mine(SelfHostedGrpoTrainer):
        def _prepare_batch(self, batch):
            self.stop()
            return super()._prepare_batch(self._apply_kl_penalty(batch, 0.1))

        def stop(self):
            raise StopRun("enough")

        def _apply_kl_penalty(self, batch, beta):
            return batch

    class Below(Mine):
        def _apply_kl_penalty(self, batch, beta):
            return super()._apply_kl_penalty(batch, 2 * beta)

    assert Below({}).config == Mine({}).config


def test_calling_itself_alone_is_being_called_by_nothing():
    class Base(RenamedMethods):
        FOREIGN = {"stop": "halt(self)"}

    with pytest.raises(TypeError, match=r"^Mine.stop .*write halt\(self\), or give a method"):

        class Mine(Base):
            def stop(self):
                return super().stop()


def test_a_base_that_a_subclass_completes_may_have_what_the_subclass_calls():
    class Base(SelfHostedTrainer):
        def _compute_data_metrics(self, batch):
            return {}

    class Whole(Base):
        def _prepare_batch(self, batch):
            return batch, self._compute_data_metrics(batch)

    assert Whole({})
    with pytest.raises(TypeError, match="Idle._compute_data_metrics is called by nothing"):
        type("Idle", (Base,), {"_prepare_batch": lambda self, batch: (batch, {})})


def test_a_method_in_the_place_of_a_property_is_refused_even_if_it_is_called():
    with pytest.raises(TypeError, match=r"Mine.run is called .* self.run is the run"):

        class Mine(Trainer):
            def train(self):
                self.run()

            def run(self):
                pass


def test_an_attribute_of_another_base_says_what_to_write():
    trainer = SelfHostedGrpoTrainer({})
    with pytest.raises(AttributeError, match="Trainer has no _activity_tracker; write metrics"):
        trainer._activity_tracker.log_train_step({}, 1)
    assert not hasattr(trainer, "_trajectory_pool")
    trainer.state = "its own"
    assert trainer.state == "its own"


def test_other_missing_names_and_failing_properties_say_what_they_always_said():
    class Mine(SelfHostedGrpoTrainer):
        @property
        def broken(self):
            return None.shape

    with pytest.raises(AttributeError, match="'Mine' object has no attribute 'typo'"):
        Mine({}).typo  # noqa: B018 - the access is the point
    with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'shape'"):
        Mine({}).broken  # noqa: B018 - the access is the point
