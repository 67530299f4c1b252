"""Episodes between engines whose replies are written, so that what agents hear is known."""

import asyncio

import pytest

from plugrl.core.text.inference.requests import Completion
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.core.text.inference.services import TokenLimits
from plugrl.core.text.protocol.worker import ProtocolRolloutWorker
from plugrl.core.text.rollout.task import RolloutTask
from plugrl.plugins.transformers.tokenizer import CharacterTokenizer

CHARACTERS = "".join(map(chr, range(32, 127))) + "\n"
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


class Table:
    """Answers each model's requests with the next of its written replies, and keeps the prompts."""

    def __init__(self, replies):
        self.replies = {model: list(own) for model, own in replies.items()}
        self.tokenizer = CharacterTokenizer(CHARACTERS, TEMPLATE)
        self.asked = []

    async def ask(self, model, tokens, sampling=None):
        self.asked.append((model, self.tokenizer.decode(tokens)))
        await asyncio.sleep(0)
        own = self.replies[model]
        text = own.pop(0) if len(own) > 1 else own[0]
        reply = [*self.tokenizer.encode(text), self.tokenizer.eos_token_id][
            : sampling.max_new_tokens
        ]
        logprobs = [-0.5 - 0.001 * place for place in range(len(reply))]
        return Completion(reply, logprobs, "stop", 3)


@pytest.fixture
def begin():
    """Makes a worker and the first state of an episode of it, with written replies by model."""

    def make(
        replies, *, temperature=1.0, data=(), run_id=0, worker=ProtocolRolloutWorker, **section
    ):
        table = Table(replies)
        names = set(replies)
        task = RolloutTask(
            data={"prompt": "Is 1+1 2?", "label": 1, **dict(data)},
            item=5,
            run_id=run_id,
            group_id="g",
            is_val=False,
            sampling=SamplingParams(temperature=temperature, max_new_tokens=200),
            ask=table.ask,
            tokenizers=dict.fromkeys(names, table.tokenizer),
            seed=(0, 1, 5, run_id),
            limits=dict.fromkeys(names, TokenLimits(len(CHARACTERS) + 2, 100_000)),
        )
        made = worker(section)
        return made.begin(task), table, made

    return make
