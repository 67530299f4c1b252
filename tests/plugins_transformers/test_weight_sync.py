"""The parity probe finds a sampler that does not run the trained weights."""

import json
import math
import pickle

import pytest
import torch

from plugrl.core.config.view import ConfigView
from plugrl.core.errors import RunError
from plugrl.core.factory import Factory
from plugrl.core.plugins.registry import default_registry
from plugrl.core.text.batch import Batch
from plugrl.core.text.inference.services import LoadedModel
from plugrl.core.text.learn.losses import LOSS_WEIGHTS, WeightedLoss
from plugrl.core.text.learn.step import aggregation_weights
from plugrl.core.text.models import Model, Models
from plugrl.core.text.schedule.weight_sync import WeightSync
from plugrl.core.text.trajectory import Trajectory
from plugrl.plugins.transformers import loading
from plugrl.trainers.self_hosted_cross_entropy import cross_entropy

ROLLOUTS = [Trajectory([2, 3, 4, 5], [0, 1, 1, 1]), Trajectory([6, 7], [0, 1])]


def train(service):
    batch = Batch.from_trajectories(ROLLOUTS)
    batch.values[LOSS_WEIGHTS] = aggregation_weights(batch.values["loss_mask"], "token-mean")
    service.forward_backward(batch, WeightedLoss(cross_entropy, {}))
    service.optimizer_step()
    service.version += 1


def test_a_sync_copies_weights_and_version(engine, train_service):
    model = Model("policy", engine, train_service())
    sync = WeightSync(model, 1e-4)
    assert sync() is None
    sync.observe(ROLLOUTS)
    train(model.train)
    assert sync() == pytest.approx(0, abs=1e-6)
    assert model.inference.version == 1


def test_a_sampler_with_other_weights_stops_the_run(engine, train_service, monkeypatch):
    model = Model("policy", engine, train_service())
    sync = WeightSync(model, 1e-4)
    sync.observe(ROLLOUTS)
    monkeypatch.setattr(engine, "update_weights", lambda weights, version: None)
    for _ in range(3):
        train(model.train)
    with pytest.raises(RunError, match="model 'policy'.*differ from the trainer's by"):
        sync()


class Sampler:
    """A sampler whose log-probabilities of the probe are written."""

    scores_prompts = True

    def __init__(self, scores):
        self.scores = scores

    def score(self, sequences):
        assert len(sequences) == len(self.scores)
        return self.scores


class Trained:
    """A train service that says the same of every token, and counts its syncs."""

    moved_bytes = 0

    def __init__(self, log_prob=-1.0):
        self.version = self.syncs = 0
        self._log_prob = log_prob

    def sync_to(self, inference):
        self.syncs += 1

    def compute_log_prob(self, batch):
        return torch.full(batch.values["loss_mask"].shape, self._log_prob)


def synced(scores, tolerance, service=None):
    sync = WeightSync(Model("policy", Sampler(scores), service or Trained()), tolerance)
    sync.observe(ROLLOUTS)
    return sync


# ROLLOUTS have four and two tokens; the first of each has no log-probability.
@pytest.mark.parametrize(
    ("scores", "parity"),
    [
        ([[0.0, -1.0, -1.0, -1.0], [0.0, -1.0]], 0.0),
        # 0.5 and 0.25 above, 0.25 below, and 1 below: 2 over four tokens.
        ([[9.0, -0.5, -0.75, -1.25], [9.0, -2.0]], 0.5),
        # Deviations to both sides do not cancel.
        ([[0.0, -1.5, -0.5, -1.0], [0.0, -1.0]], 0.25),
    ],
)
def test_parity_is_the_mean_absolute_difference(scores, parity):
    assert synced(scores, 1.0)() == pytest.approx(parity)
    if parity:
        assert synced(scores, parity)() == pytest.approx(parity)
        with pytest.raises(RunError, match="does not run the trained weights"):
            synced(scores, parity - 0.01)()


def test_a_sampler_that_gives_no_numbers_does_not_pass():
    with pytest.raises(RunError, match="differ from the trainer's by nan"):
        synced([[0.0, math.nan, -1.0, -1.0], [0.0, -1.0]], 1.0)()
    with pytest.raises(RunError, match="differ from the trainer's by inf"):
        synced([[0.0, -math.inf, -1.0, -1.0], [0.0, -1.0]], 1.0)()


def test_the_probe_goes_on_after_a_resume_and_old_weights_are_not_synced_again():
    right = [[0.0, -1.0, -1.0, -1.0], [0.0, -1.0]]
    sync = synced(right, 1.0)
    state = json.loads(json.dumps(sync.state_dict()))
    service = Trained()
    again = WeightSync(Model("policy", Sampler(right), service), 1.0)
    assert again.state_dict() == {"probe": []}
    again.load_state_dict(state)
    assert again.state_dict() == state == {"probe": [[2, 3, 4, 5], [6, 7]]}
    # Later trajectories do not take its place.
    again.observe([Trajectory([9, 9, 9], [0, 1, 1])])
    assert again.state_dict() == state
    assert again() == 0.0
    assert again() is None
    service.version += 1
    assert again() == 0.0
    assert service.syncs == 2
    # Another probe than the one that was scored before.
    again.load_state_dict({"probe": [[1, 2]]})
    again._model.inference.scores = [[0.0, -1.25]]
    service.version += 1
    assert again() == pytest.approx(0.25)


def test_the_probe_is_of_the_first_trajectories_that_hold_an_answer():
    sync = WeightSync(Model("policy", Sampler([]), Trained()), 1.0)
    sync.observe([Trajectory([3, 4], [0, 0]), Trajectory([5], [1])])
    assert sync.state_dict() == {"probe": []}
    sync.observe([Trajectory([3, 4], [0, 0]), *(Trajectory([7, n], [0, 1]) for n in (1, 2, 3))])
    assert sync.state_dict() == {"probe": [[7, 1], [7, 2]]}


def test_a_sampler_without_scores_is_told_of_once(caplog):
    service = Trained()
    sync = synced([], 1.0, service)
    sync._model.inference.scores_prompts = False
    for _ in range(3):
        service.version += 1
        assert sync() is None
    assert service.syncs == 3
    assert caplog.text.count("nothing proves that it samples from the trained weights") == 1


def test_weights_are_shared_where_nothing_is_sampled_during_training(engine, train_service):
    model = Model("policy", engine, train_service())
    sync = WeightSync(model, 1e-4, shares=True)
    sync()
    for name, weight in model.train.weights().items():
        assert engine._model.state_dict()[name].data_ptr() == weight.data_ptr()
    sync.observe(ROLLOUTS)
    before = engine.score([ROLLOUTS[0].tokens])
    train(model.train)
    assert sync() == pytest.approx(0, abs=1e-6)
    assert engine.version == 1
    # And they are the trained ones: what is made of them is made anew.
    assert engine.score([ROLLOUTS[0].tokens]) != before
    saved = model.train.state_dict()
    assert set(saved["weights"]) == set(engine._weights)


def test_weights_of_others_do_not_reach_the_owner_of_shared_ones(engine, train_service):
    model = Model("policy", engine, train_service())
    WeightSync(model, 1e-4, shares=True)()
    before = {name: weight.clone() for name, weight in model.train.weights().items()}
    engine.update_weights({name: weight + 1 for name, weight in before.items()}, 5)
    for name, weight in model.train.weights().items():
        assert torch.equal(weight, before[name])
        assert torch.equal(engine._weights[name], before[name] + 1)
    assert engine.version == 5


def test_weights_of_another_precision_are_copied(spec, engine, train_service):
    for other in (spec(dtype="bfloat16"), spec(dtype="float64")):
        service = train_service(other)
        service.share_with(engine)
        assert not engine._shared
        service.sync_to(engine)


def built(monkeypatch, spec, shares, **section):
    """The policy of a run, and how many models were built for it."""
    count = []
    build = loading._from_config
    monkeypatch.setattr(loading, "_from_config", lambda spec: count.append(spec) or build(spec))
    tree = {"source": spec().source.to_dict(), "inference": {"type": "transformers"}, **section}
    tree.setdefault("train", {"type": "local", "learning_rate": 0.01})
    models = ConfigView({"policy": tree}, "models")
    factory = Factory(default_registry())
    made = Models.load(models, factory, seed=0, device="cpu", shares=shares)
    return made["policy"], len(count)


def test_a_model_is_built_once_for_both_services(monkeypatch, spec):
    (shared, once), (apart, again) = (built(monkeypatch, spec, shares) for shares in (True, False))
    assert once == again == 1
    for model, same in ((shared, True), (apart, False)):
        sampled, trained = model.inference._weights, model.train.weights()
        for name, weight in trained.items():
            assert (sampled[name].data_ptr() == weight.data_ptr()) is same
            assert torch.equal(sampled[name], weight)
        sync = WeightSync(model, 1e-4, shares=same)
        sync.observe(ROLLOUTS)
        runner = model.inference._runner
        for _ in range(2):
            assert sync() == pytest.approx(0, abs=1e-6)
            train(model.train)
        assert model.inference._runner is runner


def test_foreign_weights_do_not_reach_the_owner_of_those_that_were_loaded(monkeypatch, spec):
    model, _ = built(monkeypatch, spec, shares=True)
    before = {name: weight.clone() for name, weight in model.train.weights().items()}
    model.inference.update_weights({name: w + 1 for name, w in before.items()}, 5)
    for name, weight in model.train.weights().items():
        assert torch.equal(weight, before[name])


def test_what_an_adapter_leaves_as_it_is_is_shared_and_the_rest_merged(monkeypatch, spec):
    pytest.importorskip("peft")
    adapter = {"type": "lora", "r": 2, "alpha": 4.0, "dropout": 0.0, "target_modules": "auto"}
    model, _ = built(monkeypatch, spec, shares=True, adapter=adapter)
    sync = WeightSync(model, 1e-4, shares=True)
    sync.observe(ROLLOUTS)
    frozen = {name: weight.clone() for name, weight in model.train._adapter.base().items()}
    for _ in range(3):
        sync()
        train(model.train)
    assert sync() == pytest.approx(0, abs=1e-6)
    sampled = model.inference._weights
    for name, weight in model.train._adapter.base().items():
        assert torch.equal(weight, frozen[name]), name
        merged = name.rpartition(".")[0].rpartition(".")[2].endswith("_proj")
        assert (sampled[name].data_ptr() == weight.data_ptr()) is not merged, name
        assert torch.equal(sampled[name], weight) is not merged, name


def test_what_services_leave_for_one_another_stays_in_the_process():
    loaded = LoadedModel(shares=True)
    loaded.model = object()
    arrived = pickle.loads(pickle.dumps(loaded))
    assert (arrived.model, arrived.shares) == (None, False)
