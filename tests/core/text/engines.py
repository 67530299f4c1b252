"""Engines without a model, for tests of rollouts."""

from plugrl.core.text.inference.requests import Completion
from plugrl.core.text.inference.sampling import stream_seeds, uniforms
from plugrl.core.text.inference.services import InferenceService


class Letters:
    """A token is a character."""

    pad_token_id, eos_token_id = 0, 1

    def encode(self, text, /):
        return [ord(c) for c in text]

    def decode(self, tokens, /):
        return "".join(map(chr, tokens))


class Unloaded(InferenceService):
    """What every engine here has: the tokens of :class:`Letters`, and nothing to load."""

    tokenizer = Letters()
    vocabulary_size = 128
    max_sequence_length = 64

    def load(self, spec):
        raise NotImplementedError

    def update_weights(self, weights, version):
        raise NotImplementedError


class Engine(Unloaded):
    """Answers two tokens that depend on the stream alone, and keeps what it was asked."""

    def __init__(self, answer=None):
        super().__init__()
        self.rounds = []
        self._answer = answer

    def noted(self, request):
        return request.stream

    def generate(self, requests):
        self.rounds.append([self.noted(request) for request in requests])
        if self._answer is not None:
            return self._answer(requests)
        seeds = stream_seeds([request.stream for request in requests])
        draws = [(uniforms(seeds, k) * self.vocabulary_size).astype(int) for k in range(2)]
        return [
            Completion([int(a), int(b)], [-1.0, -2.0], "stop", 3)
            for a, b in zip(*draws, strict=True)
        ]
