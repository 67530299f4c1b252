"""The training pass: packing, padding, token budgets, chunks of the head, checkpointed layers.

What is expected comes from plain calls of the model, one sequence at a time.
"""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plugrl.core.errors import ConfigError
from plugrl.core.text.batch import Batch
from plugrl.core.text.learn.losses import LOSS_WEIGHTS, WeightedLoss
from plugrl.core.text.learn.step import aggregation_weights
from plugrl.core.text.trajectory import Trajectory
from plugrl.plugins.transformers.training.packing import Boundaries
from plugrl.trainers.self_hosted_cross_entropy import cross_entropy

LOSS = WeightedLoss(cross_entropy, {})
ROWS = [[2, 3, 4, 5, 6, 7, 8, 2, 9], [6, 7, 1], [3, 2, 8, 4, 4, 3], [5, 1]]
#: A model with windows, capped logits, a scaled head, states and so on each takes its own way.
PACKED = {
    "qwen3": True,
    "qwen3 tied": True,
    "llama": True,
    "qwen2": True,
    "mistral": True,
    "gpt2": True,
    "granite": True,
    "bloom": False,
    "lfm2": False,
}


def batch(rows=ROWS, mask=None):
    mask = mask or [[0] + [1] * (len(t) - 1) for t in rows]
    made = Batch.from_trajectories(
        [Trajectory(t, m) for t, m in zip(rows, mask, strict=True)], temperature=0.7
    )
    made.values[LOSS_WEIGHTS] = aggregation_weights(made.values["loss_mask"], "token-mean")
    return made


def plain_log_probs(model, rows, temperature=0.7):
    """Each sequence alone through the whole model."""
    out = []
    for row in rows:
        tokens = torch.tensor([row])
        logits = model(input_ids=tokens, use_cache=False).logits.float() / temperature
        log_probs = logits[0, :-1].log_softmax(-1)
        out.append(log_probs.gather(-1, tokens[0, 1:, None])[:, 0])
    return out


def gradients(service):
    return {n: p.grad.clone() for n, p in service.module.named_parameters() if p.grad is not None}


@pytest.fixture
def computed(gradient_service):
    """How many tokens the layers compute of each micro-batch, by architecture and data.

    The layers of ``transformers`` are asked, which checkpointed passes alone always go through.
    """

    def count(name, data, **options):
        service = gradient_service(name, gradient_checkpointing=True, **options)
        embedding, seen = service.module.get_input_embeddings(), []
        hook = embedding.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].numel()))
        service.compute_log_prob(data)
        hook.remove()
        return seen

    return count


def assert_equal_gradients(got, want):
    assert got.keys() == want.keys()
    for name, gradient in want.items():
        torch.testing.assert_close(got[name], gradient, rtol=2e-4, atol=2e-6, msg=name)


@pytest.mark.parametrize("packing", ["auto", "never"])
@pytest.mark.parametrize("name", PACKED)
def test_log_probabilities_and_gradients_equal_those_of_lone_sequences(
    gradient_service, name, packing
):
    service = gradient_service(name, packing=packing)
    data = batch()
    got = service.compute_log_prob(data)
    want = plain_log_probs(service.module, ROWS)
    for row, values in enumerate(want):
        torch.testing.assert_close(
            got[row, 1 : 1 + len(values)], values.detach(), rtol=1e-4, atol=1e-4
        )
    totals = service.forward_backward(data, LOSS)
    ours = gradients(service)
    service.module.zero_grad()
    loss = -torch.cat(plain_log_probs(service.module, ROWS)).mean()
    loss.backward()
    assert totals["loss"][0] == pytest.approx(loss.item(), rel=1e-5)
    assert_equal_gradients(ours, gradients(service))


@pytest.mark.parametrize("name", ["bloom", "lfm2"])
def test_a_model_that_cannot_be_packed_is_refused_when_it_must(
    train_service, architecture_spec, name
):
    with pytest.raises(ConfigError, match=f"a {name} model cannot be packed; use auto or never"):
        train_service(architecture_spec(name), packing="always")


def test_a_sequence_sees_nothing_of_its_neighbours(gradient_service):
    service = gradient_service(packing="always")
    alone = service.compute_log_prob(batch([ROWS[1], ROWS[0]]))[0, :3]
    for other in ([9, 9, 9, 9], [1, 1]):
        beside = service.compute_log_prob(batch([ROWS[1], other]))[0, :3]
        torch.testing.assert_close(beside, alone, rtol=1e-5, atol=1e-5)


def test_only_what_wanted_tokens_depend_on_is_computed(gradient_service, computed):
    # Wanted: token 2 of nine, token 1 of three, nothing of the third row, token 1 of two.
    data = batch(mask=[[0, 0, 1, 0, 0, 0, 0, 0, 0], [0, 1, 0], [0] * 6, [0, 1]])
    service = gradient_service(packing="always")
    got = service.compute_log_prob(data)
    want = plain_log_probs(service.module, ROWS)
    assert got[0, 2].item() == pytest.approx(want[0][1].item(), abs=1e-4)
    assert got[1, 1].item() == pytest.approx(want[1][0].item(), abs=1e-4)
    assert got.count_nonzero() == 3
    assert computed(None, data) == [2 + 1 + 1]


@pytest.mark.parametrize("name", PACKED)
def test_a_model_is_packed_where_it_can_be(computed, name):
    # Without their last tokens, the rows have 8, 2, 5 and 1.
    assert computed(name, batch()) == [8 + 2 + 5 + 1 if PACKED[name] else 4 * 8]
    assert computed(name, batch(), packing="never") == [4 * 8]


@pytest.mark.parametrize("packing", ["always", "never"])
def test_what_follows_the_last_trained_token_gives_no_gradient(gradient_service, packing):
    service = gradient_service(packing=packing)
    masks = [[0, 0, 0, 1, 1, 0, 1, 0, 1], [0, 1, 1], [0, 0, 1, 1, 0, 1], [0, 1]]
    service.forward_backward(batch(mask=masks), LOSS)
    want = gradients(service)
    service.module.zero_grad()
    longer = batch([row + [3, 7] for row in ROWS], [mask + [0, 0] for mask in masks])
    service.forward_backward(longer, LOSS)
    assert_equal_gradients(gradients(service), want)


def test_improbable_tokens_have_their_log_probabilities_and_gradients(train_service):
    """exp(-200) is none of the numbers of float32."""
    service = train_service()
    head = service.module.get_output_embeddings()
    data = batch([[2, 3, 4], [5, 6, 7]])
    with torch.no_grad():
        hidden = service.module.base_model(torch.tensor([[2]])).last_hidden_state[0, 0]
        head.weight[3] = -200 * hidden / hidden.dot(hidden)
    (want,) = plain_log_probs(service.module, [[2, 3, 4]])
    assert want[0] < -150
    log_probs, _ = service.differentiable(data)
    torch.testing.assert_close(log_probs[0, 1:], want)
    # Of the head alone: the norm leaves almost nothing of a gradient along the states.
    (got,) = torch.autograd.grad(log_probs[0, 1], head.weight)
    torch.testing.assert_close(got, torch.autograd.grad(want[0], head.weight)[0])


def test_padding_on_the_left_and_free_columns_change_nothing(gradient_service):
    service = gradient_service()
    data = batch()
    want = service.compute_log_prob(data)
    left = {}
    for name, value in data.values.items():
        wide = torch.zeros(len(value), value.shape[1] + 2, dtype=value.dtype)
        for row, length in enumerate(data.values["attention_mask"].sum(1).tolist()):
            wide[row, wide.shape[1] - length :] = value[row, :length]
        left[name] = wide
    got = service.compute_log_prob(Batch(left, dict(data.metadata)))
    for row, tokens in enumerate(ROWS):
        torch.testing.assert_close(
            got[row, -len(tokens) + 1 :], want[row, 1 : len(tokens)], rtol=1e-5, atol=1e-5
        )


def test_each_row_can_have_its_temperature(gradient_service):
    service = gradient_service()
    data = batch()
    data.metadata["temperature"] = torch.tensor([0.5, 1.0, 2.0, 0.7])
    got = service.compute_log_prob(data)
    for row, temperature in enumerate([0.5, 1.0, 2.0, 0.7]):
        (want,) = plain_log_probs(service.module, [ROWS[row]], temperature)
        torch.testing.assert_close(got[row, 1 : 1 + len(want)], want.detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("chunk", [1, 2, 7])
def test_a_chunked_head_gives_the_same_gradient_with_fewer_logits(gradient_service, chunk):
    whole, chunked = gradient_service(), gradient_service(head_chunk_tokens=chunk)
    data, sizes = batch(), []
    one = whole.forward_backward(data, LOSS)
    head = chunked.module.get_output_embeddings()
    hook = head.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    other = chunked.forward_backward(data, LOSS)
    hook.remove()
    assert other["loss"][0] == pytest.approx(one["loss"][0], rel=1e-6)
    assert_equal_gradients(gradients(chunked), gradients(whole))
    assert max(sizes) <= chunk
    # Forward and again backward: every wanted token twice.
    assert sum(sizes) == 2 * int(data.values["loss_mask"].sum())


def test_logits_are_not_kept_for_the_backward_pass(gradient_service):
    service = gradient_service(head_chunk_tokens=2)
    vocabulary = service.module.config.vocab_size
    kept = []

    def pack(tensor):
        kept.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        log_probs, _ = service.differentiable(batch())
    assert kept
    assert log_probs.requires_grad
    # The embedding has as many rows as the vocabulary, logits have as many columns.
    assert not [shape for shape in kept if len(shape) == 2 and shape[1] == vocabulary]


def test_checkpointed_layers_give_the_same_gradient(train_service, architecture_spec):
    for name in ("qwen3", "gpt2"):
        spec = architecture_spec(name)
        plain, again = train_service(spec), train_service(spec, gradient_checkpointing=True)
        calls = []
        mlp = next(m for n, m in again.module.named_modules() if n.endswith("0.mlp"))
        mlp.register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
        plain.forward_backward(batch(), LOSS)
        again.forward_backward(batch(), LOSS)
        assert_equal_gradients(gradients(again), gradients(plain))
        # Forward, and again for the backward pass.
        assert len(calls) == 2


@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
def test_layers_are_computed_again_within_the_bounds_of_their_own_pass(gradient_service, name):
    """Two passes forward before either goes backward: no layer remembers the newest bounds."""
    service = gradient_service(name, gradient_checkpointing=True)
    data = [batch(), batch(ROWS[:2] + [[4, 4, 7, 2]])]
    passes = [service.differentiable(each)[0] for each in data]
    for log_probs in passes:
        (log_probs.sum() / 10).backward()
    got = gradients(service)
    service.module.zero_grad()
    lone = [plain_log_probs(service.module, rows) for rows in (ROWS, ROWS[:2] + [[4, 4, 7, 2]])]
    (torch.cat([each for rows in lone for each in rows]).sum() / 10).backward()
    assert_equal_gradients(got, gradients(service))


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        # Lengths 9, 6, 3, 2, longest first; the largest part as small as their number allows.
        ({"micro_batch_size": 3}, [2, 2]),
        ({"micro_batch_tokens": 20}, [4]),
        ({"micro_batch_tokens": 11}, [1, 3]),
        ({"micro_batch_tokens": 9}, [1, 1, 2]),
        ({"micro_batch_tokens": 1}, [1, 1, 1, 1]),
        # Padded, a row costs as much as the longest of its micro-batch.
        ({"micro_batch_tokens": 20, "packing": "never"}, [2, 2]),
        ({"micro_batch_tokens": 11, "packing": "never"}, [1, 1, 2]),
    ],
)
def test_micro_batches_keep_to_their_budget(gradient_service, options, sizes):
    parts = []

    def noted(log_probs, part, config):
        parts.append(part.values["attention_mask"].sum(1).tolist())
        return -log_probs, {}

    gradient_service(**options).forward_backward(batch(), WeightedLoss(noted, {}))
    assert [len(part) for part in parts] == sizes
    assert [length for part in parts for length in part] == [9, 6, 3, 2]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 7), st.integers(0, 3)), min_size=1, max_size=6))
def test_boundaries_lead_there_and_back(shapes):
    """Sequences of some length that begin with some tokens of the first one."""
    shapes = [(length, min(prefix, length, shapes[0][0])) for length, prefix in shapes]
    width = max(length for length, _ in shapes)
    columns = torch.arange(width)
    needed = torch.stack([columns < length for length, _ in shapes])
    shared = torch.stack([columns < prefix for _, prefix in shapes])
    shared[0] = False
    leaders = torch.zeros(len(shapes), dtype=torch.long)
    bounds, own, number = Boundaries.of(needed, shared, leaders)
    tokens = torch.arange(needed.numel()).view(needed.shape)
    # A shared token is the first sequence's.
    expected = torch.where(shared, tokens[:1], tokens)
    packed_tokens = tokens[own]
    assert len(packed_tokens) == int(needed.sum() - shared.sum())
    assert torch.equal(packed_tokens[number][needed], expected[needed])
    if bounds is None:
        assert len({length for length, _ in shapes}) == 1
        return
    rows = packed_tokens[bounds.rows]
    for row, (length, _) in enumerate(shapes):
        assert rows[row, :length].tolist() == expected[row, :length].tolist()
    assert torch.equal(rows.flatten()[bounds.places], packed_tokens)


@settings(max_examples=15, deadline=None, suppress_health_check=[*HealthCheck])
@given(
    st.lists(st.lists(st.integers(2, 9), min_size=2, max_size=12), min_size=1, max_size=6),
    st.sampled_from([1, 5, 9, 13, 30]),
    st.sampled_from(["always", "never"]),
)
def test_any_split_and_any_order_give_one_gradient(gradient_service, rows, budget, packing):
    service = gradient_service(micro_batch_tokens=budget, packing=packing)
    service.forward_backward(batch(rows), LOSS)
    got = gradients(service)
    service.module.zero_grad()
    loss = -torch.cat(plain_log_probs(service.module, rows)).mean()
    loss.backward()
    assert_equal_gradients(got, gradients(service))


GROUPS = [
    # Three answers to one prompt, two to another, and one alone.
    ([2, 3, 4, 5, 6], 3),
    ([2, 3, 4, 7], 3),
    ([9, 8, 7, 1], 2),
    ([2, 3, 4, 5, 8, 1], 3),
    ([9, 8, 2], 2),
    ([9, 8, 2, 3, 4], 4),
]


def group_batch():
    rows = [tokens for tokens, _ in GROUPS]
    masks = [[0] * start + [1] * (len(tokens) - start) for tokens, start in GROUPS]
    return batch(rows, masks)


@pytest.mark.parametrize("name", ["qwen3", "gpt2", "mistral"])
def test_answers_to_one_prompt_compute_it_once(computed, name):
    # Inputs leave out each last token: 4 + 1 + 2, 3 + 0, and 4 of the one that is alone.
    assert computed(name, group_batch()) == [4 + 0 + 2 + 3 + 0 + 4]


@pytest.mark.parametrize("name", ["qwen3", "gpt2", "mistral"])
@pytest.mark.parametrize("size", [1, 3, 64])
def test_answers_to_one_prompt_come_to_what_they_do_alone(gradient_service, name, size):
    service = gradient_service(name, micro_batch_size=size)
    data = group_batch()
    got = service.compute_log_prob(data)
    want = plain_log_probs(service.module, [tokens for tokens, _ in GROUPS])
    for row, (tokens, start) in enumerate(GROUPS):
        expected = want[row][start - 1 :].detach()
        torch.testing.assert_close(got[row, start : len(tokens)], expected, rtol=1e-4, atol=1e-4)
    totals = service.forward_backward(data, LOSS)
    ours = gradients(service)
    service.module.zero_grad()
    lone = plain_log_probs(service.module, [tokens for tokens, _ in GROUPS])
    loss = -torch.cat([row[start - 1 :] for row, (_, start) in zip(lone, GROUPS, strict=True)])
    loss.mean().backward()
    assert totals["loss"][0] == pytest.approx(loss.mean().item(), rel=1e-5)
    assert_equal_gradients(ours, gradients(service))


@pytest.mark.parametrize(
    "masks",
    [
        # Trained from the first token on, so that nothing stands before it.
        [[1, 1, 1], [1, 1, 1, 1], [1, 1]],
        # A row without a trained token beside one that is trained from the start.
        [[0, 0, 0], [1, 1, 1, 1], [0, 1]],
        [[0, 0, 0], [0, 0, 0, 0], [1, 1]],
    ],
)
def test_rows_without_a_prompt_share_nothing(gradient_service, masks):
    service = gradient_service(packing="always")
    rows = [[2, 3, 4], [5, 3, 4, 2], [7, 3]]
    got = service.compute_log_prob(batch(rows, masks))
    for row, (want, mask) in enumerate(
        zip(plain_log_probs(service.module, rows), masks, strict=True)
    ):
        expected = want.detach() * torch.tensor(mask[1:])
        torch.testing.assert_close(got[row, 1 : len(mask)], expected, rtol=1e-4, atol=1e-4)
