"""The contract of inference services.

Run it with ``--plugrl-inference-service NAME``, or subclass :class:`InferenceServiceContract` with
an attribute ``plugrl_inference_service``. A service gives as ``conformance``: ``config``, its
section, and ``source``, the model that it loads; by default a model of a few hundred weights with
random values. ``tolerance`` is how far log-probabilities of one token may lie apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import pytest
import torch

from plugrl.core.text.inference.completions import check_completions
from plugrl.core.text.inference.requests import Completion, GenerationRequest
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.core.text.inference.services import InferenceService
from plugrl.core.text.rollout.time_limits import run_coroutine
from plugrl.testing.contract import ComponentContract
from plugrl.testing.models import SOURCE, spec_of

TEXTS = ("ab", "a longer prompt", "c")


class InferenceServiceContract(ComponentContract):
    """The tests; they need the attribute ``plugrl_inference_service``."""

    kind = "inference_service"
    defaults: ClassVar[Mapping[str, Any]] = {"source": SOURCE, "tolerance": 1e-3}

    @pytest.fixture
    def load(
        self, make: Callable[[], InferenceService], example: Mapping[str, Any]
    ) -> Iterator[Callable[..., InferenceService]]:
        """Makes a service that has loaded its model; all are closed at the end."""
        made: list[InferenceService] = []

        def loaded(seed: int = 0) -> InferenceService:
            made.append(make())
            made[-1].load(spec_of(example["source"], seed=seed, trained=True))
            return made[-1]

        yield loaded
        for service in made:
            service.close()

    def requests(
        self, service: InferenceService, length: int = 5, **options: Any
    ) -> list[GenerationRequest]:
        sampling = SamplingParams(max_new_tokens=length, **options)
        rows = [service.tokenizer.encode(text) for text in TEXTS]
        return [GenerationRequest(row, sampling, (0, 1, i, 0, 0)) for i, row in enumerate(rows)]

    def ask(
        self, service: InferenceService, requests: Sequence[GenerationRequest]
    ) -> list[Completion]:
        found = service.generate(requests)
        return check_completions("policy", found, requests, service.vocabulary_size)

    def test_the_tokenizer_gives_text_back(self, load: Callable[..., InferenceService]) -> None:
        service = load()
        for text in TEXTS:
            tokens = service.tokenizer.encode(text)
            assert max(tokens) < service.vocabulary_size
            assert service.tokenizer.decode(tokens) == text
        assert service.max_sequence_length > 0

    def test_each_request_has_its_answer(self, load: Callable[..., InferenceService]) -> None:
        service = load()
        requests = self.requests(service)
        for request, answer in zip(requests, self.ask(service, requests), strict=True):
            assert len(answer.tokens) <= request.sampling.max_new_tokens
            assert len(answer.logprobs) == len(answer.tokens)
            assert all(math.isfinite(x) and x <= 1e-3 for x in answer.logprobs)
            assert answer.version == service.version
            ended = answer.finish_reason == "stop"
            assert ended or len(answer.tokens) == request.sampling.max_new_tokens

    def test_equal_requests_get_equal_answers(self, load: Callable[..., InferenceService]) -> None:
        service = load()
        if not service.together:
            pytest.skip("its requests are each alone on their way")
        first = self.ask(service, self.requests(service))
        self.ask(service, self.requests(service, 3)[:1])
        assert self.ask(service, self.requests(service)) == first

    def test_an_answer_does_not_depend_on_the_others(
        self, load: Callable[..., InferenceService], example: Mapping[str, Any]
    ) -> None:
        service = load()
        requests = self.requests(service, temperature=0.0)
        together = self.ask(service, requests)
        for request, answer in zip(requests, together, strict=True):
            (alone,) = self.ask(service, [request])
            assert alone.tokens == answer.tokens
            assert alone.logprobs == pytest.approx(answer.logprobs, abs=example["tolerance"])
        backwards = self.ask(service, requests[::-1])[::-1]
        assert [a.tokens for a in backwards] == [a.tokens for a in together]

    def test_log_probabilities_are_those_of_the_model(
        self, load: Callable[..., InferenceService], example: Mapping[str, Any]
    ) -> None:
        service = load()
        if not service.scores_prompts:
            pytest.skip("it gives no log-probabilities of prompts")
        for temperature in (1.0, 0.5):
            requests = self.requests(service, temperature=temperature)
            answers = self.ask(service, requests)
            rows = [[*r.prompt_tokens, *a.tokens] for r, a in zip(requests, answers, strict=True)]
            for request, answer, scores in zip(
                requests, answers, service.score(rows, temperature), strict=True
            ):
                assert len(scores) == len(request.prompt_tokens) + len(answer.tokens)
                assert scores[0] == 0.0
                own = scores[len(request.prompt_tokens) :]
                assert own == pytest.approx(answer.logprobs, abs=example["tolerance"])

    def test_no_token_can_be_asked_for(self, load: Callable[..., InferenceService]) -> None:
        service = load()
        assert [a.tokens for a in self.ask(service, self.requests(service, 0))] == [[]] * 3

    def test_one_request_at_a_time_gives_the_same(
        self, load: Callable[..., InferenceService]
    ) -> None:
        service = load()
        requests = self.requests(service, temperature=0.0)
        together = self.ask(service, requests)
        for request, answer in zip(requests, together, strict=True):
            alone: Completion = run_coroutine(service.complete(request))
            assert alone.tokens == answer.tokens
        # A closed service starts anew.
        service.close()
        assert run_coroutine(service.complete(requests[0])).tokens == together[0].tokens

    def test_it_leaves_requests_as_they_were(self, load: Callable[..., InferenceService]) -> None:
        service = load()
        requests = self.requests(service)
        before = [list(request.prompt_tokens) for request in requests]
        answers = self.ask(service, requests)
        assert [list(request.prompt_tokens) for request in requests] == before
        for request, answer in zip(requests, answers, strict=True):
            assert answer.tokens[: len(before[0])] != list(request.prompt_tokens), (
                "an answer begins with its prompt"
            )

    def test_weights_that_do_not_fit_are_refused(
        self, load: Callable[..., InferenceService]
    ) -> None:
        service = load()
        if not service.takes_weights:
            pytest.skip("it takes no weights")
        version = service.version
        with pytest.raises(ValueError, match=r".+"):
            service.update_weights({"no_such_weight": torch.zeros(1)}, version + 1)
        assert service.version == version


class TestInferenceService(InferenceServiceContract):
    """The contract for every ``--plugrl-inference-service``."""

    __test__ = True
