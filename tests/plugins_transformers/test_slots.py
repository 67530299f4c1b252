"""Slots, the kernel over them and the sampling of large vocabularies, each against plain torch."""

import os
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from plugrl.core.errors import RunError
from plugrl.core.text.inference.sampling import SamplingParams, stream_seeds
from plugrl.core.text.inference.sampling import uniforms as numbers_of_the_host
from plugrl.plugins.transformers.engine import attention
from plugrl.plugins.transformers.engine import sampler as sampling
from plugrl.plugins.transformers.engine.attention import append_and_attend
from plugrl.plugins.transformers.engine.slots import Slots, SlotShape, rounded_capacity

CUDA = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
    ],
)
on_both = pytest.mark.parametrize("device", ["cpu", CUDA])


def slots(device="cpu", heads=2, width=4, layers=3):
    shape = SlotShape(layers, heads, width, width, torch.float32, torch.device(device))
    return Slots(shape)


def test_without_a_compiler_a_step_attends_in_operations_of_torch(monkeypatch, caplog):
    monkeypatch.setenv("CC", "no-such-compiler")
    attention._kernel.cache_clear()
    try:
        # The second step is silent.
        assert [attention._kernel() for _ in range(2)] == [None, None]
    finally:
        attention._kernel.cache_clear()
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith(
        "decode steps attend without their own kernel, which is slower: there is"
    )
    assert said.endswith("install it")


@on_both
@pytest.mark.parametrize(
    ("rows", "capacity"), [(4, 16), (2, 8), (6, 16)], ids=["same", "fewer", "more"]
)
def test_lent_memory_is_given_up_and_comes_back_empty(device, rows, capacity):
    held = slots(device)
    held.reserve(4, 16, 0)
    held.keys.fill_(float("nan"))
    held.lend()
    held.lend()
    assert held.keys.untyped_storage().size() == held.values.untyped_storage().size() == 0
    # Others lie there now.
    others = [torch.full((4 * 16 * 6 * 4,), float("nan"), device=device) for _ in range(8)]
    generation = held.generation
    held.reserve(rows, capacity, 0)
    assert held.keys.shape[1] >= rows
    assert held.keys.shape[3] >= capacity
    # Captured steps know the addresses, which are others while the old ones are in use.
    assert held.generation != generation
    assert float(held.keys.abs().max()) == float(held.values.abs().max()) == 0
    held.keys.fill_(1)
    assert all(other.isnan().all() for other in others)


@on_both
def test_rows_stay_when_there_are_more_and_longer_ones(device):
    held = slots(device)
    held.reserve(2, 8, 0)
    held.keys.copy_(torch.arange(held.keys.numel()).view(held.keys.shape))
    before, generation = held.keys.clone(), held.generation
    held.reserve(5, 16, 2)
    assert held.generation != generation
    assert held.keys.shape == (3, 5, 2, 16, 4)
    assert torch.equal(held.keys[:, :2, :, :8], before)
    # What is not written is no NaN, which a mask would not hide.
    assert float(held.keys[:, 2:].abs().max()) == 0


def test_other_shapes_are_found_in_the_same_memory():
    held = slots()
    held.reserve(8, 64, 0)
    place, generation = held.keys.data_ptr(), held.generation
    held.reserve(2, 256, 0)
    assert (held.keys.data_ptr(), held.generation) == (place, generation)
    assert held.keys.shape[1::2] == (2, 256)
    held.reserve(9, 64, 0)
    assert held.generation != generation


@on_both
def test_rows_from_the_end_take_the_places_of_others(device):
    held = slots(device)
    held.reserve(20, 8, 0)
    marks = torch.arange(20, device=device).float().view(1, -1, 1, 1, 1)
    held.keys.copy_(marks.expand(held.keys.shape))
    held.values.copy_(held.keys + 100)
    # More than are copied at once.
    order = [19, 18, 2, 17, 16, 15, 14, 13, 12, 11]
    held.keep(order)
    assert held.keys[1, : len(order), 0, 0, 0].tolist() == order
    assert held.values[2, : len(order), 1, 7, 3].tolist() == [n + 100 for n in order]


def test_capacities_are_few_and_close():
    assert [rounded_capacity(n) for n in (1, 64, 65, 529, 4105)] == [64, 64, 128, 576, 4608]
    found = {rounded_capacity(n) for n in range(1, 10_000)}
    assert len(found) < 50
    for n in range(200, 10_000, 7):
        assert n <= rounded_capacity(n) <= n * 1.32
        assert n < 1000 or rounded_capacity(n) <= n * 1.13


def expected(query, key, value, keys, values, positions, scale, window, cap):
    """What each row sees, one after the other and in float64."""
    out = []
    for row, count in enumerate(positions.tolist()):
        group = query.shape[1] // key.shape[1]
        for head in range(query.shape[1]):
            own = keys[row, head // group, :count].double()
            seen = torch.cat([own, key[row, head // group][None].double()])
            first = max(0, count + 1 - window) if window else 0
            scores = seen[first:] @ query[row, head].double() * scale
            scores = cap * torch.tanh(scores / cap) if cap else scores
            mine = values[row, head // group, :count].double()
            mine = torch.cat([mine, value[row, head // group][None].double()])[first:]
            out.append(scores.softmax(0) @ mine)
    return torch.stack(out).view(*query.shape[:2], -1)


CASES = [
    # heads, key heads, widths of keys and values, window, soft cap
    (4, 2, 16, 16, 0, 0.0),
    (3, 1, 24, 40, 50, 0.0),
    (2, 2, 8, 8, 70, 5.0),
    (8, 2, 32, 32, 1, 0.0),
]


def given(case, device, dtype, capacity=200):
    heads, key_heads, d, e, window, cap = case
    generator = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(shape, generator=generator).to(device, dtype)

    # As a layer gives them: parts of one product.
    joined = random(4, key_heads * (d + e))
    key = joined[:, : key_heads * d].view(4, key_heads, d)
    value = joined[:, key_heads * d :].view(4, key_heads, e)
    keys, values = random(5, key_heads, capacity, d), random(5, key_heads, capacity, e)
    positions = torch.tensor([0, capacity - 1, 100, 17], device=device)
    return random(4, heads, d), key, value, keys, values, positions, 0.3, window, cap


def check(function, case, device, dtype, tolerance, **options):
    inputs = given(case, device, dtype)
    _, key, value, keys, values, positions, *_ = inputs
    wanted = expected(*inputs)
    before = keys.clone()
    got = function(*inputs, **options)
    torch.testing.assert_close(got.double(), wanted, rtol=tolerance, atol=tolerance)
    for row, place in enumerate(positions.tolist()):
        assert torch.equal(keys[row, :, place], key[row])
        assert torch.equal(values[row, :, place], value[row])
        keys[row, :, place] = before[row, :, place]
    # Nothing else was written.
    assert torch.equal(keys, before)


@on_both
@pytest.mark.parametrize("case", CASES)
def test_a_token_is_appended_and_sees_its_own_row(case, device):
    check(append_and_attend, case, device, torch.float32, 1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", CASES)
def test_a_token_is_appended_in_half_precision(case, dtype):
    check(append_and_attend, case, "cuda", dtype, 0.03)


# Triton runs without a GPU too, where TRITON_INTERPRET=1 is set before it is loaded.
@pytest.mark.skipif(
    find_spec("triton") is None
    or not (torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"),
    reason="there is nothing that runs kernels of Triton",
)
@pytest.mark.parametrize("parts", [1, 3, 32])
@pytest.mark.parametrize("case", CASES)
def test_the_kernel_splits_rows_into_any_number_of_parts(case, parts):
    from plugrl.plugins.transformers.engine import kernels

    device = "cuda" if torch.cuda.is_available() else "cpu"
    check(kernels.append_and_attend, case, device, torch.float32, 1e-5, parts=parts)


@on_both
def test_random_numbers_are_the_same_bits_everywhere(device):
    streams = [(7, -3, i, 2**40, i % 3) for i in range(50)]
    seeds = stream_seeds(streams)
    positions = np.arange(40)[:, None]
    got = sampling.uniforms(
        torch.from_numpy(seeds.view(np.int64)).to(device),
        torch.from_numpy(positions).to(device),
    )
    assert got.cpu().numpy().tolist() == numbers_of_the_host(seeds, positions).tolist()


def masses(rows, vocabulary, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, vocabulary, generator=generator) * 3).softmax(-1)


@on_both
def test_large_vocabularies_are_searched_in_blocks_for_the_same_tokens(device):
    probs = masses(64, 5000).to(device)
    probs[:, 1024:2048] = 0
    numbers = torch.rand(64, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    numbers[0], numbers[1] = 0.0, 1 - 2**-53
    numbers = numbers.to(device)
    one = sampling._search(probs, numbers)
    assert torch.equal(sampling._search_in_blocks(probs, numbers), one)
    assert bool((probs.gather(-1, one) > 0).all())


@on_both
@pytest.mark.parametrize(
    ("top_p", "top_k", "min_p"),
    [(0.9, None, None), (1.0, 7, None), (0.5, 40, None), (1.0, None, 0.2), (0.8, 9, 0.05),
     (1.0, 5000, None)],
)  # fmt: skip
def test_tails_are_cut_at_the_same_place_with_and_without_sorting(device, top_p, top_k, min_p):
    probs = masses(16, 3000).to(device)
    column = torch.ones(16, 1, device=device)
    given = {"top_p": (column * top_p).double()}
    if top_k is not None:
        given["top_k"] = (column * top_k).long()
    if min_p is not None:
        given["min_p"] = column * min_p
    wanted = sampling.cut_by_order(probs, given)
    got = sampling.cut_by_bounds(probs, given["top_p"], given.get("top_k"), given.get("min_p"))
    assert torch.equal(got, wanted)
    assert int((got > 0).sum(1).min()) > 0


def test_tokens_of_equal_mass_at_the_bound_are_all_kept_without_sorting():
    probs = torch.tensor([[0.4, 0.2, 0.2, 0.2]])
    two = torch.tensor([[2]])
    got = sampling.cut_by_bounds(probs, torch.tensor([[1.0]]).double(), two, None)
    assert torch.equal(got, probs)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_a_sampler_that_takes_over_another_draws_what_that_would():
    device = "cuda"
    params = [SamplingParams(temperature=0.7, top_p=0.9), SamplingParams(temperature=0)]
    streams = [(0, 0, i, 0, 0) for i in range(2)]
    logits = torch.randn(2, 50, generator=torch.Generator().manual_seed(0)).to(device)
    old = sampling.Sampler(params, streams, [0, 0], device)
    other = sampling.Sampler(params[::-1], streams[::-1], [5, 9], device)
    assert old.kind == other.kind
    old.take_over(other)
    assert old.draw(logits)[0].tolist() == other.draw(logits)[0].tolist()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_slots_that_do_not_fit_name_the_settings():
    held = slots("cuda", heads=8, width=128, layers=28)
    with pytest.raises(RunError, match=r"inference\.max_batch_size or rollout_worker\.max_resp"):
        held.reserve(4096, 65536, 0)
    assert held.most_rows(65536) < 4096
    held.reserve(1, 64, 0)
