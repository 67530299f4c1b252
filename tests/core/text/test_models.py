"""How the services of a run's models are loaded: all begin, then each loads; or all are closed."""

import pytest
from engines import Engine

from plugrl.core.config.view import ConfigView
from plugrl.core.errors import ConfigError
from plugrl.core.factory import Factory
from plugrl.core.plugins.registry import Registry
from plugrl.core.text.inference.services import BaseTrainService
from plugrl.core.text.models import Models


class Notes(list):
    """What services were asked for, in order, and which of it fails."""

    def __init__(self):
        super().__init__()
        self.faults = {}

    def note(self, *what):
        self.append(what)
        if what in self.faults:
            raise self.faults[what]


NOTES = Notes()


class Train(BaseTrainService):
    """Has no weights."""

    def compute_log_prob(self, batch):
        raise NotImplementedError

    def weights(self):
        raise NotImplementedError

    def load_weights(self, weights):
        raise NotImplementedError

    def state_dict(self):
        raise NotImplementedError

    def load_state_dict(self, state):
        raise NotImplementedError

    def load(self, spec):
        self.spec = spec
        NOTES.note("load", f"{spec.name}.train")


class Sampler(Engine):
    def load(self, spec):
        self.spec = spec
        NOTES.note("load", f"{spec.name}.inference")


def elsewhere(base, part):
    """The service with processes of its own, which it starts before it loads."""

    class Elsewhere(base):
        def begin_load(self, spec):
            self.name = f"{spec.name}.{part}"
            NOTES.note("begin", self.name)

        def close(self):
            NOTES.note("close", self.name)

    return Elsewhere


FACTORY = Factory(
    Registry(),
    own={
        ("inference_service", "here"): Sampler,
        ("inference_service", "elsewhere"): elsewhere(Sampler, "inference"),
        ("train_service", "here"): Train,
        ("train_service", "elsewhere"): elsewhere(Train, "train"),
    },
)


@pytest.fixture(autouse=True)
def notes():
    NOTES.clear()
    NOTES.faults = {}
    return NOTES


def load(inference="elsewhere", train="elsewhere"):
    tree = {
        name: {
            "source": {"path": None},
            "inference": {"type": inference},
            "train": None if name == "judge" else {"type": train},
            "adapter": ConfigView({"r": 4}, "adapter") if name == "policy" else None,
        }
        for name in ("policy", "judge")
    }
    return Models.load(ConfigView(tree, "models"), FACTORY, seed=3, device="cpu")


SERVICES = ["policy.inference", "policy.train", "judge.inference"]


def test_all_services_begin_before_one_loads_in_the_order_of_the_models(notes):
    models = load()
    assert notes == [(what, name) for what in ("begin", "load") for name in SERVICES]
    # Each is given what it is to load; the adapter is the train service's alone.
    specs = [models["policy"].inference.spec, models["policy"].train.spec]
    assert [spec.adapter is None for spec in specs] == [True, False]
    assert all(spec.name == "policy" and spec.seed == 3 and spec.trained for spec in specs)


def test_services_that_only_load_do_so_in_order(notes):
    load("here", "here")
    assert notes == [("load", name) for name in SERVICES]


def test_services_that_begin_stand_beside_others(notes):
    load("here", "elsewhere")
    assert notes == [("begin", "policy.train"), *(("load", name) for name in SERVICES)]


@pytest.mark.parametrize(
    "error", [ConfigError("models.policy.source: is empty"), KeyboardInterrupt]
)
@pytest.mark.parametrize(
    ("fault", "open_then"),
    [
        (("begin", "policy.inference"), []),
        (("begin", "judge.inference"), SERVICES[:2]),
        (("load", "policy.inference"), SERVICES),
        (("load", "judge.inference"), SERVICES),
    ],
)
def test_where_one_fails_those_that_began_are_closed_and_its_error_is_told(
    notes, fault, error, open_then
):
    notes.faults = {
        fault: error,
        ("close", "policy.train"): RuntimeError("cannot be closed either"),
    }
    with pytest.raises(type(error) if isinstance(error, Exception) else error) as raised:
        load()
    assert str(raised.value) in ("models.policy.source: is empty", "")
    after = notes[notes.index(fault) + 1 :]
    assert after == [("close", name) for name in reversed(open_then)]


def test_a_service_that_has_loaded_nothing_is_no_second_fault(notes):
    """Services that know no first half are closed too, by whatever they have for it."""
    notes.faults = {("load", "policy.inference"): ConfigError("no such model")}
    with pytest.raises(ConfigError, match="^no such model$"):
        load("here", "here")
