"""Keys that belong to the choice of a component, beside those of its own schema."""

import pytest


@pytest.mark.parametrize("loss", [{"type": "clipped"}, {"type": "plain"}])
def test_a_train_service_is_a_key_of_trainers_alone(faults, loss):
    section = {"trainer": {"type": "toy", "algorithm": {"loss": {**loss, "train_service": 1}}}}
    (found,) = faults(section)
    assert found.startswith("trainer.algorithm.loss.train_service (Python): ")


def test_a_trainer_may_have_a_train_service(check):
    section = {"type": "toy", "train_service": {"type": "local"}}
    assert check({"trainer": section}).tree["trainer"]["train_service"] == {"type": "local"}
