"""An engine whose replies are written, so that what agents meet is known."""

import pytest

from plugrl.core.text.data.loader import Prompt
from plugrl.core.text.evaluate.evaluator import EvaluationRunResult, Evaluator
from plugrl.core.text.inference.requests import Completion
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.core.text.inference.services import InferenceService
from plugrl.core.text.rollout.lockstep import LockstepRollouts
from plugrl.plugins.transformers.tokenizer import CharacterTokenizer

CHARACTERS = "".join(map(chr, range(32, 127))) + "\n"
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


class Scripted(InferenceService):
    """Answers the replies of a list, by the turn that asks; ``prompts`` keeps what it was asked."""

    vocabulary_size = len(CHARACTERS) + 2

    def __init__(self, replies, template=TEMPLATE, context=10_000):
        super().__init__()
        self.tokenizer = CharacterTokenizer(CHARACTERS, template)
        self.max_sequence_length = context
        self.replies = replies
        self.prompts = []

    tokenizer = None
    max_sequence_length = 0

    def load(self, spec):
        raise AssertionError("it is made with its replies")

    def generate(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        self.prompts.append(list(request.prompt_tokens))
        written = self.replies[request.stream[4]]
        tokens = [*self.tokenizer.encode(written), self.tokenizer.eos_token_id]
        limit = request.sampling.max_new_tokens
        reason = "stop" if len(tokens) <= limit else "length"
        tokens = tokens[:limit]
        # Each token has a log-probability of its own, so that a shift would show.
        start = len(request.prompt_tokens)
        return Completion(tokens, [-0.001 * (start + i) for i in range(len(tokens))], reason, 3)

    def update_weights(self, weights, version):
        raise AssertionError("it has no weights")


class Seen(Evaluator):
    """Rewards every answer with 0.5 and keeps what it was shown."""

    def __init__(self, config=None):
        super().__init__(config)
        self.targets = []

    def evaluate(self, data, evaluation_target):
        self.targets.append(evaluation_target)
        return EvaluationRunResult(0.5, metrics={"seen": 1.0})


@pytest.fixture
def scripted():
    """Makes such an engine."""
    return Scripted


@pytest.fixture
def attempt():
    """Lets a worker attempt one problem with written replies: trajectories and the engine."""

    def run(worker, replies, prompt="What?", *, engine=None, is_val=False, **data):
        service = engine or Scripted(replies)
        if worker.evaluator is None:
            worker.evaluator = Seen()
        rollouts = LockstepRollouts(worker, {"policy": service}, seed=5)
        problem = Prompt({"prompt": prompt, **data}, 0, 0, "0/0", 0)
        sampling = SamplingParams(max_new_tokens=500)
        return rollouts.collect([problem], 1, sampling, is_val=is_val), service

    return run


@pytest.fixture
def workspace(tmp_path):
    """Writes the files of an agent's folder and gives the path of its configuration."""

    def write(config, **modules):
        for name, text in modules.items():
            (tmp_path / f"{name}.py").write_text(text)
        path = tmp_path / "agent_config.yaml"
        path.write_text(config)
        return str(path)

    return write
