"""LoRA adapters of the local train service."""

import weakref
from dataclasses import replace

import pytest
import torch

from plugrl.core.config.schemas.describe import describe_section
from plugrl.core.config.view import ConfigView
from plugrl.core.errors import ConfigError, UsageError
from plugrl.core.experiment import prepare
from plugrl.core.text.batch import Batch
from plugrl.core.text.learn.losses import LOSS_WEIGHTS, WeightedLoss
from plugrl.core.text.learn.step import aggregation_weights
from plugrl.core.text.models import Model
from plugrl.core.text.schedule.weight_sync import WeightSync
from plugrl.core.text.trajectory import Trajectory
from plugrl.plugins.transformers import adapters
from plugrl.trainers.self_hosted_cross_entropy import cross_entropy

pytest.importorskip("peft")
LOSS = WeightedLoss(cross_entropy, {})
ROWS = [[2, 3, 4, 5, 1], [6, 7, 1], [3, 2, 8, 1], [5, 1]]
ROLLOUTS = [Trajectory(t, [0] + [1] * (len(t) - 1)) for t in ROWS]


def with_adapter(spec, **section):
    chosen = {"type": "lora", "r": 4, "alpha": 16.0, "dropout": 0.0, "target_modules": "auto"}
    return replace(spec, adapter=ConfigView({**chosen, **section}, checked=True))


def batch():
    made = Batch.from_trajectories(ROLLOUTS)
    made.values[LOSS_WEIGHTS] = aggregation_weights(made.values["loss_mask"], "token-mean")
    return made


def step(service):
    totals = service.forward_backward(batch(), LOSS)
    return totals["loss"][0], service.optimizer_step()


def copied(weights):
    return {name: value.clone() for name, value in weights.items()}


def test_the_adapter_alone_gets_gradients_and_the_rest_stays(train_service, spec):
    plain, service = train_service(spec()), train_service(with_adapter(spec()))
    base = copied(plain.weights())
    service.forward_backward(batch(), LOSS)
    graded = {n for n, p in service._model.named_parameters() if p.grad is not None}
    assert len(graded) == 2 * 2 * 7  # A and B of seven linear layers in each of two blocks
    assert all(".lora_A." in name or ".lora_B." in name for name in graded)
    service.optimizer_step()
    step(service)
    held = {n.replace(".base_layer.", "."): v for n, v in service._model.state_dict().items()}
    for name, value in base.items():
        assert torch.equal(held[name], value)
    assert len(service.state_dict()["optimizer"]) == len(graded)


def test_a_new_adapter_changes_nothing(train_service, spec):
    plain, service = train_service(spec()), train_service(with_adapter(spec()))
    # The plain model may be computed in fewer operations, which round differently.
    torch.testing.assert_close(
        service.compute_log_prob(batch()), plain.compute_log_prob(batch()), atol=1e-5, rtol=1e-5
    )
    assert list(plain.weights()) == list(service.weights())
    for name, value in plain.weights().items():
        assert torch.equal(service.weights()[name], value)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_merged_weights_by_hand(train_service, spec, dtype):
    chosen = spec(dtype=dtype)
    plain = train_service(chosen)
    service = train_service(with_adapter(chosen, r=4, alpha=12.0, target_modules=["q_proj"]))
    for _ in range(3):
        step(service)
    state, merged = service.state_dict()["adapter"], service.weights()
    assert sorted(state)[0] == "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    for name, value in plain.weights().items():
        expected = value
        if "q_proj" in name:
            stem = f"base_model.model.{name.removesuffix('.weight')}"
            down, up = state[f"{stem}.lora_A.weight"], state[f"{stem}.lora_B.weight"]
            expected = (value.double() + 12 / 4 * up.double() @ down.double()).to(value.dtype)
            assert not torch.equal(merged[name], value)
        assert merged[name].dtype == value.dtype
        torch.testing.assert_close(merged[name], expected)


# gpt2 keeps its matrices transposed; the others have tied or scaled heads and biases.
@pytest.mark.parametrize("name", ["qwen3", "qwen3 tied", "gpt2", "qwen2", "granite", "bloom"])
def test_the_merged_weights_compute_what_the_adapter_does(train_service, architecture_spec, name):
    chosen = architecture_spec(name)
    service, merged = train_service(with_adapter(chosen)), train_service(chosen)
    start = merged.compute_log_prob(batch())
    for _ in range(3):
        step(service)
    merged.load_weights(copied(service.weights()))
    ours = service.compute_log_prob(batch())
    torch.testing.assert_close(merged.compute_log_prob(batch()), ours, rtol=1e-4, atol=1e-5)
    assert (ours - start).abs().max() > 1e-3


def test_the_engine_gets_one_merged_weight_after_the_other(
    engine, train_service, spec, monkeypatch
):
    merged, alive = [], []

    class Noting(adapters.MergedWeights):
        def __getitem__(self, name):
            weight = super().__getitem__(name)
            if name in self._products:
                alive.append(sum(one() is not None for one in merged))
                merged.append(weakref.ref(weight))
            return weight

    monkeypatch.setattr(adapters, "MergedWeights", Noting)
    service = train_service(with_adapter(spec()))
    step(service)
    service.share_with(engine)
    alive.clear()
    service.sync_to(engine)
    # Of each linear layer in two blocks; the one before it may not be gone when it is asked for.
    assert len(alive) == 2 * 7
    assert max(alive) <= 1
    for name, value in service.weights().items():
        assert torch.equal(engine._model.state_dict()[name], value)


def test_the_sampler_runs_the_merged_weights(engine, train_service, spec):
    model = Model("policy", engine, train_service(with_adapter(spec())))
    sync = WeightSync(model, 1e-4)
    sync.observe(ROLLOUTS)
    for _ in range(5):
        step(model.train)
    assert sync() < 1e-4


def test_an_engine_that_merges_gets_the_adapter_alone(engine, train_service, spec, monkeypatch):
    service, given, take = train_service(with_adapter(spec())), [], engine.update_adapter

    def update_adapter(weights, version):
        given.append(weights)
        take(weights, version)

    monkeypatch.setattr(type(engine), "merges_adapters", True)
    monkeypatch.setattr(engine, "update_adapter", update_adapter)
    other = copied(service.weights())
    for number in range(3):
        step(service)
        service.version = number + 1
        service.sync_to(engine)
        assert engine.version == number + 1
        for name, value in service.weights().items():
            assert torch.equal(engine._weights[name], value)
        if number == 1:
            service.load_weights(other)
    # Frozen weights are others after the second time alone, so that they need not be moved again.
    assert given[0].edition is given[1].edition
    assert given[1].edition is not given[2].edition
    moved = sum(each.down.numel() + each.up.numel() for each in given[0].products.values())
    assert moved == sum(weight.numel() for weight in service.parameters())


def test_a_short_run_learns(train_service, architecture_spec):
    service = train_service(with_adapter(architecture_spec("qwen3")), learning_rate=0.05)
    losses = [step(service)[0] for _ in range(15)]
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_resumed_training_goes_on_bit_for_bit(train_service, spec, dropout):
    chosen = with_adapter(spec(), dropout=dropout)
    straight, resumed = train_service(chosen), train_service(chosen)
    for _ in range(3):
        step(straight)
    resumed.load_state_dict(copied_state(straight))
    generator = torch.get_rng_state()
    ahead = [step(straight) for _ in range(3)]
    torch.set_rng_state(generator)
    assert ahead == [step(resumed) for _ in range(3)]
    for name, value in straight.weights().items():
        assert torch.equal(value, resumed.weights()[name])


def copied_state(service):
    state = service.state_dict()
    return {**state, "adapter": copied(state["adapter"])}


def test_dropout_is_in_training_alone(train_service, spec):
    service = train_service(with_adapter(spec(), dropout=0.5))
    for _ in range(3):
        step(service)
    assert torch.equal(service.compute_log_prob(batch()), service.compute_log_prob(batch()))
    first = service.forward_backward(batch(), LOSS)["loss"]
    assert service.forward_backward(batch(), LOSS)["loss"] != first


def test_a_later_phase_is_resumed_with_the_weights_it_began_with(train_service, spec):
    before = train_service(spec())
    for _ in range(3):
        step(before)
    straight, resumed = (train_service(with_adapter(spec())) for _ in range(2))
    assert "base" not in straight.state_dict()
    step(straight)
    straight.load_weights(copied(before.weights()))
    for name, value in before.weights().items():
        assert torch.equal(straight.weights()[name], value)
    step(straight)
    resumed.load_state_dict(copied_state(straight))
    assert step(straight) == step(resumed)
    assert torch.equal(straight.compute_log_prob(batch()), resumed.compute_log_prob(batch()))


def test_adapters_depend_on_the_seed_alone(train_service, spec):
    torch.manual_seed(1)
    generator = torch.get_rng_state()
    first = train_service(with_adapter(spec())).state_dict()["adapter"]
    assert torch.equal(torch.get_rng_state(), generator)
    torch.manual_seed(2)
    again = train_service(with_adapter(spec())).state_dict()["adapter"]
    assert all(torch.equal(value, again[name]) for name, value in first.items())
    other = train_service(replace(with_adapter(spec()), seed=5)).state_dict()["adapter"]
    assert any(not torch.equal(value, other[name]) for name, value in first.items())


def test_peft_reads_a_saved_adapter(train_service, spec, tmp_path):
    from peft import PeftModel

    service = train_service(with_adapter(spec()))
    for _ in range(3):
        step(service)
    service.save_adapter(tmp_path)
    base = train_service(spec())._model
    loaded = PeftModel.from_pretrained(base, tmp_path).merge_and_unload().state_dict()
    for name, value in service.weights().items():
        torch.testing.assert_close(loaded[name], value)
    with pytest.raises(UsageError, match="no adapter"):
        train_service(spec()).save_adapter(tmp_path)


@pytest.mark.parametrize(
    ("name", "layers", "message"),
    [
        ("qwen3", ["no_such_layer"], r"models\.policy\.adapter\.target_modules: .*no_such_layer"),
        ("qwen3", ["embed_tokens"], "embed_tokens is no linear layer"),
        ("qwen3 tied", ["lm_head"], "lm_head shares its weight"),
    ],
)
def test_layers_that_cannot_be_adapted(train_service, architecture_spec, name, layers, message):
    with pytest.raises(ConfigError, match=message) as caught:
        train_service(with_adapter(architecture_spec(name), target_modules=layers))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("r=0", "must be at least 1"),
        ("dropout=1.0", "must be below 1"),
        ("target_modules=some", "must be auto or a list"),
        ("target_modules=[]", "must name at least one layer"),
        ("type=prefix", "lora"),
    ],
)
def test_sections_that_make_no_sense(override, message):
    with pytest.raises(ConfigError, match=message):
        prepare("quickstart", [f"models.policy.adapter.{override}"])


def test_a_frozen_model_has_no_adapter():
    overrides = ["models.other.source.config.model_type=qwen3", "models.other.adapter.r=4"]
    with pytest.raises(ConfigError, match=r"models\.other\.adapter.*is for a trained model"):
        prepare("quickstart", overrides)


def test_a_missing_package_is_named_with_its_remedy(monkeypatch, train_service, spec):
    monkeypatch.setattr(adapters, "find_spec", lambda name: None)
    prepare("quickstart")
    with pytest.raises(ConfigError) as caught:
        prepare("quickstart", ["models.policy.adapter.r=4"])
    assert "models.policy.adapter" in str(caught.value)
    assert 'pip install "plugrl[lora]"' in str(caught.value)
    with pytest.raises(ConfigError, match=r"pip install \"plugrl\[lora\]\""):
        train_service(with_adapter(spec()))


def test_the_keys_of_an_optional_section_are_described():
    rows = {row["key"]: row for row in describe_section("models")}
    assert rows["NAME.adapter"]["type"] == "mapping | null"
    assert rows["NAME.adapter.r"]["default"] == 8
