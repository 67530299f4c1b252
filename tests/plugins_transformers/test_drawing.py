"""What is drawn for each row, against distributions computed by hand."""

import numpy as np
import pytest
import torch

from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.plugins.transformers.engine.sampler import Sampler

# Their softmax is 0.5, 0.3, 0.15 and 0.05.
LOGITS = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64).log().float()
DRAWS = 8_000


def streams(count, item=0):
    return [(0, i, item, 0, 0) for i in range(count)]


def drawn(params, logits=LOGITS, count=DRAWS):
    """Tokens of ``count`` streams with the same parameters, and their log-probabilities."""
    sampler = Sampler([params] * count, streams(count), [0] * count, "cpu")
    tokens, logprobs = sampler.draw(logits.expand(count, -1))
    return tokens.numpy(), logprobs.numpy()


def chi_square(tokens, expected):
    counts = np.bincount(tokens, minlength=len(expected))
    possible = expected > 0
    assert counts[~possible].sum() == 0
    wanted = expected[possible] * len(tokens)
    return float(((counts[possible] - wanted) ** 2 / wanted).sum())


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (SamplingParams(), [0.5, 0.3, 0.15, 0.05]),
        # 0.5 ** 2 and so on; their sum is 0.365.
        (SamplingParams(temperature=0.5), np.array([0.25, 0.09, 0.0225, 0.0025]) / 0.365),
        (SamplingParams(top_k=2), [0.5 / 0.8, 0.3 / 0.8, 0, 0]),
        (SamplingParams(top_k=9), [0.5, 0.3, 0.15, 0.05]),
        # 0.5 is not yet 0.6, so the second token belongs to the set.
        (SamplingParams(top_p=0.6), [0.5 / 0.8, 0.3 / 0.8, 0, 0]),
        (SamplingParams(top_p=0.81), [0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0]),
        (SamplingParams(top_p=0.01), [1, 0, 0, 0]),
        # Of the two that top-k keeps, the first holds 0.625 of the mass.
        (SamplingParams(top_k=2, top_p=0.62), [1, 0, 0, 0]),
        (SamplingParams(top_k=2, top_p=0.63), [0.5 / 0.8, 0.3 / 0.8, 0, 0]),
        # A stop token that cannot be drawn yet.
        (SamplingParams(min_new_tokens=1, stop_token_ids=(0,)), [0, 0.6, 0.3, 0.1]),
        (SamplingParams(temperature=0, min_new_tokens=1, stop_token_ids=(0, 99)), [0, 1, 0, 0]),
    ],
)  # fmt: skip
def test_the_distribution(params, expected):
    tokens, logprobs = drawn(params)
    # At most three degrees of freedom: 30 is exceeded once in 700,000 times.
    assert chi_square(tokens, np.array(expected)) < 30
    # Log-probabilities are those before anything was taken away.
    own = (LOGITS.double() / (params.temperature or 1.0)).log_softmax(-1).numpy()
    assert logprobs == pytest.approx(own[tokens], abs=1e-5)


def test_a_large_vocabulary():
    logits = torch.linspace(0, 4, 200)
    tokens, _ = drawn(SamplingParams(), logits, 12_000)
    # 199 degrees of freedom: mean 199, deviation 19.9; five deviations.
    assert chi_square(tokens, logits.double().softmax(-1).numpy()) < 199 + 5 * 19.9


def test_rows_with_other_parameters_change_nothing():
    params = [
        SamplingParams(),
        SamplingParams(temperature=0),
        SamplingParams(temperature=2.0),
        SamplingParams(top_k=2),
        SamplingParams(top_p=0.5, temperature=1.5),
        SamplingParams(min_new_tokens=3, stop_token_ids=(1, 2)),
    ]
    generator = torch.Generator().manual_seed(0)
    steps = [torch.randn(len(params), 50, generator=generator) for _ in range(40)]
    together = Sampler(params, streams(len(params)), [0] * len(params), "cpu")
    alone = [Sampler([p], [s], [0], "cpu") for p, s in zip(params, streams(6), strict=True)]
    for logits in steps:
        tokens, logprobs = together.draw(logits)
        for row, sampler in enumerate(alone):
            token, logprob = sampler.draw(logits[row : row + 1])
            assert token[0] == tokens[row]
            assert logprob[0] == pytest.approx(float(logprobs[row]), abs=1e-5)


def test_numbers_go_on_where_a_row_was():
    params, logits = SamplingParams(), torch.zeros(3, 1000)
    sampler = Sampler([params] * 3, streams(3), [0] * 3, "cpu")
    drawn_before = [sampler.draw(logits)[0].tolist() for _ in range(70)]
    later = Sampler([params] * 2, [streams(3)[2], streams(3)[0]], [40, 65], "cpu")
    assert later.draw(logits[:2])[0].tolist() == [drawn_before[40][2], drawn_before[65][0]]


def test_numbers_that_round_to_one_never_meet_a_token_without_mass():
    # The last token's mass is 0 in float32, so a search that ran past the end would draw it.
    logits = torch.tensor([0.0, 0.0, -200.0])
    tokens, _ = drawn(SamplingParams(), logits, 100_000)
    assert set(tokens.tolist()) == {0, 1}


# Far apart, so that what is left is a small part of the whole, or 0 in float32.
@pytest.mark.parametrize("first", [12.0, 300.0])
def test_tokens_that_cannot_be_drawn_yet_keep_their_mass_in_log_probabilities(first):
    shares = [(), (0, 2), (1, 1, 3), (0, 1, 2), (4_000,)]
    params = [SamplingParams(min_new_tokens=2, stop_token_ids=stops) for stops in shares]
    logits = torch.tensor([first, -3.0, 9.0, 2.0]).expand(len(params), -1)
    sampler = Sampler(params, streams(len(params)), [0] * len(params), "cpu")
    tokens, logprobs = sampler.draw(logits)
    assert all(token not in stops for token, stops in zip(tokens.tolist(), shares, strict=True))
    expected = logits.double().log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
    assert logprobs.numpy() == pytest.approx(expected.numpy(), rel=1e-6, abs=1e-5)


# The compiler takes a second to import.
@pytest.mark.integration
def test_tokens_that_cannot_be_drawn_yet_are_the_same_ones_compiled():
    shares = [(), (0, 2), (1, 1, 3), (0, 1, 2), (4_000,)]
    params = [SamplingParams(min_new_tokens=2, stop_token_ids=stops) for stops in shares]
    logits = torch.tensor([1.0, -3.0, 9.0, 2.0]).expand(len(params), -1)
    plain, compiled = (Sampler(params, streams(5), [0] * 5, "cpu") for _ in range(2))
    draw = torch.compile(compiled.draw, backend="eager")
    for _ in range(3):
        for own, expected in zip(draw(logits), plain.draw(logits), strict=True):
            assert torch.equal(own, expected)
