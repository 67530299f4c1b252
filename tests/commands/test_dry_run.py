"""``plugrl train --dry-run`` tries the largest step, or says what to lower."""

import os
import re
import sys

import forking
import pytest
import yaml

MODEL = {
    "model_type": "qwen3",
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 64,
}
WORKER = {"max_prompt_length": 40, "max_response_length": 8, "evaluator": "exact_match"}
# Memory for what is loaded and a little more: as on a machine that is too small for the step.
LIMITED = """
import resource, sys
import plugrl.cli, plugrl.core.text.dry_run, plugrl.plugins.transformers.train_service
import transformers.models.qwen3.modeling_qwen3, transformers.models.qwen3.configuration_qwen3
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + {spare} * 2**20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
plugrl.cli.main(sys.argv[1:])
"""


def config(train=None, model=None, worker=None, **sections):
    source = {"config": {**MODEL, **(model or {})}, "tokenizer": {"characters": "0123456789+="}}
    return {
        "experiment_name": "dry",
        "scenario": {
            "type": "arithmetic",
            "digits": 1,
            "validation": 4,
            "development": 4,
            "demonstrations": 16,
        },
        "models": {"policy": {"source": source, "train": {"type": "local", **(train or {})}}},
        "rollout_worker": {**WORKER, **(worker or {})},
        "data": {"batch_size": 4, "rollout_repeat_n": 4},
        "validate": {"enabled": False},
        "trainer": {"type": "self_hosted_grpo", "total_train_steps": 2},
        "settings": {"torch_threads": 1, "progress": "none", "device": "cpu"},
        **sections,
    }


@pytest.fixture
def dry_run(tmp_path, call):
    def run(tree, *overrides, spare=None):
        (tmp_path / "exp.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
        words = ["train", "exp.yaml", "--dry-run", *overrides]
        if spare is None:
            code, out, err = call(*words)
        else:
            # A limit of the memory needs a process of its own.
            done = forking.run(
                ["-c", LIMITED.format(spare=spare), *words],
                cwd=tmp_path,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            code, out, err = done.returncode, done.stdout, done.stderr
        assert sorted(path.name for path in tmp_path.iterdir()) == ["exp.yaml"]
        return code, out, err

    return run


@pytest.mark.parametrize(
    ("overrides", "rows", "tokens"),
    [
        # All 16 sequences, of 40 + 8 tokens.
        ([], 16, 48),
        (["trainer.algorithm.minibatches=3"], 6, 48),
        pytest.param(
            ["models.policy.train.micro_batch_size=4"], 4, 48, marks=pytest.mark.integration
        ),
        # 100 // 48
        (["models.policy.train.micro_batch_tokens=100"], 2, 48),
        pytest.param(
            ["models.policy.train.micro_batch_tokens=10"], 1, 48, marks=pytest.mark.integration
        ),
        # The context bounds a sequence.
        (["rollout_worker.max_response_length=63"], 16, 64),
        pytest.param(
            ["models.policy.adapter.r=2", "models.policy.source.dtype=bfloat16"],
            *(16, 48),
            marks=pytest.mark.integration,
        ),
    ],
)
def test_the_largest_step_is_tried(dry_run, overrides, rows, tokens):
    code, out, err = dry_run(config(), *overrides)
    assert code == 0, err
    last = out.splitlines()[-1]
    pattern = rf"memory: at most (\S+) of (\S+) GiB with {rows} sequences of {tokens} tokens: fits"
    peak, total = map(float, re.fullmatch(pattern, last).groups())
    assert 0.1 < peak < total


def test_each_phase_is_tried(dry_run):
    phases = [
        {
            "name": "supervised",
            "rollout_worker": {"type": "demonstration"},
            "trainer": {"type": "self_hosted_cross_entropy", "total_train_steps": 1},
        },
        {"name": "reinforced", "trainer": {"type": "self_hosted_grpo", "total_train_steps": 1}},
    ]
    code, out, err = dry_run(config(trainer={"type": "sequence", "phases": phases}))
    assert code == 0, err
    lines = [line for line in out.splitlines() if ": memory: at most" in line]
    assert [line.split(":")[0] for line in lines] == ["supervised", "reinforced"]


def test_a_trainer_without_a_step_to_try_says_so():
    from plugrl.core.trainer import Trainer

    class Bare(Trainer):
        Config = dict

        def train(self):
            return None

    assert Trainer.dry_run(object.__new__(Bare)) is None


# A step holds 9,600 tokens, each of 40,960 numbers: 1.5 GB.
LARGE = {"intermediate_size": 40960, "max_position_embeddings": 256}


@pytest.mark.integration
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("train", "named", "not_named"),
    [
        ({"micro_batch_size": 64}, ["micro_batch_size=64", "gradient_checkpointing=true"], []),
        ({"micro_batch_tokens": 9000, "gradient_checkpointing": True},
         ["micro_batch_tokens=9000"], ["gradient_checkpointing", "micro_batch_size"]),
    ],
)  # fmt: skip
def test_what_does_not_fit_names_the_settings_to_lower(dry_run, train, named, not_named):
    tree = config(train, LARGE, {"max_prompt_length": 100, "max_response_length": 50})
    tree["data"] = {"batch_size": 16, "rollout_repeat_n": 4}
    code, out, err = dry_run(tree, spare=200)
    assert code == 1, (out, err)
    (line,) = err.strip().splitlines()
    assert "model 'policy'" in line
    assert "sequences of 150 tokens do not fit" in line
    assert "rollout_worker.max_response_length=50" in line
    assert all(f"models.policy.train.{name}" in line for name in named)
    assert not any(name in line for name in not_named)


@pytest.mark.integration
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_model_that_does_not_fit_is_named(dry_run):
    # One matrix of it is larger than the memory that is left.
    code, out, err = dry_run(config(model={"intermediate_size": 3_500_000}), spare=200)
    assert code == 1, (out, err)
    # The check before a run may have warned of gradients and the optimizer, as memory is.
    (line,) = [line for line in err.strip().splitlines() if not line.startswith("warning: ")]
    assert "the models do not fit into the memory of cpu" in line
    assert "source.dtype=bfloat16" in line
