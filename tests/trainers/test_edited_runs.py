"""Resuming and repeating runs whose configuration or model was edited since."""

import json

import pytest
import transformers
import yaml

from plugrl.core.errors import ConfigError, RunError
from plugrl.core.experiment import prepare, resume, start
from plugrl.core.replay import replay
from plugrl.plugins.transformers.tokenizer import character_tokenizer
from plugrl.testing import tiny

ADAPTER = {"r": 2, "alpha": 4.0, "target_modules": ["q_proj"]}


def stopped(tree):
    """A run of ``tree`` that is not marked as done, with a dump of step 1."""
    tree["runtime_monitor"] = {"dump_steps": [1]}
    tree["data"]["rollout_repeat_n"] = 16
    folder = start(prepare(tree)).folder
    status = json.loads((folder / "status.json").read_text())
    (folder / "status.json").write_text(json.dumps({**status, "state": "failed"}))
    return folder


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    """A run of a model with an adapter; tests edit copies."""
    sections = {"models": {"policy": {"adapter": ADAPTER}}}
    return stopped(tiny.config("self_hosted_grpo", tmp_path_factory.mktemp("adapted"), sections))


def edit(folder, change):
    path = folder / "config.yaml"
    tree = yaml.safe_load(path.read_text())
    change(tree["models"]["policy"], tree)
    path.write_text(yaml.safe_dump(tree))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda m, t: m["source"]["config"].update(hidden_size=32), "hidden_size was 16"),
        (lambda m, t: m.update(adapter=None), "models.policy.adapter was {"),
        (lambda m, t: m["adapter"].update(alpha=8.0), "adapter.alpha was 4.0 and is now 8.0"),
        (lambda m, t: m["source"].update(dtype="bfloat16"), 'is now "bfloat16"'),
        (lambda m, t: m["source"]["tokenizer"].update(characters="abc"), 'is now "abc"'),
    ],
)
def test_another_model_is_refused_by_name(adapted, copied, change, says):
    folder = copied(adapted)
    edit(folder, change)
    for act in (resume, lambda run: replay(run, 1)):
        with pytest.raises(ConfigError) as caught:
            act(folder)
        assert says in str(caught.value)
        assert "restore the value in config.yaml" in str(caught.value)
    assert json.loads((folder / "status.json").read_text())["state"] == "failed"


def test_other_values_are_warned_of_and_taken(adapted, copied, caplog):
    folder = copied(adapted)

    def change(model, tree):
        model["train"]["learning_rate"] = 0.5
        tree["trainer"]["total_train_steps"] = 3

    edit(folder, change)
    (repeated,) = replay(folder, 1)
    assert repeated.equal
    run = resume(folder)
    assert run.last_metrics["step"] == 3
    assert run.last_metrics["train/learning_rate"] == 0.5
    rate = "models.policy.train.learning_rate was 0.01 and is now 0.5"
    steps = "trainer.total_train_steps was 2 and is now 3"
    for how in ("resuming", "repeating a step"):
        for line in (rate, steps):
            assert f"{how} with a changed value: {line}" in caplog.messages


def test_the_command_answers_with_one_line_and_exit_code_2(adapted, copied, call):
    folder = copied(adapted)
    edit(folder, lambda m, t: m["source"]["config"].update(num_hidden_layers=2))
    for words in (["resume", folder], ["replay", folder, 1]):
        code, _, errors = call(*words)
        assert code == 2
        (line,) = errors.strip().splitlines()
        assert "models.policy.source.config.num_hidden_layers was 1 and is now 2" in line


def test_a_model_folder_that_holds_another_model_is_named(config, tmp_path):
    place = tmp_path / "weights"

    def save(size):
        made = transformers.Qwen3Config(
            vocab_size=4, hidden_size=size, intermediate_size=32, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=1, head_dim=8, eos_token_id=1,
            max_position_embeddings=16,
        )  # fmt: skip
        transformers.Qwen3ForCausalLM(made).save_pretrained(place)
        character_tokenizer("ab").wrapped.save_pretrained(place)

    save(16)
    source = {"path": str(place), "config": None, "tokenizer": None}
    folder = stopped(config(models={"policy": {"source": source}}))
    save(24)
    for act in (resume, lambda run: replay(run, 1)):
        with pytest.raises(RunError, match=r"state of model 'policy' does not fit models.policy"):
            act(folder)
