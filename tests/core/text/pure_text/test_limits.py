"""Requests, tokens and money are counted, and a limit refuses the request that would pass it."""

import asyncio

import pytest

from plugrl.core.errors import ConfigError
from plugrl.core.text.inference.requests import Completion
from plugrl.core.text.staged.limits import LimitReachedError, Meter, Usage
from plugrl.core.text.staged.sections import PriceConfig, TextRlConfig


async def answering(model, tokens, sampling=None):
    """Four tokens, whatever is asked."""
    return Completion([1] * 4, [0.0] * 4, "stop", 0)


def asked(meter, times, own=None):
    """The number of requests of ten tokens that were answered."""
    ask = meter.count_usage(answering, own or Usage())

    async def run():
        done = 0
        for _ in range(times):
            try:
                await ask("policy", [0] * 10)
            except LimitReachedError:
                break
            done += 1
        return done

    return asyncio.run(run())


def test_what_is_spent_is_counted_for_the_run_and_for_the_attempt():
    meter = Meter(TextRlConfig(prices={"policy": PriceConfig(input=2.0, output=10.0)}))
    own = Usage()
    assert asked(meter, 3, own) == 3
    assert (own.requests, own.input_tokens, own.output_tokens) == (3, 30, 12)
    # 30 tokens at 2 and 12 at 10 a million.
    assert own.cost == pytest.approx(180e-6)
    assert asked(meter, 1) == 1
    assert own.requests == 3
    assert meter.metrics() == {
        "spent/requests": 4.0,
        "spent/tokens": 56.0,
        "spent/cost": pytest.approx(240e-6),
    }


@pytest.mark.parametrize(
    ("limits", "answered"),
    [
        ({"max_requests": 3}, 3),
        # A request has 14 tokens: the third begins at 28, the fourth would at 42.
        ({"max_tokens": 29}, 3),
        ({"max_tokens": 28}, 2),
        # It costs 60e-6.
        ({"max_cost": 130e-6}, 3),
        ({"max_cost": 120e-6}, 2),
        ({}, 9),
    ],
)
def test_no_request_is_sent_once_a_limit_is_reached(limits, answered):
    prices = {"policy": PriceConfig(input=2.0, output=10.0)}
    meter = Meter(TextRlConfig(prices=prices, **limits))
    assert asked(meter, 9) == answered
    assert (meter.reached is None) == (not limits)


def test_requests_that_are_on_their_way_count():
    meter = Meter(TextRlConfig(max_requests=3))
    ask = meter.count_usage(answering, Usage())

    async def run():
        asking = (ask("policy", [0] * 10) for _ in range(8))
        return await asyncio.gather(*asking, return_exceptions=True)

    answers = asyncio.run(run())
    assert sum(isinstance(answer, Completion) for answer in answers) == 3
    assert "text_rl.max_requests=3 is reached (3)" in str(answers[-1])


def test_a_resumed_run_goes_on_counting():
    meter = Meter(TextRlConfig(max_requests=3))
    assert asked(meter, 2) == 2
    resumed = Meter(TextRlConfig(max_requests=3))
    resumed.load(meter.total.state_dict())
    assert asked(resumed, 9) == 1


def test_a_limit_of_cost_needs_prices():
    with pytest.raises(ConfigError, match="max_cost needs prices"):
        TextRlConfig(max_cost=1.0)
