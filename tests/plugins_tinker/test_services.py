"""The services against servers of the Tinker API."""

import asyncio

import pytest
import torch
from faults import Door
from servers import against
from waiting import DEADLINE

from plugrl.core.config.view import ConfigView
from plugrl.core.errors import ConfigError, RunError
from plugrl.core.text.batch import Batch
from plugrl.core.text.inference.requests import GenerationRequest
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.core.text.inference.services import ModelSpec
from plugrl.core.text.learn.optimizer import AdamParams
from plugrl.core.text.models import Model
from plugrl.core.text.remote.service import Datum
from plugrl.core.text.schedule.weight_sync import WeightSync
from plugrl.core.text.trajectory import Trajectory

pytest.importorskip("tinker")

from plugrl.plugins.tinker.inference_service import TinkerInferenceService  # noqa: E402
from plugrl.plugins.tinker.train_service import TinkerTrainService  # noqa: E402

pytestmark = against("server")
#: "12+34=" and "046" with the end token.
PROMPT = [3, 4, 12, 5, 6, 13]
ANSWER = [2, 6, 8, 1]


@pytest.fixture
def make(server):
    def made(cls, url=None, **options):
        settings = {"base_url": url or server.url, "base_model": server.model}
        settings |= {"patience": DEADLINE}
        service = cls({**settings, **options})
        source = ConfigView({"path": server.model, "config": {}, "dtype": "float32"})
        service.load(ModelSpec("policy", source, seed=3, device="cpu"))
        return service

    return made


def ask(count=1, logprobs=False, prompt=PROMPT, **sampling):
    sampling = {"max_new_tokens": 4, "stop_token_ids": (1,), **sampling}
    return [
        GenerationRequest(prompt, SamplingParams(**sampling), (0, 1, 0, run, 0), logprobs)
        for run in range(count)
    ]


def datum(tokens=(*PROMPT, *ANSWER), **inputs):
    tokens, mask = list(tokens), [0] * 5 + [1] * (len(tokens) - 6)
    return Datum(tokens[:-1], {"target_tokens": tokens[1:], "mask": mask, **inputs})


def supervised():
    own = datum()
    weights = [float(value) for value in own.loss_fn_inputs["mask"]]
    return datum(weights=weights)


@pytest.fixture
def adam():
    return AdamParams(0.0003, (0.9, 0.99), 1e-8, 0.0, 1.0)


def test_the_sampler_gives_token_ids_with_their_log_probabilities(make):
    sampler = make(TinkerInferenceService)
    assert (sampler.max_sequence_length, sampler.vocabulary_size) == (32, 14)
    answers = sampler.generate(ask(16))
    assert len({tuple(answer.tokens) for answer in answers}) > 1
    for answer in answers:
        assert answer.finish_reason == ("stop" if answer.tokens[-1] == 1 else "length")
        scores = sampler.score([[*PROMPT, *answer.tokens]])[0]
        assert scores[0] == 0.0
        assert scores[6:] == pytest.approx(answer.logprobs, abs=1e-4)
    assert sampler.generate(ask(16)) == answers, "equal requests, equal numbers"


def test_log_probabilities_are_those_of_the_model_in_transformers(make, server):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(server.model)
    tokens = [*PROMPT, *ANSWER]
    with torch.no_grad():
        logp = model(torch.tensor([tokens])).logits[0].log_softmax(-1)
    expected = [logp[i, token].item() for i, token in enumerate(tokens[1:])]
    sampler, trainer = make(TinkerInferenceService), make(TinkerTrainService)
    assert sampler.score([tokens])[0][1:] == pytest.approx(expected, abs=1e-4)
    assert trainer.forward([datum()]).result()[0] == pytest.approx(expected, abs=1e-4)


def test_greedy_answers_prompt_scores_and_strings_that_end(make):
    sampler = make(TinkerInferenceService)
    (greedy,) = sampler.generate(ask(temperature=0.0, logprobs=True))
    assert len(greedy.prompt_logprobs) == len(PROMPT)
    assert greedy.prompt_logprobs == pytest.approx(sampler.score([PROMPT])[0], abs=1e-5)
    first = sampler.tokenizer.decode(greedy.tokens[:1])
    (cut,) = sampler.generate(ask(temperature=0.0, stop=(first,)))
    assert (cut.tokens, cut.finish_reason) == (greedy.tokens[:1], "stop")
    with pytest.raises(ConfigError, match="temperature 1"):
        sampler.score([PROMPT], temperature=0.5)


def test_many_are_answered_at_once_and_one_can_be_given_up(make):
    sampler = make(TinkerInferenceService)

    async def all_of_them():
        requests = ask(8)
        tasks = [asyncio.create_task(sampler.complete(request)) for request in requests]
        tasks[3].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    answers = asyncio.run(all_of_them())
    assert isinstance(answers.pop(3), asyncio.CancelledError)
    assert all(answer.tokens for answer in answers)


@pytest.mark.integration
def test_requests_that_are_sent_again_keep_their_parameters(make, server):
    with Door(server.url) as door:
        sampler = make(TinkerInferenceService, door.url)
        request = ask(1, top_k=5, top_p=0.9)
        expected = sampler.generate(request)
        door.misbehave("asample", 500, 429, "cut")
        assert sampler.generate(request) == expected
    first, *again = door.requests("asample")
    assert len(again) == 4
    assert first["sampling_params"]["stop"] == [1]
    for body in again:
        assert body["sampling_params"] == first["sampling_params"]
        assert body["prompt"] == first["prompt"]


def test_a_sequence_that_is_too_long_is_not_sent(make, adam):
    sampler, trainer = make(TinkerInferenceService), make(TinkerTrainService)
    with pytest.raises(ConfigError, match=r"prompt of 32 tokens fills .* context of 32"):
        sampler.generate(ask(prompt=[2] * 32))
    with pytest.raises(ConfigError, match="sequence of 33 tokens is longer than the 32"):
        trainer.forward([datum([2] * 33)])
    with pytest.raises(ConfigError, match="token 14, outside the vocabulary of 14"):
        sampler.generate(ask(prompt=[2, 14]))
    assert make(TinkerInferenceService, max_context=9).max_sequence_length == 9


def test_training_makes_its_answer_likelier_and_the_sampler_follows(make, adam):
    trainer, sampler = make(TinkerTrainService), make(TinkerInferenceService)
    before = sampler.score([[*PROMPT, *ANSWER]])[0]
    sync = WeightSync(Model("policy", sampler, trainer), 1e-4)
    sync.observe([Trajectory([*PROMPT, *ANSWER], [0] * 6 + [1] * 4, logprobs=before)])
    for _ in range(6):
        answer = trainer.forward_backward([supervised()], "cross_entropy").result()
        # The loss of the table: minus the log-probabilities where the mask is 1.
        assert answer.loss == pytest.approx(-sum(answer.logprobs[0][5:]), rel=1e-6)
        report = trainer.optim_step(adam).result()
        assert report["grad_norm"] > 0
    trainer.version = 1
    parity = sync()
    assert parity is not None
    assert parity < 1e-4
    after = sampler.score([[*PROMPT, *ANSWER]])[0]
    assert sum(after[6:]) > sum(before[6:]) + 0.05
    assert sampler.version == 1


@pytest.mark.parametrize("loss", ["importance_sampling", "ppo", "cispo"])
def test_advantages_move_log_probabilities(make, adam, loss):
    trainer = make(TinkerTrainService)
    (before,) = trainer.forward([datum()]).result()
    mask = datum().loss_fn_inputs["mask"]
    own = datum(
        logprobs=[value * on for value, on in zip(before, mask, strict=True)],
        advantages=[-1.0 * on for on in mask],
    )
    options = {} if loss == "importance_sampling" else {"clip_low_threshold": 0.9}
    answer = trainer.forward_backward([own], loss, options).result()
    assert answer.logprobs[0] == pytest.approx(before, abs=1e-5)
    trainer.optim_step(adam).result()
    (after,) = trainer.forward([datum()]).result()
    assert sum(after[5:]) < sum(before[5:])


def test_what_the_section_says_of_adapter_and_optimizer_is_sent(make, server):
    parts = {"train_mlp": False, "train_attn": True, "train_unembed": False}
    with Door(server.url) as door:
        trainer = make(
            TinkerTrainService, door.url, lora_rank=4, state_ttl=70, sampler_ttl=80, **parts
        )
        trainer.forward_backward([supervised()], "cross_entropy").result()
        trainer.optim_step(AdamParams(0.0003, (0.8, 0.98), 1e-7, 0.02, 0.5)).result()
        trainer.save_state("a").result()
        trainer.save_weights_for_sampler("b").result()
    (made,) = door.requests("create_model")
    assert made["lora_config"] == {"rank": 4, "seed": 3, **parts}
    (step,) = door.requests("optim_step")
    assert step["adam_params"] == {
        "learning_rate": 0.0003, "beta1": 0.8, "beta2": 0.98, "eps": 1e-7, "weight_decay": 0.02,
        "grad_clip_norm": 0.5,
    }  # fmt: skip
    (state,), (sampled,) = (door.requests(f"save_weights{end}") for end in ("", "_for_sampler"))
    assert (state["ttl_seconds"], sampled["ttl_seconds"]) == (70, 80)


def test_a_saved_state_goes_on_as_its_trainer_does(make, adam, server):
    trainer = make(TinkerTrainService)

    def step(service):
        service.forward_backward([supervised()], "cross_entropy").result()
        service.optim_step(adam).result()

    def score(service):
        return service.forward([datum()]).result()[0]

    for _ in range(2):
        step(trainer)
    saved = trainer.state_dict()
    assert saved["saved"]["path"].startswith("tinker://")
    other = make(TinkerTrainService)
    other.load_state_dict(saved)
    begun = score(trainer)
    assert score(other) == pytest.approx(begun, abs=1e-6)
    step(trainer)
    step(other)
    # The optimizer's moments were kept: a new optimizer would take a larger step.
    assert score(other) == pytest.approx(score(trainer), abs=1e-5)
    fresh = make(TinkerTrainService, start_from=saved["saved"]["path"])
    assert score(fresh) == pytest.approx(begun, abs=1e-6)
    step(fresh)
    if server.leaves_moments_out:
        assert score(fresh) != pytest.approx(score(trainer), abs=1e-3)
    with pytest.raises(ConfigError, match="lora_rank=32 and the configuration 4"):
        make(TinkerTrainService, lora_rank=4).load_state_dict(saved)


def test_a_phase_begins_where_the_one_before_ended(make, adam):
    trainer = make(TinkerTrainService)
    trainer.forward_backward([supervised()], "cross_entropy").result()
    trainer.optim_step(adam).result()
    expected = trainer.forward([datum()]).result()[0]
    handed = trainer.export_weights()
    next_one, frozen = make(TinkerTrainService), make(TinkerInferenceService)
    next_one.import_weights(handed)
    frozen.import_weights(handed)
    assert next_one.forward([datum()]).result()[0] == pytest.approx(expected, abs=1e-6)
    assert frozen.score([[*PROMPT, *ANSWER]])[0][1:] == pytest.approx(expected, abs=1e-4)
    for service in (next_one, frozen):
        with pytest.raises(ConfigError, match="tinker"):
            service.import_weights({"layer.weight": torch.zeros(2)})


def test_a_batch_is_scored_row_by_row(make):
    trainer = make(TinkerTrainService)
    rows = [[*PROMPT, *ANSWER], [*PROMPT, 2, 1]]
    made = [Trajectory(row, [0] * 6 + [1] * (len(row) - 6)) for row in rows]
    scores = trainer.compute_log_prob(Batch.from_trajectories(made))
    assert scores.shape == (2, 10)
    expected = trainer.forward([datum(row) for row in rows]).result()
    assert scores[0, 6:].tolist() == pytest.approx(expected[0][5:], abs=1e-6)
    assert scores[1, 6:8].tolist() == pytest.approx(expected[1][5:], abs=1e-6)
    assert scores[:, :6].abs().sum() == 0
    assert scores[1, 8:].abs().sum() == 0


def test_what_the_service_does_not_have_is_named(make, server):
    with pytest.raises(ConfigError, match=r"no model 'Qwen/Nothing'; it has: .*base"):
        make(TinkerInferenceService, base_model="Qwen/Nothing")
    with pytest.raises(RunError, match="LoRA rank 999 must be between 1 and"):
        make(TinkerTrainService, lora_rank=999)
    trainer = make(TinkerTrainService)
    mask = datum().loss_fn_inputs["mask"]
    server.lacks("dro")
    numbers = {"logprobs": [0.0] * len(mask), "advantages": [float(on) for on in mask]}
    with pytest.raises(RunError, match=f"{server.url} failed to take the gradient of dro"):
        trainer.forward_backward([datum(**numbers)], "dro").result()
    with pytest.raises(RunError, match="has lost what is needed to load tinker://model_x/weights"):
        trainer.load_state(
            {"path": "tinker://model_x/weights/gone", "base_model": trainer.config.base_model,
             "lora_rank": 32}
        ).result()  # fmt: skip
