"""Steps of ``hf_ast``: clipping, decay, precision, accumulation; and folders that are whole."""

import math

import pytest
import torch
from testers import PolicyGradient, make_environment, make_system, weights
from transformers import AutoModelForCausalLM

from plugrl import Batch, HFASTConfiguration, TrainingConfiguration
from plugrl.core.errors import ConfigError, NonFiniteError
from plugrl.core.run.atomic_writes import replace_folder, restore_folder
from plugrl.trainers.harness import HarnessTrainer
from plugrl.trainers.hf_ast import HFASTTrainer


def configured(cls=HFASTConfiguration, **changes):
    base = {"lr": 1e-2, "training_steps": 3, "num_episodes_per_experience": 2, "batch_size": 5}
    return cls(**{**base, **changes})


def made(folder, config=None, system=None, algorithm=None, **changes):
    return HFASTTrainer(
        config or configured(**changes),
        make_environment(system or make_system()),
        algorithm or PolicyGradient(),
        eval_every=0,
        ckpt_dir=folder,
    )


def trained(*args, **changes):
    trainer = made(*args, **changes)
    trainer.train()
    return weights(trainer.environment.system)


def distance(one, other):
    return math.sqrt(sum(float((one[name] - other[name]).square().sum()) for name in one))


def test_without_its_own_settings_it_is_the_trainer_harness(tmp_path):
    plain = make_system()
    config = configured(TrainingConfiguration, optimizer="sgd")
    HarnessTrainer(config, make_environment(plain), PolicyGradient()).train()
    own = trained(tmp_path, optimizer="sgd", max_grad_norm=None)
    assert all(torch.equal(own[name], value) for name, value in weights(plain).items())


def test_a_configuration_without_its_fields_has_their_defaults(tmp_path):
    own = trained(tmp_path, configured(TrainingConfiguration))
    full = trained(tmp_path, configured())
    assert all(torch.equal(own[name], full[name]) for name in full)


def test_a_gradient_is_clipped_to_its_limit(tmp_path):
    start = weights(make_system())
    options = {"optimizer": "sgd", "lr": 1.0, "training_steps": 1, "batch_size": 100}
    clipped = trained(tmp_path, max_grad_norm=1e-3, **options)
    assert distance(clipped, start) == pytest.approx(1e-3, rel=1e-2)
    free = trained(tmp_path, max_grad_norm=None, **options)
    assert distance(free, start) > 0.1


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd", "rmsprop", "adagrad"])
def test_weight_decay_reaches_every_optimizer(tmp_path, optimizer):
    trainer = made(tmp_path, optimizer=optimizer, weight_decay=0.25)
    assert {group["weight_decay"] for group in trainer.optimizer.param_groups} == {0.25}


def test_weight_decay_shrinks_weights(tmp_path):
    # AdamW takes lr * weight_decay of each weight, whatever the gradient.
    start = weights(make_system())
    options = {"lr": 1e-3, "training_steps": 1, "batch_size": 100}
    plain = trained(tmp_path / "plain", **options)
    decayed = trained(tmp_path / "decayed", weight_decay=100.0, **options)
    name = "model.layers.0.mlp.up_proj.weight"
    torch.testing.assert_close(decayed[name], plain[name] - start[name] * 0.1, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("accumulation", [1, 2, 4])
def test_updates_are_counted_over_experiences(tmp_path, accumulation):
    # Three experiences of 3 batches.
    trainer = made(tmp_path, gradient_accumulation_steps=accumulation)
    steps = []
    trainer.optimizer.register_step_post_hook(lambda *_: steps.append(1))
    trainer.train()
    assert len(steps) == 9 // accumulation


def test_bfloat16_is_used_in_the_forward_pass_and_learns(tmp_path):
    seen = []

    class Looking(PolicyGradient):
        def step(self, batch):
            projection = self.system.tester.model.layers[0].mlp.up_proj
            handle = projection.register_forward_hook(lambda *a: seen.append(a[-1].dtype))
            loss, logs = super().step(batch)
            handle.remove()
            assert loss.dtype == torch.float32
            return loss, logs

    options = {"training_steps": 1, "batch_size": 100, "optimizer": "sgd"}
    start = weights(make_system())
    half = trained(tmp_path, algorithm=Looking(), mixed_precision="bf16", **options)
    full = trained(tmp_path, **options)
    assert seen == [torch.bfloat16]
    assert all(value.dtype == torch.float32 for value in half.values())
    assert 0 < distance(half, full) < 0.1 * distance(full, start)


def test_values_and_entropies_are_float32_in_half_precision():
    system = make_system(train={"value_head": True})
    environment = make_environment(system)
    # A new head gives 0 everywhere.
    *_, head, _ = system.parameters()
    torch.nn.init.constant_(head, 0.1)
    system.sync_weights()
    rows = Batch.from_trajectories([n.trajectory() for n in environment.rollout(0).nodes()])
    plain = system.log_probs(rows, ("values", "entropy"))
    with torch.autocast("cpu", torch.bfloat16):
        half = system.log_probs(rows, ("values", "entropy"))
    pairs = [(half[0], plain[0]), *((half[1][name], plain[1][name]) for name in plain[1])]
    for own, expected in pairs:
        assert own.dtype == torch.float32
        assert not torch.equal(own, expected)
        torch.testing.assert_close(own, expected, rtol=0.1, atol=0.1)


def test_float16_on_the_cpu_is_refused_with_the_reason(tmp_path):
    with pytest.raises(ConfigError, match="mixed_precision is fp16, and the tester is on the CPU"):
        made(tmp_path, mixed_precision="fp16")


def test_scaled_gradients_make_the_steps_of_unscaled_ones(tmp_path):
    plain = trained(tmp_path, max_grad_norm=0.5)
    trainer = made(tmp_path, max_grad_norm=0.5)
    trainer._scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    trainer.train()
    scaled = weights(trainer.environment.system)
    assert distance(scaled, plain) < 1e-5
    # Gradients that overflow are left out, and the scale falls until they fit.
    trainer = made(tmp_path, training_steps=6)
    trainer._scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=2.0**-60)
    steps = []
    trainer.optimizer.register_step_post_hook(lambda *_: steps.append(1))
    result = trainer.train()
    assert 0 < len(steps) < 18
    assert result.metrics["train/updates"] == len(steps)
    assert trainer.state_dict()["scaler"]["scale"] < 2.0**127


def test_a_loss_that_is_no_number_is_refused_and_nothing_is_changed(tmp_path):
    class Broken(PolicyGradient):
        def step(self, batch):
            loss, logs = super().step(batch)
            return loss * math.inf, logs

    system = make_system()
    start = weights(system)
    with pytest.raises(NonFiniteError, match="loss is not finite in step 1"):
        made(tmp_path, system=system, algorithm=Broken()).train()
    assert distance(weights(system), start) == 0


def test_an_adapter_is_trained_alone_and_saved_merged(tmp_path):
    pytest.importorskip("peft")
    system = make_system(tester={"adapter": {"r": 2}})
    trained(tmp_path / "hf", system=system, lr=0.1)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "hf/last").state_dict()
    merged, start = weights(system), weights(make_system())
    assert all(torch.equal(loaded[name], merged[name]) for name in merged)
    assert distance(merged, start) > 0
    assert torch.equal(merged["model.embed_tokens.weight"], start["model.embed_tokens.weight"])
    from peft import PeftModel

    system.models["tester"].train.save_adapter(tmp_path / "adapter")
    base = AutoModelForCausalLM.from_config(system.attacker.config)
    assert PeftModel.from_pretrained(base, tmp_path / "adapter").peft_config["default"].r == 2


@pytest.mark.parametrize(
    ("every", "message"),
    [
        (100, "dev_prompts is empty and eval_every is 100; give prompts"),
        (None, "dev_prompts is empty and eval_every is 100"),
        (-1, "eval_every is -1; it must not be negative"),
    ],
)
def test_evaluations_without_prompts_are_refused(tmp_path, every, message):
    with pytest.raises(ConfigError, match=message):
        HFASTTrainer(
            configured(), make_environment(make_system()), PolicyGradient(), [], every, tmp_path
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"schedule": "cosin"}, "schedule is 'cosin'; it is one of constant, linear, cosine"),
        ({"mixed_precision": "bf61"}, "mixed_precision is 'bf61'; it is one of no, bf16, fp16"),
        ({"best_by": "toxicity"}, "best_by is 'toxicity'; it is one of reward, score, success"),
        ({"max_grad_norm": 0.0}, "max_grad_norm is 0.0; it must be above 0"),
        ({"weight_decay": -1.0}, "weight_decay is -1.0; it must be at least 0"),
        ({"early_stopping_patience": 2, "eval_every": 0}, "needs eval_every above 0"),
        ({"warmup_steps": 1000}, "warmup_steps is 1000; it must be below training_steps, 1000"),
        ({"early_stopping_patience": 0}, "early_stopping_patience is 0; it must be at least 1"),
        ({"eval_evry": 3}, "HFASTConfiguration has no field 'eval_evry'.*did you mean eval_every"),
    ],
)
def test_wrong_values_are_refused_by_name(arguments, message):
    with pytest.raises(ConfigError, match=message):
        HFASTConfiguration(**arguments)


def test_a_folder_is_the_old_one_or_the_new_one(tmp_path):
    path = tmp_path / "a/best"
    for text in ("one", "two"):
        replace_folder(path, lambda folder, text=text: (folder / text).write_text(text))
        assert [p.name for p in path.iterdir()] == [text]

    def fail(folder):
        (folder / "half").write_text("")
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        replace_folder(path, fail)
    assert [p.name for p in path.iterdir()] == ["two"]
    assert [p.name for p in path.parent.iterdir()] == ["best"]
    # A kill between the two renames.
    path.rename(path.with_name(".old-best"))
    restore_folder(path)
    assert [p.name for p in path.iterdir()] == ["two"]
