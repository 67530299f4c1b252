"""Components that keep the contract of their kind but for one thing, which its docstring names."""

import csv
import itertools
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from torch import nn

import plugrl
from plugrl.core.tensordict.environment.vector_environment import AgentStep, VectorEnvironment
from plugrl.core.text.dialogue.environment import DialogueEnvironment
from plugrl.core.text.jobs.service import TrainedJobs
from plugrl.plugins.transformers.inference_service import TransformersInferenceService
from plugrl.plugins.transformers.train_service import LocalTrainService
from plugrl.trainers.red_team.grpo import HarnessGrpo

counter = itertools.count()


class Options:
    """No dataclass."""


# Parsers


class GoodParser(plugrl.Parser):
    """Reads a call between brackets."""

    conformance = {"text": "so [add]", "calls": ["add"], "content": "so "}

    def parse(self, text):
        said, _, rest = text.partition("[")
        name, end, _ = rest.partition("]")
        calls = [plugrl.ToolCall(name)] if end else []
        return plugrl.ParsedReply(content=said, calls=calls)


class DeafParser(GoodParser):
    """Finds no call."""

    def parse(self, text):
        return plugrl.ParsedReply(content=text)


class RaisingParser(GoodParser):
    """Raises where a bracket is not closed."""

    def parse(self, text):
        if "[" in text and "]" not in text:
            raise ValueError("unclosed")
        return super().parse(text)


class SwallowingParser(GoodParser):
    """Loses what is said without a call."""

    def parse(self, text):
        found = super().parse(text)
        return found if found.calls else plugrl.ParsedReply()


class RememberingParser(GoodParser):
    """Says how many replies it has read."""

    read = 0

    def parse(self, text):
        self.read += 1
        return replace(super().parse(text), reasoning=str(self.read // 2))


class SlowParser(GoodParser):
    """Takes longer the longer a reply is, by its square."""

    def parse(self, text):
        until = time.process_time() + (len(text) / 13000) ** 2
        while time.process_time() < until:
            pass
        return super().parse(text)


class SilentParser(GoodParser):
    pass


class OptionsParser(GoodParser):
    """Its options are no dataclass."""

    Config = Options


if "pytest" in sys.modules:

    class OnlyHereParser(GoodParser):
        """Exists in the process of the tests alone."""


# Data maps


def good_map(row):
    """A row with a question."""
    if not row["answer"]:
        return None
    return {"prompt": row["question"], "answer": row["answer"], "tags": ["x"]}


good_map.conformance = {"dropped": {"question": "1+1=", "answer": ""}}


def _map(change):
    def decorate(function):
        function.conformance = good_map.conformance
        return function

    return decorate


@_map("prompt")
def promptless_map(row):
    """Forgets the prompt."""
    made = good_map(row)
    return made and {"answer": made["answer"]}


@_map("row")
def changing_map(row):
    """Writes into the row that it is given."""
    row["seen"] = True
    return good_map(row)


@_map("equal")
def moody_map(row):
    """Another answer each time."""
    made = good_map(row)
    return made and {**made, "answer": next(counter)}


TAGS = ["x"]


@_map("share")
def sharing_map(row):
    """Gives all problems one list."""
    made = good_map(row)
    return made and {**made, "tags": TAGS}


@_map("dropped")
def keeping_map(row):
    """Keeps what it should drop."""
    return {"prompt": row["question"], "answer": row["answer"]}


@_map("row")
def textual_map(row):
    """Gives text in place of a row."""
    return row["question"]


def configured_map(row):
    """Wants a section, which no data map has."""
    return good_map(row)


configured_map.conformance = {**good_map.conformance, "config": {"a": 1}}

# Advantages


def good_advantage(rewards, group, run, valid, batch, config):
    """Rewards against the mean of the valid ones of their group."""
    same = (group[:, None] == group[None, :]) & valid[None, :]
    mean = (same * rewards).sum(1) / same.sum(1).clamp_min(1)
    return torch.where(valid, rewards - mean, 0.0)


def nan_advantage(rewards, group, run, valid, batch, config):
    """Divides by a deviation that may be 0."""
    found = good_advantage(rewards, group, run, valid, batch, config)
    return found / found[valid].abs().amax()


def single_advantage(rewards, group, run, valid, batch, config):
    """Has no number for one trajectory alone."""
    if len(rewards) == 1:
        return rewards.sqrt() * float("nan")
    return good_advantage(rewards, group, run, valid, batch, config)


def counting_advantage(rewards, group, run, valid, batch, config):
    """Counts invalid trajectories."""
    return good_advantage(rewards, group, run, torch.ones_like(valid), batch, config)


def placed_advantage(rewards, group, run, valid, batch, config):
    """Compares with the first row."""
    return rewards - rewards[0]


def moody_advantage(rewards, group, run, valid, batch, config):
    """Another number each time."""
    return good_advantage(rewards, group, run, valid, batch, config) + next(counter) * 1e-3


def writing_advantage(rewards, group, run, valid, batch, config):
    """Writes into the batch."""
    batch.values["old_log_probs"] += 1
    return good_advantage(rewards, group, run, valid, batch, config)


def padded_advantage(rewards, group, run, valid, batch, config):
    """Divides by the width of the batch."""
    found = good_advantage(rewards, group, run, valid, batch, config)
    return found / batch.values["loss_mask"].shape[1]


def zero_advantage(rewards, group, run, valid, batch, config):
    """Learns nothing."""
    return torch.zeros_like(rewards)


# Losses


def good_loss(logp, batch, config):
    """REINFORCE."""
    mask = batch.values["loss_mask"]
    return -batch.values["advantages"] * logp, {"nll": plugrl.masked_sum(-logp, mask)}


def nan_loss(logp, batch, config):
    """Has no number for an invalid row."""
    per_token, metrics = good_loss(logp, batch, config)
    return torch.where(batch.metadata["valid"][:, None], per_token, logp * math.nan), metrics


def leaking_loss(logp, batch, config):
    """Reads tokens that are not trained."""
    per_token, metrics = good_loss(logp, batch, config)
    return per_token + logp.cumsum(1), metrics


def unmasked_loss(logp, batch, config):
    """Its metric counts tokens that are not trained."""
    per_token, _ = good_loss(logp, batch, config)
    everything = torch.ones_like(logp)
    return per_token, {"kl": plugrl.masked_sum(batch.values["ref_log_probs"], everything)}


def mixing_loss(logp, batch, config):
    """Divides by the rows that it happens to see."""
    per_token, metrics = good_loss(logp, batch, config)
    return per_token / len(batch), metrics


def moody_loss(logp, batch, config):
    """Another number each time."""
    per_token, metrics = good_loss(logp, batch, config)
    return per_token * (1 + next(counter) * 1e-2), metrics


# Bodies


class GoodNetwork(nn.Module):
    def __init__(self, inputs, width, dimensions):
        super().__init__()
        self.layer, self.dimensions = nn.Linear(inputs, width), dimensions

    def forward(self, x):
        flat = x.reshape(*x.shape[: x.ndim - self.dimensions], -1)
        return torch.tanh(self.layer(flat))


class GoodBody(plugrl.Body):
    """A layer."""

    network = GoodNetwork
    conformance = {"unfit": ()}

    def build(self, shape):
        if not shape:
            raise plugrl.ConfigError("nothing is seen")
        return self.network(math.prod(shape), 8, len(shape)), 8


class WideBody(GoodBody):
    """Says another number of features."""

    def build(self, shape):
        return super().build(shape)[0], 9


class FlatBody(GoodBody):
    """Takes one leading dimension alone."""

    class network(GoodNetwork):
        def forward(self, x):
            return torch.tanh(self.layer(x.flatten(1)))


class NormBody(GoodBody):
    """Mixes the rows of a batch."""

    class network(GoodNetwork):
        def forward(self, x):
            out = super().forward(x)
            flat = out.reshape(-1, out.shape[-1])
            return out - flat.mean(0)


class DropBody(GoodBody):
    """Drops features at random."""

    class network(GoodNetwork):
        def forward(self, x):
            return nn.functional.dropout(super().forward(x), 0.5, True)


class EntropyBody(GoodBody):
    """Draws its weights from the clock's numbers, whatever the seed."""

    class network(GoodNetwork):
        def __init__(self, *args):
            super().__init__(*args)
            generator = torch.Generator().manual_seed(next(counter))
            with torch.no_grad():
                self.layer.weight.normal_(generator=generator)


class IdleBody(GoodBody):
    """Has a layer that nothing reads."""

    class network(GoodNetwork):
        def __init__(self, *args):
            super().__init__(*args)
            self.idle = nn.Linear(1, 1)


class HidingBody(GoodBody):
    """Keeps random numbers where no state has them."""

    class network(GoodNetwork):
        def __init__(self, *args):
            super().__init__(*args)
            self.noise = torch.randn(8)

        def forward(self, x):
            return super().forward(x) + self.noise


class WritingBody(GoodBody):
    """Scales observations in place."""

    class network(GoodNetwork):
        def forward(self, x):
            return super().forward(x.mul_(0.5) * 2)


class TakingBody(GoodBody):
    """Takes what it cannot read."""

    def build(self, shape):
        return self.network(math.prod(shape), 8, len(shape)), 8


# Protocols


class GoodProtocol(plugrl.Protocol):
    """A prover, then a verifier, twice."""

    agent_names = ("prover", "verifier")
    viewers = {"main": ("prover", "verifier")}
    wins = {"prover": plugrl.Verdict.ACCEPT}
    max_message_rounds = 4

    def turns(self):
        return [{"prover": ("main",)}, {"verifier": ("main",)}]


class MuteProtocol(GoodProtocol):
    """Nobody speaks in the third round."""

    def speaks(self, round, seed):
        found = super().speaks(round, seed).copy()
        found[round == 2] = False
        return found


class PayingProtocol(GoodProtocol):
    """Pays after the end."""

    def rewards(self, before, after, signals=None):
        return super().rewards(before, after, signals) + before.ended[:, None]


class WorthlessProtocol(GoodProtocol):
    """Is worth nothing to anybody."""

    def rewards(self, before, after, signals=None):
        return 0 * super().rewards(before, after, signals)


class InvertedProtocol(GoodProtocol):
    """Pays for wrong verdicts."""

    def rewards(self, before, after, signals=None):
        return -super().rewards(before, after, signals)


class MixingProtocol(GoodProtocol):
    """Compares episodes with one another."""

    def rewards(self, before, after, signals=None):
        found = super().rewards(before, after, signals)
        return np.where(before.ended[:, None], 0.0, found - 0.1 * found.mean())


class MoodyProtocol(GoodProtocol):
    """Other rewards each time."""

    def rewards(self, before, after, signals=None):
        found = super().rewards(before, after, signals)
        return np.where(before.ended[:, None], 0.0, found + next(counter) * 1e-6)


class ChangingProtocol(GoodProtocol):
    """Counts rounds in the state that it is given."""

    def step(self, state, decisions, signals=None):
        outcome = super().step(state, decisions, signals)
        state.round[~state.ended] += 1
        return outcome


class TolerantProtocol(GoodProtocol):
    """Takes decisions that are none."""

    def step(self, state, decisions, signals=None):
        return super().step(state, np.clip(decisions, 0, 2), signals)


class FlatProtocol(GoodProtocol):
    """Its mask of decisions has no axis of agents."""

    def deciding(self, state):
        found = super().deciding(state)
        return found if sys._getframe(1).f_code.co_name == "step" else found.any(-1)


# Rollout workers


class GoodWorker(plugrl.RolloutWorker):
    """Asks once."""

    async def rollout(self, task):
        prompt = task.prompt_tokens("policy")
        answer = await task.ask("policy", prompt, task.sampling)
        made = self.made(task, prompt, answer)
        return await self.judged(task, made, task.tokenizers["policy"].decode(answer.tokens))

    def made(self, task, prompt, answer):
        return plugrl.trajectory_of(task, "policy", prompt, answer)


class UntrainedWorker(GoodWorker):
    """Trains nothing."""

    def made(self, task, prompt, answer):
        made = super().made(task, prompt, answer)
        made.loss_mask = [0] * len(made.tokens)
        return made


class StrangerWorker(GoodWorker):
    """Does not say what is held out."""

    def made(self, task, prompt, answer):
        made = super().made(task, prompt, answer)
        made.is_val = False
        return made


class RetokenisingWorker(GoodWorker):
    """Makes tokens of the text of an answer, which loses its end."""

    def made(self, task, prompt, answer):
        tokens = task.tokenizers["policy"].encode(task.tokenizers["policy"].decode(answer.tokens))
        kept = len(tokens)
        cut = replace(answer, tokens=tokens, logprobs=answer.logprobs[:kept])
        return plugrl.trajectory_of(task, "policy", prompt, cut)


class ShiftedWorker(GoodWorker):
    """Gives each token the log-probability of the one before."""

    def made(self, task, prompt, answer):
        made = super().made(task, prompt, answer)
        made.logprobs = [0.0, *made.logprobs[:-1]]
        return made


class StaleWorker(GoodWorker):
    """Names the first version, whoever sampled."""

    def made(self, task, prompt, answer):
        made = super().made(task, prompt, answer)
        made.versions = [min(version, 0) for version in made.versions]
        return made


class MoodyWorker(GoodWorker):
    """Another reward each time."""

    async def rollout(self, task):
        made = await super().rollout(task)
        made.reward += next(counter) * 1e-6
        return made


class RememberingWorker(GoodWorker):
    """Rewards the later attempts less."""

    attempts = 0

    async def rollout(self, task):
        made = await super().rollout(task)
        self.attempts += 1
        made.reward /= self.attempts
        return made


class HidingWorker(GoodWorker):
    """Counts an answer that was not judged as a bad one."""

    async def rollout(self, task):
        made = await super().rollout(task)
        made.valid, made.failure = True, ""
        return made


class DemandingWorker(GoodWorker):
    """Raises where an answer was cut off."""

    def made(self, task, prompt, answer):
        if answer.finish_reason == "length":
            raise ValueError("too long")
        return super().made(task, prompt, answer)


# Scenarios


class GoodScenario(plugrl.Scenario):
    """Sums."""

    def build(self, seed):
        items = [{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(10)]
        random.Random(seed).shuffle(items)
        return plugrl.ScenarioInstance(
            name="sums", datasets={"train": items[:8], "validation": items[8:]}
        )


class EmptyScenario(GoodScenario):
    """Has nothing to train on."""

    def build(self, seed):
        return plugrl.ScenarioInstance(name="nothing")


class MoodyScenario(GoodScenario):
    """Draws numbers that others draw from too."""

    def build(self, seed):
        items = [{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(10)]
        random.shuffle(items)
        return plugrl.ScenarioInstance(name="sums", datasets={"train": items})


class SeedingScenario(GoodScenario):
    """Seeds the random numbers that all share."""

    def build(self, seed):
        random.seed(seed)
        return super().build(seed)


class NamelessScenario(GoodScenario):
    """Its problems are texts."""

    def build(self, seed):
        return plugrl.ScenarioInstance(name="sums", datasets={"train": ["1+1="]})


class LeakingScenario(GoodScenario):
    """Trains on what it holds out."""

    def build(self, seed):
        built = super().build(seed)
        whole = [*built.datasets["train"], *built.datasets["validation"]]
        return replace(built, datasets={**built.datasets, "train": whole})


class PreviewScenario(GoodScenario):
    """Its preview has another split."""

    def preview(self, seed):
        return {"train": [{"prompt": "1+1=", "answer": "2"}]}


class Walk(VectorEnvironment):
    """Walkers on a line."""

    num_envs = 2

    def __init__(self):
        from gymnasium.spaces import Box, Discrete

        space = Box(-np.inf, np.inf, (1,), np.float32)
        self.spaces = {"agent": plugrl.AgentSpaces(space, Discrete(2))}

    def reset(self, seed=None):
        self.random = np.random.default_rng(seed)
        self.x = np.zeros((self.num_envs, 1), np.float32)
        return {"agent": self.x.copy()}

    def step(self, actions):
        noise = self.random.normal(size=self.x.shape).astype(np.float32)
        self.x = self.x + 2 * actions["agent"][:, None].astype(np.float32) - 1 + noise
        over = np.zeros(self.num_envs, bool)
        return {"agent": AgentStep(self.x.copy(), -np.abs(self.x[:, 0]), over, over)}

    def state_dict(self):
        return {"x": self.x.copy(), "random": self.random.bit_generator.state}

    def load_state_dict(self, state):
        self.x = state["x"].copy()
        self.random.bit_generator.state = state["random"]


class WalkScenario(plugrl.Scenario):
    """Walkers on a line."""

    walk = Walk

    def build(self, seed):
        return plugrl.ScenarioInstance(name="walk", make_environment=lambda split: self.walk())


class ColumnScenario(WalkScenario):
    """Its rewards are columns."""

    class walk(Walk):
        def step(self, actions):
            got = super().step(actions)["agent"]
            return {"agent": replace(got, reward=got.reward[:, None])}


class UnseededScenario(WalkScenario):
    """Its environments do not listen to seeds."""

    class walk(Walk):
        def reset(self, seed=None):
            return super().reset(next(counter))


class ForgettingScenario(WalkScenario):
    """The state of its environments lacks their random numbers."""

    class walk(Walk):
        def state_dict(self):
            return {"x": self.x.copy()}

        def load_state_dict(self, state):
            self.x = state["x"].copy()


# Trackers


class GoodTracker(plugrl.Tracker):
    """Rows in a file of the run folder."""

    name = "stored.csv"

    @staticmethod
    def read(folder):
        with (folder / "stored.csv").open(encoding="utf-8", newline="") as stream:
            return list(csv.reader(stream))

    def start(self, run):
        self.file = run.folder / self.name
        rows = []
        if run.resumed and self.file.exists():
            rows = [row for row in self.read(run.folder) if int(row[0]) <= run.step]
        self.file.write_text("", encoding="utf-8")
        self._write(rows)
        return int(rows[-1][0]) if rows else -1

    def log(self, step, metrics):
        self._write([(step, name, value) for name, value in metrics.items()])

    def _write(self, rows):
        with self.file.open("a", encoding="utf-8", newline="") as stream:
            csv.writer(stream).writerows(rows)


GoodTracker.conformance = {"read": GoodTracker.read}


class LyingTracker(GoodTracker):
    """Says of a fresh run that a step is stored."""

    def start(self, run):
        return max(super().start(run), 0)


class PickyTracker(GoodTracker):
    """Knows no failed runs, and no numbers that are not finite."""

    def log(self, step, metrics):
        assert all(map(math.isfinite, metrics.values()))
        super().log(step, metrics)

    def finish(self, outcome):
        assert outcome in ("done", "interrupted")


class AsciiTracker(GoodTracker):
    """Writes samples in a narrow encoding."""

    def sample(self, name, record):
        (self.file.parent / "samples.txt").write_text(str(record), encoding="ascii")


class ChangingTracker(GoodTracker):
    """Takes the metrics out of what it is given."""

    def log(self, step, metrics):
        super().log(step, metrics)
        metrics.clear()


class ThreadTracker(GoodTracker):
    """Works in the main thread alone."""

    def log(self, step, metrics):
        import threading

        assert threading.current_thread() is threading.main_thread()
        super().log(step, metrics)


class StrayTracker(GoodTracker):
    """Writes into the working directory too."""

    def log(self, step, metrics):
        with open("stray.txt", "a", encoding="utf-8") as stream:
            stream.write("x")
        super().log(step, metrics)


class LosingTracker(GoodTracker):
    """Forgets the second number of a step."""

    def log(self, step, metrics):
        super().log(step, dict(list(metrics.items())[:1]))


class TwiceTracker(GoodTracker):
    """Keeps the steps after the checkpoint of a resumed run."""

    def start(self, run):
        super().start(replace(run, step=10**6))
        return


class GlobalTracker(GoodTracker):
    """Has one file for all runs of a process."""

    def start(self, run):
        stored = super().start(run)
        GlobalTracker.last = self.file
        return stored

    def _write(self, rows):
        self.file = getattr(GlobalTracker, "last", self.file) if rows else self.file
        super()._write(rows)


# Services


class GoodInference(TransformersInferenceService):
    """As the built-in one."""


class ShiftedInference(GoodInference):
    """Gives every request the answer of the one before."""

    def generate(self, requests):
        found = super().generate(requests)
        return found[-1:] + found[:-1]


class MoodyInference(GoodInference):
    """Draws with other random numbers each time."""

    def generate(self, requests):
        number = next(counter)
        return super().generate([replace(r, stream=(number, *r.stream[1:])) for r in requests])


class FlatInference(GoodInference):
    """Gives log-probabilities of temperature 1, whatever was asked."""

    def generate(self, requests):
        found = super().generate(requests)
        return [
            replace(a, logprobs=[x * (r.sampling.temperature or 1.0) for x in a.logprobs])
            for a, r in zip(found, requests, strict=True)
        ]


class EchoInference(GoodInference):
    """Answers begin with the prompt."""

    def generate(self, requests):
        found = super().generate(requests)
        return [
            replace(
                a,
                tokens=[*r.prompt_tokens, *a.tokens],
                logprobs=[-1.0] * len(r.prompt_tokens) + a.logprobs,
            )
            for a, r in zip(found, requests, strict=True)
        ]


class TolerantInference(GoodInference):
    """Takes any weights."""

    def update_weights(self, weights, version):
        self.version = version


class OnceInference(GoodInference):
    """Cannot be asked again after it was closed."""

    closed = False

    def close(self):
        super().close()
        self.closed = True

    async def complete(self, request):
        if self.closed:
            raise RuntimeError("closed")
        return await super().complete(request)


class GreedyInference(GoodInference):
    """Gives a token where none is asked for."""

    def generate(self, requests):
        return super().generate(
            [
                r
                if r.sampling.max_new_tokens or r.prompt_logprobs
                else replace(r, sampling=replace(r.sampling, max_new_tokens=1))
                for r in requests
            ]
        )


class BlankInference(GoodInference):
    """Its tokenizer loses blanks."""

    @property
    def tokenizer(self):
        return Blankless(super().tokenizer)


class Blankless:
    def __init__(self, own):
        self.own = own
        self.pad_token_id, self.eos_token_id = own.pad_token_id, own.eos_token_id

    def encode(self, text):
        return self.own.encode(text.replace(" ", ""))

    def decode(self, tokens):
        return self.own.decode(tokens)


class GoodTraining(LocalTrainService):
    """As the built-in one."""


class UnmaskedTraining(GoodTraining):
    """Has log-probabilities of prompts too."""

    def compute_log_prob(self, batch):
        found = super().compute_log_prob(batch)
        return torch.where(batch.values["loss_mask"] != 0, found, -1.0)


class MixingTraining(GoodTraining):
    """Its log-probabilities depend on the other rows."""

    def compute_log_prob(self, batch):
        found = super().compute_log_prob(batch)
        return found - 0.1 * (len(batch) - 1) * (batch.values["loss_mask"] != 0)


class UnseededTraining(GoodTraining):
    """Begins with other weights each time."""

    def load(self, spec):
        super().load(replace(spec, seed=next(counter)))


class AscendingTraining(GoodTraining):
    """Goes up the loss."""

    def optimizer_step(self):
        for parameter in self.parameters():
            if parameter.grad is not None:
                parameter.grad.neg_()
        return super().optimizer_step()


class LosslessTraining(GoodTraining):
    """Leaves the loss out of its metrics."""

    def forward_backward(self, batch, loss):
        found = super().forward_backward(batch, loss)
        return {name: pair for name, pair in found.items() if name != "loss"}


class LastTraining(GoodTraining):
    """Keeps the gradient of the last micro-batch alone."""

    def forward_backward(self, batch, loss):
        for parameter in self.parameters():
            parameter.grad = None
        return super().forward_backward(batch, loss)


class ForgettingTraining(GoodTraining):
    """Its state has weights, but nothing of the optimizer."""

    def state_dict(self):
        return {"weights": {k: v.detach().clone() for k, v in self.weights().items()}}

    def load_state_dict(self, state):
        self.load_weights(state["weights"])


class PoisonedTraining(GoodTraining):
    """Takes gradients that are not finite."""

    def optimizer_step(self):
        report = super().optimizer_step()
        if not math.isfinite(report["grad_norm"]):
            self.load_weights({name: w * math.nan for name, w in self.weights().items()})
        return report


class PartialTraining(GoodTraining):
    """Takes over half of the weights."""

    def load_weights(self, weights):
        own = {name: weight.detach().clone() for name, weight in self.weights().items()}
        names = sorted(own)[::2]
        super().load_weights({**own, **{name: weights[name] for name in names}})


class CarryingTraining(GoodTraining):
    """Adds a part of the last gradient to the next."""

    held = None

    def optimizer_step(self):
        found = [p for p in self.parameters() if p.grad is not None]
        grads = [p.grad.clone() for p in found]
        for parameter, old in zip(found, self.held or [], strict=False):
            parameter.grad += old
        self.held = grads
        return super().optimizer_step()


class GoodJobs(TrainedJobs):
    """As the built-in one."""

    conformance = {"config": {"epochs": 1}}


class ForgottenJobs(GoodJobs):
    """Finds no job again."""

    def find(self, name):
        return None


class InventedJobs(GoodJobs):
    """Finds jobs that nobody made."""

    def find(self, name):
        return name


class UnusedJobs(GoodJobs):
    """Does not say which version is sampled from."""

    def use(self, inference, model, version):
        super().use(inference, model, 0)


class StubbornJobs(GoodJobs):
    """Goes on with jobs that were cancelled."""

    def cancel(self, job):
        pass


class MadeUpJobs(GoodJobs):
    """Knows every job."""

    def status(self, job):
        if self.find(job) is None:
            return plugrl.JobStatus("succeeded")
        return super().status(job)


class ChangingJobs(GoodJobs):
    """Writes into the examples."""

    def create(self, name, examples, base):
        examples[0].messages[0]["content"] += "!"
        return super().create(name, examples, base)


class OneSidedJobs(GoodJobs):
    """Learns from no preferences."""

    def create(self, name, examples, base):
        if isinstance(examples[0], plugrl.PreferenceExample):
            raise plugrl.RunError("no preferences, please")
        return super().create(name, examples, base)


class FlickeringJobs(GoodJobs):
    """A job that has ended is asked about once."""

    asked = 0

    def status(self, job):
        found = super().status(job)
        if found.is_open:
            return found
        self.asked += 1
        return found if self.asked == 1 else plugrl.JobStatus("running", wait=0.0)


class BaselessJobs(GoodJobs):
    """Gives every job the same model."""

    def status(self, job):
        found = super().status(job)
        return replace(found, fine_tuned_model="step-1") if found.fine_tuned_model else found


# Red-teaming


class GoodEnvironment(DialogueEnvironment):
    """Small trees."""

    conformance = {
        "config": {
            "tree_width": 2,
            "tree_depth": 2,
            "tester": {"max_new_tokens": 5},
            "target": {"max_new_tokens": 5},
        }
    }


class ShortEnvironment(GoodEnvironment):
    """Grows one tree fewer."""

    def rollouts(self, seeds):
        return super().rollouts(seeds[1:])


class ForgetfulEnvironment(GoodEnvironment):
    """Dialogues go on without what was said."""

    def advance(self, context, probe, response):
        return context


class FreeEnvironment(GoodEnvironment):
    """Its rewards are not the sum of their parts."""

    def rollouts(self, seeds):
        trees = super().rollouts(seeds)
        for tree in trees:
            for node in tree.nodes():
                node.reward += 1.0
        return trees


class FlatRewardEnvironment(GoodEnvironment):
    """Pays all the same."""

    def reward(self, nodes):
        return [{"score": 1.0} for _ in nodes]


class MoodyEnvironment(GoodEnvironment):
    """Other trees each time."""

    def context_of(self, seed):
        return super().context_of(seed + next(counter) % 3 if seed >= 0 else seed)


class BatchEnvironment(GoodEnvironment):
    """What is said depends on the other trees."""

    def rollouts(self, seeds):
        trees = super().rollouts([seed + len(seeds) * 3 for seed in seeds])
        for tree, seed in zip(trees, seeds, strict=True):
            tree.seed = seed
        return trees


class WideEnvironment(GoodEnvironment):
    """Evaluates with whole trees."""

    def eval_rollouts(self, prompts, seeds):
        trees = super().eval_rollouts(prompts, seeds)
        for tree in trees:
            tree.children *= 2
        return trees


class HidingEnvironment(GoodEnvironment):
    """Counts exchanges without a score as harmless."""

    def score(self, nodes):
        super().score(nodes)
        for node in nodes:
            node.failure = ""


class TolerantEnvironment(GoodEnvironment):
    """Takes any seed."""

    def context_of(self, seed):
        return super().context_of(abs(seed))


class GoodHarness(HarnessGrpo):
    """As the built-in one."""


class DetachedHarness(GoodHarness):
    """Its loss has no gradient."""

    def step(self, batch):
        loss, numbers = super().step(batch)
        return loss.detach(), numbers


class MoodyHarness(GoodHarness):
    """Another loss each time."""

    def step(self, batch):
        loss, numbers = super().step(batch)
        return loss + next(counter), numbers


class FailingHarness(GoodHarness):
    """Learns from exchanges that failed."""

    def flatten(self, tree):
        for node in tree.nodes():
            node.failure = ""
        return super().flatten(tree)


class RootHarness(GoodHarness):
    """Makes a step of a tree in which nothing was said."""

    def flatten(self, tree):
        return super().flatten(tree) if tree.children else [None]


class ChangingHarness(GoodHarness):
    """Writes into the tree."""

    def flatten(self, tree):
        tree.seed += 1
        return super().flatten(tree)


class StatefulHarness(GoodHarness):
    """Has a state that cannot be loaded."""

    steps = 0

    def step(self, batch):
        self.steps += 1
        return super().step(batch)

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        pass


# Sandboxes


def plain(job, folder=None):
    """The outcome of a script that is run without any limit."""
    # Of a process in between, so that a program that kills its parent does not kill the kit.
    between = (
        "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', sys.argv[1]]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", between, job.program],
        input=job.stdin,
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    # Below 0 the process in between was killed, as the program wanted.
    verdict = "raised" if done.returncode > 0 else "done"
    return plugrl.ProgramOutcome(verdict, done.stdout, done.stderr)


class GoodSandbox(plugrl.LocalSandbox):
    """As the built-in one; equal programs are run once for all that follow."""

    outcomes: ClassVar = {}

    def run(self, job, limits):
        key = repr((job, limits))
        if key not in self.outcomes:
            self.outcomes[key] = super().run(job, limits)
        return self.outcomes[key]


class DeafSandbox(GoodSandbox):
    """Gives programs nothing to read."""

    def run(self, job, limits):
        return super().run(replace(job, stdin=""), limits)


class TextSandbox(GoodSandbox):
    """Results of functions are texts."""

    def run(self, job, limits):
        outcome = super().run(job, limits)
        return outcome if outcome.value is None else replace(outcome, value=str(outcome.value))


class StatusSandbox(GoodSandbox):
    """The exit status is lost."""

    def run(self, job, limits):
        outcome = super().run(job, limits)
        return replace(outcome, verdict="done") if outcome.verdict == "raised" else outcome


class PatientSandbox(GoodSandbox):
    """Limits no processor time."""

    def run(self, job, limits):
        return super().run(job, replace(limits, seconds=60.0))


class WaitingSandbox(GoodSandbox):
    """Limits no time by the clock."""

    def run(self, job, limits):
        return super().run(job, replace(limits, wall_seconds=60))


class RoomySandbox(GoodSandbox):
    """Limits no memory."""

    def run(self, job, limits):
        return super().run(job, replace(limits, memory_mb=1 << 16))


class LoudSandbox(GoodSandbox):
    """Limits no output."""

    def run(self, job, limits):
        return super().run(job, replace(limits, output_kb=1 << 16))


class FilingSandbox(GoodSandbox):
    """Limits no files."""

    def run(self, job, limits):
        return super().run(job, replace(limits, files=10_000))


class TrustingSandbox(GoodSandbox):
    """Runs tests within the program that they test."""

    def run(self, job, limits):
        mode = "trusted_tests" if job.mode == "tests" else job.mode
        return super().run(replace(job, mode=mode), limits)


class ConnectedSandbox(GoodSandbox):
    """Programs have a network."""

    def run(self, job, limits):
        return plain(job) if "socket" in job.program else super().run(job, limits)


class ReadingSandbox(GoodSandbox):
    """Programs read all files."""

    def run(self, job, limits):
        return plain(job) if "secret" in job.program else super().run(job, limits)


class WritingSandbox(GoodSandbox):
    """Programs write outside of their folder."""

    def run(self, job, limits):
        return plain(job) if "made" in job.program else super().run(job, limits)


class KillingSandbox(GoodSandbox):
    """Programs end other processes."""

    def run(self, job, limits):
        return plain(job) if "kill" in job.program else super().run(job, limits)


class TellingSandbox(GoodSandbox):
    """Programs see the variables of the caller."""

    def run(self, job, limits):
        return plain(job) if "environ" in job.program else super().run(job, limits)


class KeepingSandbox(GoodSandbox):
    """Programs share a folder."""

    folder = None

    def run(self, job, limits):
        if "left" not in job.program:
            return super().run(job, limits)
        KeepingSandbox.folder = self.folder or tempfile.mkdtemp(prefix="broken-sandbox-")
        return plain(job, self.folder)


class SharedSandbox(GoodSandbox):
    """Threads overwrite each other's programs."""

    def run(self, job, limits):
        self.job = job
        if job.program == "print(int(input()) + 1)":
            time.sleep(0.3)
        return super().run(self.job, limits)


# Hubs


class GoodHub(plugrl.Hub):
    """Files in a folder of this process."""

    conformance = {"model": "a/model", "data": "a/rows", "missing": "no/body"}
    commits = ("c1",)
    rows = ({"prompt": "1"}, {"prompt": "2"})

    def model(self, name, revision, *, weights):
        import tempfile
        from pathlib import Path

        self._known(name)
        folder = Path(tempfile.mkdtemp(prefix="broken-hub-"))
        (folder / "config.json").write_text("{}")
        return plugrl.Snapshot(folder, self.commits[0])

    def _known(self, name):
        if not name.startswith("a/"):
            raise plugrl.ConfigError(f"there is no {name}")

    def model_fault(self, name, revision):
        self._known(name)

    def commit(self, data):
        self._known(data.name)
        return data.revision or self.commits[0]

    def first_problem(self, data, split):
        return self.problems(data, split)[0]

    def fetch(self, data, split):
        self.problems(data, split)

    def problems(self, data, split):
        self._known(data.name)
        if split != "train":
            raise plugrl.ConfigError(f"there is no split {split}")
        return [dict(row) for row in self.rows]

    def pinned(self, address):
        return address

    def files(self, address):
        raise plugrl.ConfigError(f"there are no files at {address}")

    def first_in(self, address):
        return None

    def check_push(self, name, *, token=True):
        owner, _, rest = name.partition("/")
        if not owner or not rest or "/" in rest or "." in name:
            raise plugrl.ConfigError(f"{name} has another form")

    def push(self, folder, name, *, private, revision, message):
        raise plugrl.ConfigError("nothing is published here")


class BareHub(GoodHub):
    """Its models have no configuration."""

    def model(self, name, revision, *, weights):
        found = super().model(name, revision, weights=weights)
        (found.folder / "config.json").unlink()
        return found


class ShuffledHub(GoodHub):
    """Its rows come in any order."""

    def problems(self, data, split):
        found = super().problems(data, split)
        return found[::-1] if next(counter) % 2 else found


class MovingHub(GoodHub):
    """A commit means what the main branch means."""

    def commit(self, data):
        self._known(data.name)
        return f"c{next(counter)}"


class PinlessHub(GoodHub):
    """Its addresses move when they are pinned again."""

    conformance = {**GoodHub.conformance, "files": "hf://datasets/a/rows/x.jsonl"}

    def pinned(self, address):
        return f"{address}@{next(counter)}"


class VerboseHub(GoodHub):
    """Says more than a line."""

    def _known(self, name):
        if not name.startswith("a/"):
            raise plugrl.ConfigError(f"there is no {name}\nnowhere")


class TolerantHub(GoodHub):
    """Takes any split, and any name."""

    def problems(self, data, split):
        return super().problems(data, "train")

    def check_push(self, name, *, token=True):
        pass


# Launchers


class GoodLauncher(plugrl.Launcher):
    """Pretends to run its jobs, in this process."""

    conformance: ClassVar = {"starts": True}
    ended: ClassVar[dict[str, str]] = {}

    def preview(self, job):
        return f"{job.words}"

    def start(self, job):
        wrong = "no-such-file.yaml" in job.words
        self.ended[job.name] = "failed" if wrong else "succeeded"
        return job.name

    def jobs(self):
        return [self.status(name) for name in self.ended]

    def status(self, name):
        if name not in self.ended:
            raise plugrl.UsageError(f"there is no job {name}")
        return plugrl.LaunchStatus(name, self.ended[name])

    def logs(self, name, *, follow):
        yield "2 steps" if self.status(name).state == "succeeded" else "no-such-file.yaml"


class GoodSearcher(plugrl.Searcher):
    """Draws values at random, and ends what is below zero; all is in one file."""

    conformance: ClassVar = {"hopeless": 1}

    def open(self, folder, space, *, maximize, seed):
        self.file, self.space, self.seed = folder / "trials.json", space, seed
        self.sign = 1 if maximize else -1

    def kept(self):
        return json.loads(self.file.read_text()) if self.file.exists() else []

    def trials(self):
        return [
            plugrl.Trial(number, values, state, value)
            for number, (values, state, value) in enumerate(self.kept())
        ]

    def keep(self, number, entry):
        kept = self.kept()
        kept[number : number + 1] = [entry]
        self.file.write_text(json.dumps(kept))

    def draw(self, rng, one):
        if one.type == "choice":
            return rng.choice(one.values)
        low, high = one.ends()
        return rng.randint(low, high) if one.type == "int" else rng.uniform(low, high)

    def ask(self):
        number = len(self.kept())
        rng = random.Random(self.seed * 1000 + number)
        values = {key: self.draw(rng, one) for key, one in self.space.items()}
        self.keep(number, [values, "running", None])
        return plugrl.Trial(number, values)

    def report(self, number, step, value):
        values, state, _ = self.kept()[number]
        self.keep(number, [values, state, value])
        return self.sign * value < 0

    def tell(self, number, state, value=None):
        values, _, last = self.kept()[number]
        ends = {"done": value, "pruned": last, "failed": None}
        self.keep(number, [values, state, ends[state]])


class WideSearcher(GoodSearcher):
    """Proposes numbers beyond the largest."""

    def draw(self, rng, one):
        value = super().draw(rng, one)
        return value * 100 if one.type == "int" else value


class LonelySearcher(GoodSearcher):
    """Keeps its trials to itself."""

    def open(self, folder, space, **given):
        super().open(folder, space, **given)
        self.file = folder / f"{next(counter)}.json"

    def tell(self, number, state, value=None):
        if number < len(self.kept()):
            super().tell(number, state, value)


class MoodySearcher(GoodSearcher):
    """Draws other values each time."""

    def draw(self, rng, one):
        return super().draw(random, one)


class PatientSearcher(GoodSearcher):
    """Ends no trial."""

    def report(self, number, step, value):
        return super().report(number, step, value) and False


class MoodyLauncher(GoodLauncher):
    """Sends something else each time."""

    def preview(self, job):
        return f"{next(counter)} {job.words}"


class SplittingLauncher(GoodLauncher):
    """Sends its words as the shell would split them."""

    def preview(self, job):
        return " ".join(" ".join(job.words).split()[:2])


class TellingLauncher(GoodLauncher):
    """Sends the values of credentials."""

    def preview(self, job):
        return f"{job.words} {[os.environ.get(name) for name in job.secrets]}"


class TolerantLauncher(GoodLauncher):
    """Stops any job, also one that nobody has."""

    def stop(self, name):
        pass


class IdleLauncher(GoodLauncher):
    """Its jobs all fail."""

    def start(self, job):
        self.ended[job.name] = "failed"
        return job.name


class CheerfulLauncher(GoodLauncher):
    """What failed has succeeded too."""

    def status(self, name):
        super().status(name)
        return plugrl.LaunchStatus(name, "succeeded")

    def logs(self, name, *, follow):
        self.status(name)
        yield "2 steps no-such-file.yaml"
