"""What is sent and what is made of answers, without a server."""

import math

import pytest

from plugrl.core.errors import ConfigError, ContractError
from plugrl.core.text.inference.requests import GenerationRequest
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.core.text.remote.losses import loss_value
from plugrl.core.text.remote.service import NAMED_LOSSES, Datum
from plugrl.plugins.tinker import wire
from plugrl.plugins.transformers.tokenizer import character_tokenizer

types = pytest.importorskip("tinker").types
TOKENIZER = character_tokenizer("0123456789+=")


def datum(**inputs):
    return Datum([4, 5, 6], {"target_tokens": [5, 6, 1], "mask": [0, 1, 1], **inputs})


def test_a_datum_has_what_its_loss_reads_and_no_mask():
    own = datum(logprobs=[0.0, -0.5, -1.0], advantages=[0.0, 0.25, 0.25], weights=[0, 1.0, 1.0])
    (sent,) = wire.as_datums([own], NAMED_LOSSES["ppo"])
    assert sent.model_input.to_ints() == [4, 5, 6]
    shown = {name: (value.dtype, value.tolist()) for name, value in sent.loss_fn_inputs.items()}
    assert shown == {
        "target_tokens": ("int64", [5, 6, 1]),
        "logprobs": ("float32", [0.0, -0.5, -1.0]),
        "advantages": ("float32", [0.0, 0.25, 0.25]),
    }


def test_a_forward_pass_weighs_the_mask():
    (sent,) = wire.as_datums(wire.for_forward([datum()]), NAMED_LOSSES["cross_entropy"])
    assert sent.loss_fn_inputs["weights"].tolist() == [0.0, 1.0, 1.0]


# Ratios of the two trained targets: e^0.5 = 1.6487 and e^-0.5 = 0.6065, worked by hand below.
LOGP = [[-9.0, -0.5, -1.5]]
BEFORE = {"logprobs": [0.0, -1.0, -1.0], "advantages": [0.0, 2.0, -1.0]}


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("cross_entropy", {}, 0.5 * 1.0 + 1.5 * 3.0),
        ("importance_sampling", {}, -(2.0 * 1.6487213) + 0.6065307),
        # min(1.6487, 1.2) * 2 = 2.4; max(0.6065, 0.8) * 1 = 0.8
        ("ppo", {}, -2.4 + 0.8),
        ("ppo", {"clip_high_threshold": 1.5}, -3.0 + 0.8),
        ("cispo", {}, -(1.6487213 * 2.0 * -0.5) - (0.6065307 * -1.0 * -1.5)),
        # -(A logp - 0.025 log(r)^2), with log(r) = 0.5 and -0.5
        ("dro", {}, -(2.0 * -0.5 - 0.00625) - (-1.0 * -1.5 - 0.00625)),
    ],
)
def test_losses_are_those_of_the_table(name, options, expected):
    own = datum(weights=[7.0, 1.0, 3.0], **BEFORE)
    assert loss_value(name, options, [own], LOGP) == pytest.approx(expected, rel=1e-6)


def test_an_unknown_loss_is_refused():
    with pytest.raises(ContractError, match="no loss 'mine'"):
        loss_value("mine", {}, [], [])


def request(prompt=(2, 3), logprobs=False, stream=(0, 0, 0, 0, 0), **sampling):
    return GenerationRequest(prompt, SamplingParams(**sampling), stream, logprobs)


def test_sampling_keeps_what_was_asked_for():
    asked = SamplingParams(0.5, 0.9, 20, stop_token_ids=(1, 7), top_k=4, stop=("=",))
    sent = wire.as_sampling(asked, 11, 8)
    assert sent.model_dump() == {
        "max_tokens": 8, "seed": 11, "stop": [1, 7], "temperature": 0.5, "top_k": 4, "top_p": 0.9,
    }  # fmt: skip
    assert wire.as_sampling(SamplingParams(), 1, 999).top_k == -1
    with pytest.raises(ConfigError, match="min_new_tokens"):
        wire.as_sampling(SamplingParams(min_new_tokens=2), 1, 8)


def test_seeds_differ_by_stream_and_fit_31_bits():
    streams = [(0, step, item, run, 0) for step in range(4) for item in range(4) for run in (0, 1)]
    seeds = [wire.seed_of(request(stream=stream)) for stream in streams]
    assert len(set(seeds)) == len(streams)
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_requests_of_one_prompt_and_one_way_of_sampling_are_one_call():
    asked = [request((2,)), request((3,)), request((2,)), request((2,), temperature=0.0)]
    assert wire.group_by_prompt(asked) == [[0, 2], [1], [3]]


@pytest.mark.parametrize("given", [[None, -1.0, -2.0], [-1.0, -2.0]])
def test_log_probabilities_of_a_prompt_may_have_a_place_for_the_first_token(given):
    assert wire.prompt_logprobs_of(given, 3) == [0.0, -1.0, -2.0]


def test_log_probabilities_of_a_prompt_must_be_as_many():
    assert wire.prompt_logprobs_of(None, 3) is None
    with pytest.raises(ContractError, match="gave 1 log-probabilities of a prompt of 3"):
        wire.prompt_logprobs_of([-1.0], 3)
    assert math.isnan(wire.prompt_logprobs_of([None, None, -1.0], 3)[1])


def sampled(text, reason="length"):
    tokens = TOKENIZER.encode(text)
    values = [-float(i) for i in range(len(tokens))]
    return types.SampledSequence(stop_reason=reason, _tokens_list=tokens, _logprobs_list=values)


@pytest.mark.parametrize(
    ("stops", "text", "reason"),
    [((), "12+34", "length"), (("+3",), "12+3", "stop"), (("9", "2"), "12", "stop")],
)
def test_an_answer_ends_where_a_string_is_complete(stops, text, reason):
    own = wire.completion_of(
        sampled("12+34"), request(stop=stops), 3, TOKENIZER.decode, [0.0, -0.5]
    )
    assert TOKENIZER.decode(own.tokens) == text
    assert (own.finish_reason, own.version, own.prompt_logprobs) == (reason, 3, None)
    assert own.logprobs == [-float(i) for i in range(len(text))]


def test_an_answer_without_log_probabilities_is_refused():
    bare = types.SampledSequence(stop_reason="stop", _tokens_list=[2, 3])
    with pytest.raises(ContractError, match="without log-probabilities"):
        wire.completion_of(bare, request(), 0, TOKENIZER.decode, None)


def test_metrics_have_plain_names():
    given = {"skyrl.ai/grad_norm": 2.0, "skyrl.ai/learning_rate": 0.1, "loss:sum": 3.0}
    assert wire.metrics_of(given) == {"grad_norm": 2.0, "service/loss_sum": 3.0}
