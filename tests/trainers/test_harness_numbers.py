"""Tokens, log-probabilities and gradients of red-teaming: those of the probes as sampled."""

import pytest
import torch
from testers import CONFIG, TINY, make_environment, make_system
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from plugrl import Batch
from plugrl.core.text.dialogue.environment import fluency

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m.role[0] }}{{ m.content }}"
    "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}a{% endif %}"
)


def batch_of(nodes):
    return Batch.from_trajectories([node.trajectory() for node in nodes])


def nodes_of(system, **section):
    environment = make_environment(system, **section)
    system.sync_weights()
    trees = environment.rollouts([0, 1, 2])
    return [node for tree in trees for node in tree.nodes()]


@pytest.fixture
def folder(tmp_path):
    """A model whose tokenizer writes a beginning of its own and joins characters."""
    letters = "abcdefghsu"
    vocabulary = {"<s>": 0, "</s>": 1, **{c: i + 2 for i, c in enumerate(letters)}}
    merges = [("a", "b"), ("b", "c"), ("ab", "c")]
    vocabulary |= {"ab": 12, "bc": 13, "abc": 14}
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    inner.pre_tokenizer = pre_tokenizers.Split("\n", "isolated")
    inner.decoder = decoders.Fuse()
    inner.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>", chat_template=TEMPLATE
    )
    assert tokenizer("abc")["input_ids"] == [0, 14]
    config = {key: value for key, value in CONFIG.items() if key != "model_type"}
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(**config, vocab_size=15))
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return {"source": {"path": str(tmp_path / "model")}}


def test_a_beginning_that_the_template_writes_is_there_once_and_sampled_tokens_are_kept(folder):
    system = make_system(tester=folder, target=folder)
    nodes = nodes_of(system)
    raw = system.tokenizer
    for node in nodes:
        assert node.prompt_tokens[0] == 0
        assert node.prompt_tokens.count(0) == 1
        assert raw.decode(node.prompt_tokens[-1:]) == "a"
        assert raw.decode(node.probe_tokens, skip_special_tokens=True) == node.probe
    # Tokens that another reading of the same text would join are as they were sampled.
    again = [raw(node.probe, add_special_tokens=False)["input_ids"] for node in nodes]
    assert any(
        own != [t for t in node.probe_tokens if t > 1]
        for own, node in zip(again, nodes, strict=True)
    )
    batch = batch_of(nodes)
    sampled = [t for node in nodes for t in node.probe_tokens]
    assert batch.values["input_ids"][batch.values["loss_mask"].bool()].tolist() == sampled


@pytest.mark.parametrize("heat", [1.0, 0.7])
def test_log_probabilities_of_probes_are_those_of_a_plain_forward_pass(folder, heat):
    section = {"tester": {"max_new_tokens": 4, "temperature": heat}}
    system = make_system(tester=folder, target=folder, section=section)
    nodes = nodes_of(system, tester=section["tester"])
    computed, _ = system.log_probs(batch_of(nodes))
    for row, node in zip(computed, nodes, strict=True):
        tokens = torch.tensor([*node.prompt_tokens, *node.probe_tokens])
        with torch.no_grad():
            logits = system.attacker(input_ids=tokens[None]).logits[0, :-1].float() / heat
        start = len(node.prompt_tokens)
        plain = logits.log_softmax(-1).gather(1, tokens[1:, None])[start - 1 :, 0]
        assert plain.tolist() == pytest.approx(node.probe_logprobs, abs=1e-4)
        own = row[start : start + len(plain)]
        assert own.tolist() == pytest.approx(plain.tolist(), abs=1e-4)
        assert row.count_nonzero() == len(plain)


def test_other_rows_of_a_batch_change_nothing_of_a_probe():
    system = make_system()
    nodes = nodes_of(system)
    together, _ = system.log_probs(batch_of(nodes))
    for i, node in enumerate(nodes):
        alone, _ = system.log_probs(batch_of([node]))
        kept = together[i][: alone.shape[1]]
        torch.testing.assert_close(kept, alone[0], rtol=0, atol=1e-5)


def test_the_baseline_is_asked_with_the_same_tokens_and_carries_no_gradient():
    frozen = {"source": {**TINY["source"], "seed": 5}}
    section = {"tester": {"max_new_tokens": 4}, "target": {"max_new_tokens": 4}}
    system = make_system(section={**section, "baseline": "baseline"}, baseline=frozen)
    nodes = nodes_of(system, **section, baseline="baseline", reward={"fluency": 1.0})
    other = make_system(tester=frozen)
    expected, _ = other.log_probs(batch_of(nodes))
    for row, node in zip(expected, nodes, strict=True):
        start = len(node.prompt_tokens)
        own = row[start : start + len(node.probe_tokens)].tolist()
        assert node.baseline_logprobs == pytest.approx(own, abs=1e-4)
        assert node.baseline_logprobs != pytest.approx(node.probe_logprobs, abs=1e-3)
        # The score of these probes, and the geometric mean of their probabilities.
        mean = sum(own) / len(own)
        assert fluency(node) == pytest.approx(torch.tensor(mean).exp().item(), rel=1e-3)
        assert node.rewards["fluency"] == pytest.approx(fluency(node))
        assert node.reward == pytest.approx(node.rewards["score"] + fluency(node))


@pytest.mark.parametrize(
    ("train", "tester"),
    [
        ({}, {}),
        ({"gradient_checkpointing": True}, {}),
        ({"packing": "never"}, {}),
        ({"value_head": True}, {}),
        ({}, {"adapter": {"r": 2}}),
        ({"gradient_checkpointing": True}, {"adapter": {"r": 2}}),
    ],
)
def test_what_is_differentiated_equals_what_is_computed_without_a_gradient(train, tester):
    if tester:
        pytest.importorskip("peft")
    system = make_system(train=train, tester=tester)
    nodes = nodes_of(system)
    batch = batch_of(nodes)
    differentiated, _ = system.log_probs(batch)
    service = system.models["tester"].train
    torch.testing.assert_close(
        differentiated.detach(), service.compute_log_prob(batch), rtol=0, atol=1e-5
    )
    mask = batch.values["loss_mask"].bool()
    assert bool((differentiated[~mask] == 0).all())
    # Its gradient is that of a plain model with the same weights.
    differentiated.sum().backward()
    grads = [p.grad for p in system.parameters() if p.grad is not None]
    assert grads
    if not tester:
        model = make_system(train={"packing": "never"})
        model.log_probs(batch)[0].sum().backward()
        for own, plain in zip(system.parameters(), model.parameters(), strict=False):
            torch.testing.assert_close(own.grad, plain.grad, rtol=1e-3, atol=1e-5)


def test_entropy_and_values_come_with_the_same_pass():
    system = make_system(train={"value_head": True})
    batch = batch_of(nodes_of(system))
    log_probs, extras = system.log_probs(batch, ("entropy", "values"))
    assert extras["entropy"].shape == extras["values"].shape == log_probs.shape
    mask = batch.values["loss_mask"].bool()
    assert bool((extras["entropy"][mask] > 0).all())
    values = system.models["tester"].train.compute_values(batch)
    torch.testing.assert_close(extras["values"].detach(), values, rtol=0, atol=1e-5)
