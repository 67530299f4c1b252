"""A model whose replies are written, behind sessions and servers, for the tests of the endpoint."""

import asyncio
import json
import re
import threading
import time
from contextlib import contextmanager

from waiting import DEADLINE

from plugrl.core.text.endpoint.app import Application
from plugrl.core.text.endpoint.server import Server, listening_socket
from plugrl.core.text.endpoint.serving import ServedSessions, ServiceSource
from plugrl.core.text.endpoint.session import Offer, Session
from plugrl.core.text.inference.requests import Completion
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.core.text.inference.services import InferenceService, TokenLimits
from plugrl.plugins.transformers.tokenizer import CharacterTokenizer
from plugrl.scenarios.parsers.hermes import HermesParser

CHARACTERS = "".join(map(chr, range(32, 127))) + "\näöü日本🙂"
TEMPLATE = (
    "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
TOKEN = "secret-token"


def told(text):
    """What the last message of a prompt says."""
    return re.findall(r"<(?:user|tool|system)>([^<]*)", text)[-1]


def echo(text):
    """Says what it was told."""
    return told(text)


class Written(InferenceService):
    """Answers what ``reply`` makes of the text of a prompt, and the end token.

    The log-probability of the token at place ``k`` is ``-(k + 1) / 8``; ``asked`` keeps requests.
    ``entered`` says that it computes, and it waits for ``gate``, which is open at first.
    """

    tokenizer = vocabulary_size = max_sequence_length = None

    def __init__(self, reply=echo, context=2000, seconds=0.0, template=TEMPLATE):
        super().__init__()
        self.tokenizer = CharacterTokenizer(CHARACTERS, template)
        self.vocabulary_size = self.tokenizer.vocabulary_size
        self.max_sequence_length = context
        self.version = 7
        self.asked = []
        self._reply = reply
        self._seconds = seconds
        self.entered, self.gate = threading.Event(), threading.Event()
        self.gate.set()

    def load(self, spec):
        raise NotImplementedError

    def update_weights(self, weights, version):
        raise NotImplementedError

    def generate(self, requests):
        self.entered.set()
        assert self.gate.wait(DEADLINE)
        time.sleep(self._seconds)
        self.asked += requests
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        sampling = request.sampling
        said = self._reply(self.tokenizer.decode(request.prompt_tokens))
        for stop in sampling.stop:
            if stop in said:
                said = said[: said.index(stop) + len(stop)]
        tokens = [
            *self.tokenizer.encode(said),
            *([] if said.endswith(sampling.stop or "\0") else [1]),
        ]
        cut = tokens[: sampling.max_new_tokens]
        reason = "stop" if len(cut) == len(tokens) else "length"
        prompt = [-0.5] * len(request.prompt_tokens) if request.prompt_logprobs else None
        logprobs = [-(k + 1) / 8 for k in range(len(cut))]
        return Completion(cut, logprobs, reason, self.version, prompt_logprobs=prompt)


def offer_of(model, **more):
    return Offer(
        tokenizers={"policy": model.tokenizer},
        limits=TokenLimits.of({"policy": model}),
        sampling=SamplingParams(max_new_tokens=10_000),
        call_parsers=[HermesParser()],
        **more,
    )


@contextmanager
def session_of(model, **more):
    """A session without a server."""
    try:
        yield Session("s", offer_of(model, **more), ServiceSource({"policy": model}))
    finally:
        model.close()


@contextmanager
def served(model, record=None, **more):
    """A server of ``model``; gives its address, without ``/v1``."""
    sessions = ServedSessions(offer_of(model, **more), ServiceSource({"policy": model}), record)
    server = Server(Application(sessions, TOKEN).build(), listening_socket("127.0.0.1", 0))
    server.start()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        server.close()
        model.close()


def run(awaitable):
    async def inner():
        return await awaitable

    return asyncio.run(inner())


def body(**values):
    return json.dumps({"model": "policy", **values}).encode()


def call_text(name, **arguments):
    """A call as the model writes it."""
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def tool(name, *parameters):
    properties = {each: {"type": "string"} for each in parameters}
    schema = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": schema}}
