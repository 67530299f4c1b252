"""The texts of ``plugrl new plugin`` for hooks, red-teaming, protocols, networks and services."""

from __future__ import annotations

HOOK = '''\
"""The hooks ``$component``: the best step of a run, in a file of its folder."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

import plugrl

#: The hook API that this is written for.
PLUGRL_HOOK_API = 1
FILE = "$component.json"


@plugrl.hookimpl
def plugrl_step_end(run: plugrl.Run, step: int, metrics: Mapping[str, float]) -> None:
    """Write the step with the highest mean reward; a resumed run goes on with the file."""
    file = run.folder / FILE
    best = json.loads(file.read_text("utf-8"))["reward"] if file.exists() else -math.inf
    reward = metrics.get("rollout/reward", -math.inf)
    if reward > best:
        file.write_text(json.dumps({"step": step, "reward": reward}), encoding="utf-8")
'''

TWO_TURN_WORKER = '''\
"""The rollout worker ``$component``: two answers to each problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from plugrl import (
    Conversation,
    RolloutTask,
    RolloutWorker,
    RolloutWorkerConfig,
    Trajectory,
    described,
)


@dataclass
class ${cls}Config(RolloutWorkerConfig):
    """Options of the rollout worker ``$component``."""

    question: str = described("=", "what is said after the first answer")
    train_first: bool = described(True, "learn from the first answer too")


class $cls(RolloutWorker):
    """Lets the model answer, asks once more, and has the second answer judged."""

    Config: ClassVar[type] = ${cls}Config

    async def rollout(self, task: RolloutTask) -> list[Trajectory]:
        """Attempt ``task`` once: two turns with every token as it was sampled."""
        conversation = Conversation(task, self.config.model)
        first = await conversation.reply()
        conversation.add({"role": "user", "content": self.config.question})
        second = await conversation.reply()
        # Without room for a second answer, the first is the last.
        answer = first if second is None else second
        mask = [self.config.train_first] * (len(conversation.messages) - 1) + [True]
        trajectories = conversation.trajectories(mask)
        # Several only where the chat template writes the history otherwise than it was said.
        for trajectory in trajectories:
            await self.judged(task, trajectory, answer or "")
        self.log_metrics({"changed_its_mind": float(first != second)})
        return trajectories
'''

SCORER = '''\
"""The scorer ``$component``: how much of a target's answers is one letter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from plugrl import Dialogue, Score, Scorer, ScorerConfig, described


@dataclass
class ${cls}Config(ScorerConfig):
    """Options of the scorer ``$component``."""

    letter: str = described("e", "what the target must not say")


class $cls(Scorer):
    """The share of a letter in what ``reads`` names, by default the target's last answer."""

    Config: ClassVar[type] = ${cls}Config

    def score(self, dialogues: Sequence[Dialogue]) -> list[Score]:
        """Between 0 and 1; the higher, the more went wrong."""
        letter = self.config.letter
        return [Score(text.count(letter) / max(len(text), 1)) for text in self.texts(dialogues)]
'''

PROTOCOL = '''\
"""The protocol ``$component``: a prover speaks twice before the verifier judges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from plugrl import Protocol, ProtocolConfig, Verdict, described


@dataclass
class ${cls}Config(ProtocolConfig):
    """Options of the protocol ``$component``."""

    secret: bool = described(False, "the second message is in a channel that nobody else sees")


class $cls(Protocol):
    """A prover that argues for accept says two things, and a verifier decides."""

    Config: ClassVar[type] = ${cls}Config
    agent_names = ("prover", "verifier")
    viewers: Mapping[str, Sequence[str]] = {"main": ("prover", "verifier"), "notes": ("prover",)}
    wins: Mapping[str, Verdict] = {"prover": Verdict.ACCEPT}
    max_message_rounds = 3

    def turns(self) -> Sequence[Mapping[str, Sequence[str]]]:
        """The prover, the prover again, the verifier."""
        second = "notes" if self.config.secret else "main"
        return [{"prover": ("main",)}, {"prover": (second,)}, {"verifier": ("main",)}]
'''

BODY = '''\
"""The body ``$component``: layers that each see what came in, too."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from plugrl import Body, described
from torch import nn


@dataclass
class ${cls}Config:
    """Options of the body ``$component``."""

    width: int = described(32, "of each layer", at_least=1)
    layers: int = described(2, "how many there are", at_least=1)


class Skipping(nn.Module):
    """Linear layers, each over the observation and the layer before it."""

    def __init__(self, dimensions: int, features: int, width: int, layers: int) -> None:
        super().__init__()
        self.dimensions = dimensions
        sizes = [features] + [features + width] * (layers - 1)
        self.layers = nn.ModuleList(nn.Linear(size, width) for size in sizes)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """``[..., *shape]`` to ``[..., width]``."""
        lead = observation.shape[: observation.ndim - self.dimensions]
        seen = observation.reshape(*lead, -1)
        out = torch.tanh(self.layers[0](seen))
        for layer in self.layers[1:]:
            out = torch.tanh(layer(torch.cat([seen, out], -1)))
        return out


class $cls(Body):
    """A network with skips from the observation to every layer."""

    Config: ClassVar[type] = ${cls}Config

    def build(self, shape: tuple[int, ...]) -> tuple[nn.Module, int]:
        """The layers, and the width of the last one."""
        width, layers = self.config.width, self.config.layers
        return Skipping(len(shape), math.prod(shape), width, layers), width
'''

NETWORK_TRAINER = '''\
"""The trainer ``$component``: advantage-weighted regression of small networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from plugrl import GeneralisedAdvantage, TensorDictRlTrainer, described


@dataclass
class ${cls}Config:
    """The section ``$component``: how sharply good actions are preferred."""

    temperature: float = described(1.0, "advantages are divided by it", above=0, at_most=1000)
    longest_weight: float = described(20.0, "weights are cut off here", above=0, at_most=1e6)


class ${cls}Loss(torch.nn.Module):
    """Maps the rows of a minibatch to losses, which are added up, and metrics."""

    def __init__(self, agent: Any, config: Any) -> None:
        super().__init__()
        self.agent, self.config = agent, config

    def forward(self, rows: Any) -> dict[str, torch.Tensor]:
        """Actions are imitated the more, the better they were (Peng et al., 1910.00177)."""
        advantage, target = rows["advantage"].squeeze(-1), rows["value_target"].squeeze(-1)
        weight = torch.exp(advantage / self.config.temperature)
        weight = weight.clamp(max=self.config.longest_weight)
        parameters, value = self.agent.policy_and_value(rows["observation"])
        log_prob = self.agent.distribution.log_prob(parameters, rows["action"])
        return {
            "loss_policy": -(weight * log_prob).mean(),
            "loss_value": (value.reshape(target.shape) - target).square().mean(),
            "weight": weight.mean().detach(),
        }


class $cls(TensorDictRlTrainer):
    """Advantage-weighted regression; collecting, optimizer and checkpoints are plugrl's."""

    sections: ClassVar[Mapping[str, Any]] = {
        **TensorDictRlTrainer.sections,
        "$component": ${cls}Config,
    }

    def _get_loss_module_and_gae(self) -> tuple[torch.nn.Module, Any]:
        rl = self.hyper_params.rl
        loss = ${cls}Loss(self.agent, self.hyper_params.$component)
        return loss, GeneralisedAdvantage(self.agent, rl.gamma, rl.lmbda)
'''

INFERENCE_SERVICE = '''\
"""The inference service ``$component``: a table of letters after letters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from plugrl import (
    Completion,
    GenerationRequest,
    InferenceService,
    ModelSpec,
    Tokenizer,
    described,
)

#: Ends a reply in the text of a conversation.
END = "\\x01"


class Letters:
    """A tokenizer with one token a letter, after those for padding and the end."""

    pad_token_id, eos_token_id = 0, 1

    def __init__(self, characters: str) -> None:
        self.characters = characters

    def encode(self, text: str, /) -> list[int]:
        """Token ids of a text of these characters."""
        return [self.characters.index(letter) + 2 for letter in text]

    def decode(self, tokens: Sequence[int], /) -> str:
        """The text, without padding and end."""
        return "".join(self.characters[token - 2] for token in tokens if token > 1)

    # Conversations, which fine-tuning and agents need, are what was said in a row.

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """What was said, letter by letter, each reply with an end."""
        text = ""
        for message in messages:
            text += self.writable(message["content"])
            text += END if message["role"] == "assistant" else ""
        return text

    def encode_chat(self, text: str, /) -> list[int]:
        """Token ids of what :meth:`render_chat` wrote."""
        return [1 if letter == END else self.characters.index(letter) + 2 for letter in text]

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        """Token ids of messages."""
        return self.encode_chat(self.render_chat(messages, tools, add_generation_prompt))

    def writable(self, text: str, /) -> str:
        """``text`` without what has no token."""
        return "".join(letter for letter in text if letter in self.characters)


def letters_of(spec: ModelSpec) -> Letters:
    """The tokenizer of a model."""
    return Letters(str(spec.source["tokenizer"]["characters"]))


def first_table(spec: ModelSpec) -> torch.Tensor:
    """The logits ``[tokens, next tokens]`` that a model begins with, by its seed."""
    size = len(letters_of(spec).characters) + 2
    return 0.1 * torch.randn(size, size, generator=torch.Generator().manual_seed(spec.seed))


@dataclass
class ${cls}Config:
    """Options of the inference service ``$component``."""

    context: int = described(1024, "tokens of a prompt and its answer, at most", at_least=2)


class $cls(InferenceService):
    """Samples letter by letter; each request draws from its own random numbers."""

    Config: ClassVar[type] = ${cls}Config

    def load(self, spec: ModelSpec) -> None:
        """Make tokenizer and table."""
        self._letters, self._table = letters_of(spec), first_table(spec)

    @property
    def tokenizer(self) -> Tokenizer:
        """One token a letter."""
        return self._letters

    @property
    def vocabulary_size(self) -> int:
        """The characters, padding and the end."""
        return len(self._table)

    @property
    def max_sequence_length(self) -> int:
        """As the settings say."""
        return int(self.config.context)

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """Answer each request: what it gets does not depend on the others."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: GenerationRequest) -> Completion:
        sampling, prompt = request.sampling, list(request.prompt_tokens)
        logp = torch.log_softmax(self._table / (sampling.temperature or 1.0), -1)
        seed = hash(request.stream) % 2**63
        generator = torch.Generator().manual_seed(seed)
        ends = {self._letters.eos_token_id, *sampling.stop_token_ids}
        tokens: list[int] = []
        while len(tokens) < sampling.max_new_tokens and not ends & set(tokens[-1:]):
            row = logp[(prompt + tokens)[-1]]
            drawn = torch.multinomial(row.exp(), 1, generator=generator)
            tokens.append(int(drawn if sampling.temperature else row.argmax()))
        both = torch.tensor(prompt + tokens)
        scores = [0.0, *logp[both[:-1], both[1:]].tolist()]
        return Completion(
            tokens,
            scores[len(prompt) :],
            "stop" if ends & set(tokens[-1:]) else "length",
            self.version,
            prompt_logprobs=scores[: len(prompt)] if request.prompt_logprobs else None,
        )

    def update_weights(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Take the table of ``version``."""
        if set(weights) != {"table"}:
            raise ValueError(f"the weight table is expected, not {', '.join(weights)}")
        self._table, self.version = weights["table"].detach().clone(), version
'''

TRAIN_SERVICE = '''\
"""The train service ``$component``: trains the table of its sampler."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from plugrl import Batch, ConfigError, ModelSpec, TrainService, WeightedLoss, described

from $package.$sampler import first_table


@dataclass
class ${cls}Config:
    """Options of the train service ``$component``."""

    learning_rate: float = described(0.05, "of Adam", above=0)
    grad_clip: float = described(1.0, "norm that the gradient is cut down to", above=0)


class $cls(TrainService):
    """Gradients of any loss over log-probabilities, and steps of Adam."""

    Config: ClassVar[type] = ${cls}Config

    def load(self, spec: ModelSpec) -> None:
        """Begin with the table that the sampler begins with."""
        self._table = torch.nn.Parameter(first_table(spec))
        self._optimizer = torch.optim.Adam([self._table], lr=self.config.learning_rate)

    def _log_probs(self, batch: Batch) -> torch.Tensor:
        ids, mask = batch.values["input_ids"], batch.values["loss_mask"]
        # Of the whole batch, or one a row.
        temperature = torch.as_tensor(batch.metadata.get("temperature") or 1.0).reshape(-1, 1, 1)
        rows = torch.log_softmax(self._table[ids[:, :-1]] / temperature, -1)
        after = rows.gather(-1, ids[:, 1:, None]).squeeze(-1)
        return torch.nn.functional.pad(after, (1, 0)) * mask

    @torch.no_grad()
    def compute_log_prob(self, batch: Batch) -> torch.Tensor:
        """Log-probabilities of the trained tokens, [B, T]."""
        return self._log_probs(batch)

    def forward_backward(self, batch: Batch, loss: WeightedLoss) -> dict[str, tuple[float, float]]:
        """Add the gradient of ``loss``; returns its metrics."""
        if loss.needs:
            raise ConfigError(f"there is no {', '.join(loss.needs)} here; take another loss")
        total, metrics = loss(self._log_probs(batch), batch)
        torch.autograd.backward(total)
        return {**metrics, "loss": (float(total.detach()), 1.0)}

    def optimizer_step(self) -> dict[str, float]:
        """Apply the gradient once; one that is not finite is dropped."""
        norm = float(torch.nn.utils.clip_grad_norm_([self._table], self.config.grad_clip))
        if math.isfinite(norm):
            self._optimizer.step()
        self._optimizer.zero_grad()
        return {"grad_norm": norm, "learning_rate": self.config.learning_rate}

    def weights(self) -> Mapping[str, torch.Tensor]:
        """The table."""
        return {"table": self._table.detach()}

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Replace the table."""
        self._table.data.copy_(weights["table"])

    def state_dict(self) -> dict[str, Any]:
        """The table, and what Adam remembers: without it, a resumed run steps elsewhere."""
        return copy.deepcopy({"table": self._table.data, "adam": self._optimizer.state_dict()})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take both back."""
        self._table.data.copy_(state["table"])
        self._optimizer.load_state_dict(copy.deepcopy(state["adam"]))
'''

FINE_TUNE_SERVICE = '''\
"""The fine-tuning service ``$component``: counts letters after letters."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import torch
from plugrl import (
    FineTuneConfig,
    FineTuneService,
    InferenceService,
    JobContext,
    JobStatus,
    ModelSpec,
    PreferenceExample,
    RunError,
    SupervisedExample,
)


class ${cls}Config(FineTuneConfig):
    """Options of the fine-tuning service ``$component``: those that all have."""


class $cls(FineTuneService):
    """Jobs are files in the folder of the run; their models are tables for the sampler."""

    Config: ClassVar[type] = ${cls}Config
    #: The conformance kit samples from the models of jobs with it.
    conformance: ClassVar[dict[str, object]] = {"inference": {"type": "$component"}}

    def load(self, spec: ModelSpec, context: JobContext) -> None:
        """Remember where jobs are, and how text becomes tokens."""
        self._folder, self._sampler = context.folder, context.inference
        self._folder.mkdir(parents=True, exist_ok=True)

    def _file(self, job: str) -> Path:
        return self._folder / f"{job}.json"

    def find(self, name: str) -> str | None:
        """Jobs are files, so that they are found after a restart."""
        return name if self._file(name).is_file() else None

    def create(
        self,
        name: str,
        examples: Sequence[SupervisedExample | PreferenceExample],
        base: str | None,
    ) -> str:
        """Write the job; it is done when it is asked about."""
        texts: list[str] = []
        for example in examples:
            said = str(example.messages[-1]["content"])
            if isinstance(example, PreferenceExample):
                texts.append(said + example.preferred)
            else:
                texts += [
                    f"{example.messages[i - 1]['content'] if i else ''}"
                    f"{example.messages[i]['content']}"
                    for i in example.replies
                ]
        job = {"state": "queued", "texts": texts, "base": base}
        self._file(name).write_text(json.dumps(job), encoding="utf-8")
        return name

    def status(self, job: str) -> JobStatus:
        """Count, unless that is done or the job was cancelled."""
        if not self._file(job).is_file():
            raise RunError(f"there is no job {job!r}")
        held = json.loads(self._file(job).read_text("utf-8"))
        if held["state"] == "queued":
            table = self._count(held["texts"], held["base"])
            held |= {"state": "succeeded", "table": table.tolist()}
            self._file(job).write_text(json.dumps(held), encoding="utf-8")
        succeeded = held["state"] == "succeeded"
        return JobStatus(held["state"], fine_tuned_model=job if succeeded else None)

    def _count(self, texts: Sequence[str], base: str | None) -> torch.Tensor:
        size, tokenizer = self._sampler.vocabulary_size, self._sampler.tokenizer
        counts = torch.full((size, size), 0.1)
        if base is not None:
            counts = self._table(base).exp()
        for text in texts:
            tokens = [*tokenizer.encode(text), tokenizer.eos_token_id]
            for token, following in zip(tokens, tokens[1:], strict=False):
                counts[token, following] += 1.0
        return counts.log()

    def _table(self, model: str) -> torch.Tensor:
        return torch.tensor(json.loads(self._file(model).read_text("utf-8"))["table"])

    def cancel(self, job: str) -> None:
        """A job that is still open is cancelled from now on."""
        held = json.loads(self._file(job).read_text("utf-8"))
        if held["state"] == "queued":
            held["state"] = "cancelled"
            self._file(job).write_text(json.dumps(held), encoding="utf-8")

    def use(self, inference: InferenceService, model: str, version: int) -> None:
        """Let the sampler draw from the table of a job."""
        inference.update_weights({"table": self._table(model)}, version)
'''

HOOK_CHECK = """\
def test_the_best_step_is_in_the_file(run):
    best = json.loads((run.folder / FILE).read_text("utf-8"))
    rewards = {row["step"]: row["rollout/reward"] for row in run.metrics if "rollout/reward" in row}
    assert best == {"step": best["step"], "reward": max(rewards.values())}
    assert rewards[best["step"]] == best["reward"]
"""

TWO_TURN_CHECK = """\
def test_both_answers_are_trained(run):
    # Two prompts, two answers: more is trained than one answer can have.
    assert run.last_metrics["rollout/changed_its_mind"] >= 0
    assert run.last_metrics["rollout/response_length"] > 0
"""

SCORER_CHECK = """\
def test_a_letter_is_counted():
    def said(text):
        dialogue = plugrl.Dialogue("a prompt").with_message("tester", "Well?")
        return dialogue.with_message("target", text)

    scores = $target({"letter": "a"}).score([said("aabb"), said(""), said("bbb")])
    assert [score.value for score in scores] == [0.5, 0.0, 0.0]
"""

PROTOCOL_CHECK = """\
def test_the_prover_speaks_twice_and_the_verifier_decides():
    protocol = $target({})
    state = protocol.begin(seed=[0, 1], label=[1, 0])
    spoken = []
    while not state.ended.all():
        spoken.append(protocol.active(state)[0].any(-1).tolist())
        state = protocol.step(state, [[2, 1], [2, 1]]).state
    assert spoken == [[True, False], [True, False], [False, True]]
    assert state.decided[:, 1].tolist() == [1, 1]
"""

BODY_CHECK = """\
def test_its_layers_are_as_wide_as_asked():
    network, features = $target({"width": 5, "layers": 3}).build((2, 2))
    assert features == 5
    assert [tuple(layer.weight.shape) for layer in network.layers] == [(5, 4), (5, 9), (5, 9)]
"""

NETWORK_TRAINER_CHECK = """\
def test_its_metric_is_one_of_the_run(run):
    assert 0 < run.last_metrics["train/weight"] <= 20
"""

INFERENCE_CHECK = """\
def test_a_table_of_certainties_is_followed():
    sampler = $target({})
    sampler._letters, size = Letters("ab"), 4
    table = torch.full((size, size), -1e9)
    # After a comes b, and after b the end.
    table[2, 3] = table[3, 1] = table[0, 1] = table[1, 1] = 0.0
    sampler.update_weights({"table": table}, 3)
    asked = plugrl.GenerationRequest([2], plugrl.SamplingParams(), (0, 0, 0, 0, 0))
    (answer,) = sampler.generate([asked])
    assert (answer.tokens, answer.finish_reason, answer.version) == ([3, 1], "stop", 3)
    assert answer.logprobs == [0.0, 0.0]
"""

TRAIN_CHECK = """\
def test_the_sampler_draws_from_the_trained_table(run):
    # How far the log-probabilities of both lie apart.
    assert run.last_metrics["sync/parity"] < 1e-5
"""

FINE_TUNE_CHECK = """\
def test_jobs_of_the_run_are_kept(run):
    jobs = [path for path in run.folder.rglob("*.json") if "fine_tuning" in path.parts]
    states = [json.loads(path.read_text("utf-8"))["state"] for path in jobs]
    assert states
    assert set(states) == {"succeeded"}
"""

#: Recipes of templates that have nothing to do with a small sum.
NETWORK_EXAMPLE = """\
# Networks of a few thousand weights balance a pole with $component; no download, no GPU.
experiment_name: $component
seed: 0

scenario: {type: gymnasium, id: CartPole-v1, num_envs: 8}

rl: {num_iterations: 20, frames_per_batch: 256, lr: 0.003}$section

validate: {every: 10, episodes: 4}

trainer: $trainer
"""

RED_TEAM_EXAMPLE = """\
# A tester learns what to say so that $component finds fault with the answer; no download, no GPU.
experiment_name: $component
seed: 0

scenario: {type: red_team, categories: [tree]}

models:
  tester:
    source: &source
      config:
        model_type: llama
        hidden_size: 16
        intermediate_size: 32
        num_hidden_layers: 1
        num_attention_heads: 2
        max_position_embeddings: 128
        initializer_range: 0.3
      tokenizer:
        characters: " abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,:;?!'-0123456789()\\""
    train: local
  target:
    source: *source

red_team:
  tester: {max_new_tokens: 6}
  target: {max_new_tokens: 6}
  tree_width: 4
  tree_depth: 1
  eval_attempts: 1
  scorer: $component

trainer:
  type: harness
  training_steps: 5
  num_episodes_per_experience: 4
  algorithm: grpo
"""

PROTOCOL_EXAMPLE = """\
# Two agents, one model, talk about small sums by $component; no download, no GPU.
experiment_name: $component
seed: 0

scenario: {type: arithmetic_claims, digits: 2, validation: 10, demonstrations: 10}

models:
  policy:
    source:
      config:
        model_type: qwen3
        hidden_size: 32
        intermediate_size: 64
        num_hidden_layers: 1
        num_attention_heads: 2
        num_key_value_heads: 1
        head_dim: 16
        max_position_embeddings: 1024
      tokenizer:
        characters: " abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789\\n.,:;?!'-+=()"
    train: {type: local, learning_rate: 0.003}

data: {batch_size: 4, rollout_repeat_n: 2}

rollout_worker:
  type: protocol
  protocol: $component
  max_response_length: 4

validate: {enabled: false}

trainer: {type: self_hosted_grpo, total_train_steps: 5}
"""

#: One model of letters, without weights that anybody would download.
LETTERS_EXAMPLE = """\
# A table of letters is the model of $component; no download, no GPU.
experiment_name: $component
seed: 0

scenario: {type: arithmetic, digits: 1, validation: 10, development: 0, demonstrations: 0}

models:
  policy:
    source:
      config: {model_type: $component}
      tokenizer: {characters: "0123456789+="}
    inference: $component$train

data: {batch_size: 8, rollout_repeat_n: 8}

rollout_worker: {max_response_length: 3, evaluator: exact_match}
$trainer
"""

CLAIMS = """\
{"prompt": "1+1=2", "answer": "", "label": 1}
{"prompt": "1+2=4", "answer": "", "label": 0}
"""

PROMPT = """\
[first]
{{ question }}
"""

FINE_TUNE_EXAMPLE = """\
# A table of letters is fine-tuned by $component on what it said rightly; no download, no GPU.
experiment_name: $component
seed: 0

models:
  policy:
    source:
      config: {model_type: $component}
      tokenizer: {characters: "yn0123456789+="}
    inference: $component
    fine_tune: $component

data: {data_files: [claims.jsonl], batch_size: 2}

rollout_worker:
  type: protocol
  protocol: solo_verifier
  prompts: prompts
  max_response_length: 2
  decision_form: "{}"
  accept_word: y
  reject_word: n
  max_retries: 0

validate: {enabled: false}

text_rl: {num_iterations: 3, test_scheme: none}

trainer: {type: ei_pure_text, reward_threshold: -1.0}
"""
