"""The service ``fsdp`` keeps the contract of train services, with two ranks."""

import pytest

from plugrl.testing.suite.test_train_service import TrainServiceContract

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("cluster")]


class TestRanks(TrainServiceContract):
    """The suite of the kit."""

    __test__ = True
    plugrl_train_service = "fsdp"
    conformance = {"config": {"workers": 2, "timeout": 120.0, "learning_rate": 0.01}}  # noqa: RUF012
