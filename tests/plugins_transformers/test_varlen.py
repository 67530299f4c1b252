"""Packed rows through torch's attention over lengths, whose kernel a plain one stands in for here.

The operation, its derivative and what a compiler knows of it are torch's own; only what runs on a
CUDA device is computed here one sequence at a time.
"""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch._dynamo.utils import counters
from torch.nn.attention import varlen as of_torch
from torch.nn.functional import scaled_dot_product_attention

from plugrl.core.text.batch import Batch
from plugrl.core.text.learn.losses import LOSS_WEIGHTS, WeightedLoss
from plugrl.core.text.learn.step import aggregation_weights
from plugrl.core.text.trajectory import Trajectory
from plugrl.plugins.transformers.train_service import LocalTrainService
from plugrl.plugins.transformers.training import varlen
from plugrl.trainers.self_hosted_cross_entropy import cross_entropy

LOSS = WeightedLoss(cross_entropy, {})
ROWS = [[2, 3, 4, 5, 6, 7, 8, 2, 9], [6, 7, 1], [3, 2, 8, 4, 4, 3], [5, 1]]
#: Three rows of one prompt, which is most of them, and two of another.
SHARED = [[2, 3, 4, 5, 6, 7, *end] for end in ([8, 2, 9], [1], [4, 4])]
SHARED += [[7, 6, 5, 4, 3, 2, *end] for end in ([3, 3, 3, 8], [2, 9])]


def plain(query, key, value, starts_q, starts_k, scale, window):
    """One sequence at a time; the last query stands at the last key."""
    parts = []
    for number in range(len(starts_q) - 1):
        q, k, v = (
            tensor[int(starts[number]) : int(starts[number + 1])].transpose(0, 1)
            for tensor, starts in ((query, starts_q), (key, starts_k), (value, starts_k))
        )
        places = torch.arange(k.shape[1] - q.shape[1], k.shape[1])[:, None]
        distance = places - torch.arange(k.shape[1])
        seen = distance >= 0
        if window[0] >= 0:
            seen &= distance <= window[0]
        row = scaled_dot_product_attention(
            q, k, v, attn_mask=seen, scale=scale, enable_gqa=q.shape[0] != k.shape[0]
        )
        parts.append(row.transpose(0, 1))
    return torch.cat(parts)


def forward(query, key, value, starts_q, starts_k, max_q, max_k, causal, scale, window, *rest):
    lengths = [starts.diff().max() for starts in (starts_q, starts_k)]
    assert lengths[0] <= max_q
    assert lengths[1] <= max_k
    assert starts_q[-1] == len(query)
    assert starts_k[-1] == len(key)
    out = plain(query, key, value, starts_q, starts_k, scale, window)
    sums = torch.zeros(query.shape[1], len(query))
    return out.contiguous(), sums, torch.zeros(2, dtype=torch.uint64)


def backward(
    gradient, query, key, value, out, sums, starts_q, starts_k, max_q, max_k, causal, rng, scale,
    window,
):  # fmt: skip
    def derive():
        leaves = [tensor.clone().requires_grad_() for tensor in (query, key, value)]
        again = plain(*leaves, starts_q, starts_k, scale, window)
        return torch.autograd.grad(again, leaves, gradient)

    # Below autograd nothing can be derived, in this thread.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(derive).result()


of_torch._varlen_attn.register_kernel("cpu")(forward)
of_torch._varlen_attn_backward.register_kernel("cpu")(backward)


@pytest.fixture
def by_lengths(monkeypatch):
    """Lets the kernel be tried here, where it is the plain one."""
    monkeypatch.setattr(varlen, "available", lambda device, dtype, width: True)


def batch(rows, prompt=1, temperature=0.7):
    made = Batch.from_trajectories(
        [Trajectory(row, [0] * prompt + [1] * (len(row) - prompt)) for row in rows],
        temperature=temperature,
    )
    made.values[LOSS_WEIGHTS] = aggregation_weights(made.values["loss_mask"], "token-mean")
    return made


def service_of(spec, **options):
    service = LocalTrainService({"learning_rate": 0.01, **options})
    service.load(spec)
    return service


def gradients(service):
    return {n: p.grad for n, p in service.module.named_parameters() if p.grad is not None}


def assert_same_pass(service, other, data, rtol=2e-4):
    torch.testing.assert_close(
        service.compute_log_prob(data), other.compute_log_prob(data), rtol=1e-4, atol=1e-5
    )
    ours, theirs = (each.forward_backward(data, LOSS) for each in (service, other))
    assert ours["loss"][0] == pytest.approx(theirs["loss"][0], rel=1e-5)
    want = gradients(other)
    assert gradients(service).keys() == want.keys()
    for name, gradient in gradients(service).items():
        torch.testing.assert_close(gradient, want[name], rtol=rtol, atol=2e-6, msg=name)


@pytest.mark.parametrize("name", ["qwen3", "llama", "qwen2", "mistral", "gpt2", "granite"])
@pytest.mark.parametrize(("rows", "prompt"), [(ROWS, 1), (SHARED, 6)], ids=["lone", "shared"])
def test_numbers_are_those_of_padded_rows(by_lengths, architecture_spec, name, rows, prompt):
    service = service_of(architecture_spec(name))
    assert service._forward.by_lengths
    padded = service_of(architecture_spec(name), packing="never")
    assert_same_pass(service, padded, batch(rows, prompt))


@pytest.fixture
def packed(by_lengths, spec, monkeypatch):
    """The sequences of the passes over a batch, in order."""

    def of(data):
        service, seen = service_of(spec()), []
        attend = varlen.attend

        def noted(query, key, value, sequences, *rest):
            seen.append((query.shape[2], sequences))
            return attend(query, key, value, sequences, *rest)

        monkeypatch.setattr(varlen, "attend", noted)
        service.compute_log_prob(data)
        return seen

    return of


def test_prompts_are_computed_once_where_they_are_long(packed):
    (tokens, sequences), *_ = packed(batch(SHARED, 6))
    # All but the last token of each row, the longest first: 9 and 7 of one prompt, 8, 7 and 6 of
    # the other. Those of six tokens that a row before has are not computed again, and the last row
    # has no others.
    assert tokens == 256
    assert sequences.queries.tolist() == [0, 9, 10, 18, 19, 256]
    assert sequences.keys.tolist() == [0, 9, 16, 24, 31, 31 + 237]
    want = [*range(9), *range(6), 9, *range(10, 18), *range(10, 16), 18, *range(19, 256)]
    assert sequences.source.tolist() == want


def test_short_prompts_are_computed_for_each_row(packed):
    rows = [[2, 3, *range(2, 20)], [2, 3, *range(3, 21)], [2, 3, *range(1, 19)]]
    (tokens, sequences), *_ = packed(batch([[t % 8 for t in row] for row in rows], 2))
    assert sequences.source is None
    assert sequences.queries.tolist() == [0, 19, 38, 57, tokens]
    assert torch.equal(sequences.keys, sequences.queries)


def test_keys_are_repeated_for_a_kernel_that_has_no_groups(by_lengths, spec, monkeypatch):
    padded = service_of(spec(), packing="never")
    with monkeypatch.context() as context:
        context.setattr(varlen, "_groups", lambda device: False)
        assert_same_pass(service_of(spec()), padded, batch(SHARED, 6))


@pytest.mark.parametrize(
    ("fault", "means"),
    [
        (lambda *given: given[0] * 0, "wrong numbers"),
        (lambda *given: 1 / 0, "an error"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_a_model_that_the_kernel_does_not_fit_keeps_padded_attention(
    by_lengths, spec, monkeypatch, fault, means
):
    monkeypatch.setattr(varlen, "attend", fault)
    service = service_of(spec())
    assert service._forward.packs
    assert not service._forward.by_lengths


@pytest.mark.parametrize(
    ("dtype", "width", "expected"),
    [
        (torch.bfloat16, 128, True),
        (torch.float16, 256, True),
        (torch.float32, 128, False),
        (torch.bfloat16, 264, False),
        (torch.bfloat16, 100, False),
    ],
)
def test_the_kernel_has_types_and_sizes(monkeypatch, dtype, width, expected):
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert varlen.available(torch.device("cuda"), dtype, width) is expected
    assert not varlen.available(torch.device("cpu"), dtype, width)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert not varlen.available(torch.device("cuda"), dtype, width)


def drawn(seed, rows, longest, prompt):
    """Rows of many lengths, each prompt of three of them."""
    draw = torch.Generator().manual_seed(seed)
    made = []
    for row in range(rows):
        length = int(torch.randint(2, longest, (), generator=draw))
        answer = torch.randint(2, 9, (length,), generator=draw).tolist()
        made.append([*((row // 3 + place) % 8 for place in range(prompt)), *answer])
    return batch(made, prompt)


@pytest.fixture
def traced(monkeypatch):
    """Lets what is compiled be traced, and its derivative, but not be turned into code.

    Code for the CPU has bounds of its own on sizes.
    """
    compile_it = torch.compile

    def traced(function, dynamic, options=None):
        return compile_it(function, dynamic=dynamic, backend="aot_eager")

    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", traced)


@pytest.mark.integration
def test_nothing_is_compiled_after_the_second_step(by_lengths, traced, spec):
    model = spec(config={**spec().source.config, "max_position_embeddings": 4096})
    service = service_of(model, compile=True, head_chunk_tokens=64)
    plain = service_of(model, compile=False, head_chunk_tokens=64)
    assert service.is_compiled
    service._forward.head.compile()

    # A step whose prompts are worth sharing, and one whose are not.
    for seed, prompt in enumerate((30, 2)):
        assert_same_pass(service, plain, drawn(seed, 12, 20, prompt))
        for each in (service, plain):
            each._optimizer.zero_grad()
    graphs = counters["stats"]["unique_graphs"]
    assert graphs > 0
    sizes = [(1, 5, 2), (2, 400, 2), (40, 30, 2), (9, 90, 40), (60, 20, 30)]
    for seed, (rows, longest, prompt) in enumerate(sizes):
        data = drawn(seed, rows, longest, prompt)
        service.compute_log_prob(data)
        service.forward_backward(data, LOSS)
    assert counters["stats"]["unique_graphs"] == graphs
