"""Agents with real models: turns that go on are what the model would have computed in one go."""

import re

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.decoders import ByteLevel
from transformers import PreTrainedTokenizerFast

import plugrl
from plugrl.core.config.view import ConfigView
from plugrl.core.errors import ConfigError
from plugrl.core.experiment import prepare
from plugrl.core.text.batch import Batch
from plugrl.core.text.data.loader import Prompt
from plugrl.core.text.inference.requests import Completion
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.core.text.inference.services import InferenceService, ModelSpec
from plugrl.core.text.rollout.lockstep import LockstepRollouts
from plugrl.plugins.transformers.inference_service import TransformersInferenceService
from plugrl.plugins.transformers.tokenizer import HubTokenizer
from plugrl.plugins.transformers.train_service import LocalTrainService
from plugrl.testing import tiny

SOURCE = {
    "path": None,
    "config": {
        "model_type": "qwen3",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 64,
        "initializer_range": 0.3,
    },
    "tokenizer": {"characters": "01[]"},
    "dtype": "float32",
}
KIT = "def flip(x): return ''.join('10'[int(c)] if c in '01' else c for c in x)\n"
AGENT = '{type: agent, max_iterations: 6, tools: [{name: flip, binding: "kit:flip"}]}'


class Right(plugrl.Evaluator):
    def evaluate(self, data, evaluation_target):
        return plugrl.EvaluationRunResult(1.0)


def worker_of(folder, **options):
    (folder / "kit.py").write_text(KIT)
    (folder / "agent.yaml").write_text(AGENT)
    section = {
        "agent_config": str(folder / "agent.yaml"),
        "tool_parser": "brackets",
        "error_message": "[]",
        "max_prompt_length": 8,
        "max_response_length": 50,
        **options,
    }
    return plugrl.AgentRolloutWorker(section, Right())


def test_log_probabilities_of_several_turns_are_those_of_one_pass(tmp_path):
    spec = ModelSpec("policy", ConfigView(SOURCE, checked=True), 0, "cpu")
    engine, train = TransformersInferenceService({}), LocalTrainService({})
    engine.load(spec)
    train.load(spec)
    rollouts = LockstepRollouts(worker_of(tmp_path), {"policy": engine}, seed=1)
    prompts = [
        Prompt({"prompt": f"{i:03b}"}, i, run, f"0/{i}", i) for i in range(8) for run in (0, 1)
    ]
    sampling = SamplingParams(temperature=0.9, max_new_tokens=12)
    trajectories = rollouts.collect(prompts, 1, sampling)
    turns = [t.metrics["turns"] for t in trajectories if "turns" in t.metrics]
    assert max(turns) >= 3
    assert sum(t.metrics.get("tool_calls", 0) for t in trajectories) >= 3
    batch = Batch.from_trajectories(trajectories, pad_token_id=0, temperature=0.9)
    computed = train.compute_log_prob(batch)
    mask = batch.values["loss_mask"].bool()
    expected = torch.zeros_like(computed)
    for row, trajectory in enumerate(trajectories):
        given = batch.values["attention_mask"][row].nonzero().flatten()
        expected[row, given] = torch.tensor(trajectory.logprobs)
    assert (computed - expected)[mask].abs().max() < 1e-4
    assert mask.sum() > 100


class Pieces(InferenceService):
    """Says ``abab`` in pieces that the tokenizer would not choose."""

    vocabulary_size = 300
    max_sequence_length = 1000

    def __init__(self, tokenizer):
        super().__init__()
        self.own = tokenizer
        self.prompts = []

    @property
    def tokenizer(self):
        return self.own

    def load(self, spec):
        raise AssertionError("it has no weights")

    update_weights = load

    def generate(self, requests):
        answers = []
        for request in requests:
            self.prompts.append(list(request.prompt_tokens))
            spell = self.own.wrapped.convert_tokens_to_ids
            said = [spell(piece) for piece in ("a", "ba", "b")]
            if request.stream[4] == 0:
                said = [spell("["), *said, spell("]")]
            tokens = [*said, self.own.eos_token_id]
            answers.append(Completion(tokens, [-0.5] * len(tokens), "stop", 0))
        return answers


def test_history_is_not_tokenised_again(tmp_path):
    letters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "ab", "ba", "<|end|>"]
    bpe = models.BPE({letter: i for i, letter in enumerate(letters)}, [("a", "b"), ("b", "a")])
    inner = Tokenizer(bpe)
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = ByteLevel()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|end|>")
    template = (
        "{% for m in messages %}{{ m.role }}:{{ m.content }}{{ eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    tokenizer = HubTokenizer(wrapped, template)
    canonical = tokenizer.encode("abab")
    assert canonical != [wrapped.convert_tokens_to_ids(p) for p in ("a", "ba", "b")]
    engine = Pieces(tokenizer)
    worker = worker_of(tmp_path, max_prompt_length=100, max_response_length=400)
    rollouts = LockstepRollouts(worker, {"policy": engine}, seed=1)
    (trajectory,) = rollouts.collect([Prompt({"prompt": "x"}, 0, 0, "0/0", 0)], 1, SamplingParams())
    first, second = engine.prompts
    said = [wrapped.convert_tokens_to_ids(p) for p in ("[", "a", "ba", "b", "]", "<|end|>")]
    assert second[: len(first) + len(said)] == first + said
    assert tokenizer.decode(second[len(first) + len(said) :]) == "tool:abab" + "assistant:"
    assert sum(trajectory.loss_mask) == len(said) + 4


def config(folder, **worker):
    (folder / "kit.py").write_text(KIT)
    (folder / "agent.yaml").write_text(AGENT)
    section = {"type": "agent", "agent_config": str(folder / "agent.yaml"), **worker}
    return tiny.config("self_hosted_grpo", folder, {"rollout_worker": section})


@pytest.mark.parametrize(
    ("worker", "fault"),
    [
        (
            {"tool_parser": "hermse"},
            "rollout_worker.tool_parser (Python): unknown parser 'hermse'; did you mean hermes?",
        ),
        ({"reasoning_parser": "think"}, "unknown parser 'think'; did you mean think_tag?"),
        ({"tool_parser": None}, None),
        (
            {"agent_config": "lost.yaml"},
            "rollout_worker.agent_config (Python): no such file: lost.yaml",
        ),
        ({"max_turns": 0}, "rollout_worker.max_turns (Python): must be at least 1"),
        (
            {"timeout": 2, "tool_timeout": 3},
            "tool_timeout (Python): must be below timeout, which ends",
        ),
        (
            {"agent_conf": "x"},
            "rollout_worker.agent_conf (Python): unknown key; did you mean agent_config?",
        ),
    ],
)
def test_faults_are_found_before_a_run(tmp_path, worker, fault):
    tree = config(tmp_path, **worker)
    if fault is None:
        # The default of a parser comes back.
        assert prepare(tree).validated.tree["rollout_worker"]["tool_parser"]["type"] == "hermes"
        return
    with pytest.raises(ConfigError, match=re.escape(fault)):
        prepare(tree)


def test_faults_of_the_agents_file_are_found_before_a_run(tmp_path):
    tree = config(tmp_path)
    (tmp_path / "agent.yaml").write_text('tools: [{name: flip, binding: "kit:flpi"}]\nnmae: x\n')
    with pytest.raises(ConfigError) as caught:
        plugrl.train(tree)
    assert "kit.py has no 'flpi'; did you mean flip?" in str(caught.value)
    assert "agent.yaml:2): unknown key; did you mean name?" in str(caught.value)
    assert not (tmp_path / "runs").exists()


def test_a_chat_template_that_is_none_is_found_before_a_run(tmp_path):
    tree = config(tmp_path)
    tree["models"]["policy"]["source"]["tokenizer"]["chat_template"] = "{% for %}"
    with pytest.raises(
        ConfigError, match=r"tokenizer.chat_template \(Python\): is no Jinja template: line 1"
    ):
        prepare(tree)
