"""Every remedy that messages about text rollouts recommend is tried, and helps."""

from __future__ import annotations

import ast
import asyncio
import json
import math
import tempfile
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import little_memory
import pytest
import torch
import yaml
from remedies import MODEL, REMOTE, TEXT, Row, faults, row, tiered, tried, untried
from testers import (
    CONFIG,
    PROMPTS,
    SECTION,
    TINY,
    PolicyGradient,
    make_environment,
    make_system,
    says_a,
)
from trials import Read, Trial, refused, tiered_trials, trained, warned

from plugrl import Batch, TrainingConfiguration, Trajectory
from plugrl.core.config.view import ConfigView
from plugrl.core.experiment import prepare
from plugrl.core.protocol.protocol import make_protocol
from plugrl.core.text.agents.agent_config import McpServerSection, load_agent
from plugrl.core.text.agents.tools import bind
from plugrl.core.text.data.files import LONGEST_LINE, read_files
from plugrl.core.text.data.loader import filter_items, require_answers
from plugrl.core.text.data.maps import load_map
from plugrl.core.text.dialogue.environment import DialogueEnvironment, fluency
from plugrl.core.text.dialogue.evaluation.evaluation import evaluate_red_team
from plugrl.core.text.dialogue.evaluation.report_page import make_folder
from plugrl.core.text.dialogue.language_models import LanguageModelSystem
from plugrl.core.text.dialogue.scorer import Score, as_scorer
from plugrl.core.text.endpoint.clients.callables import accepted_arguments
from plugrl.core.text.endpoint.forms import answer_grammar
from plugrl.core.text.endpoint.requests import read_chat
from plugrl.core.text.endpoint.server import listening_socket
from plugrl.core.text.endpoint.session import Session
from plugrl.core.text.evaluate.reward_functions import reward_function_fault
from plugrl.core.text.evaluate.scores import report_score
from plugrl.core.text.inference.chat import chat_tokenizer
from plugrl.core.text.inference.completions import _fault
from plugrl.core.text.inference.requests import Completion, GenerationRequest
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.core.text.inference.services import (
    ModelSpec,
    TokenLimits,
    TrainService,
    check_stop_tokens,
)
from plugrl.core.text.jobs.model_groups import SharedModelGroup, _check_open
from plugrl.core.text.jobs.service import TrainedJobs
from plugrl.core.text.learn.batch_shaping import Shaper
from plugrl.core.text.learn.losses import WeightedLoss, check_reads
from plugrl.core.text.models import Model
from plugrl.core.text.remote.calls import RemoteCalls
from plugrl.core.text.remote.datums import advantages_of
from plugrl.core.text.remote.preflight import loss_fault
from plugrl.core.text.remote.settings import key_of
from plugrl.core.text.rollout.processes.messages import _tokenizer
from plugrl.core.text.rollout.task import RolloutTask
from plugrl.core.text.rollout.time_limits import run_coroutine
from plugrl.core.text.rollout.validate_rollout import (
    _unsampled_fault,
    check_request,
    logprobs_fault,
)
from plugrl.core.text.staged.analysis import questions_for
from plugrl.core.text.validate_prepared import check_parameters
from plugrl.plugins.transformers.inference_service import TransformersInferenceService
from plugrl.plugins.transformers.loading import load_model
from plugrl.plugins.transformers.tokenizer import character_tokenizer
from plugrl.plugins.transformers.train_service import LocalTrainService
from plugrl.scenarios.parsers.brackets import BracketsParser
from plugrl.trainers.harness import HarnessTrainer
from plugrl.trainers.remote_api_grpo import RemoteApiGrpoTrainer
from plugrl.trainers.self_hosted_cross_entropy import cross_entropy
from plugrl.trainers.self_hosted_grpo import SelfHostedGrpoTrainer

_READY = "trajectory_pool.check_batch_ready_function"
_SIZE = "trajectory_pool.batch_size"
_PHASES, _JOBS = "red_team_quickstart_grpo", "arithmetic_claims_ei"
_RED = "trainer.phases.2"
_JOBS_AT, _TINKER = "trainer.phases.1", "models.policy"
_TUNE, _KL = f"{_JOBS_AT}.models.policy.fine_tune", "trainer.algorithm.kl"
_SUPERVISED = (
    "-trainer.algorithm.loss trainer.type=self_hosted_cross_entropy"
    " rollout_worker.type=demonstration data.split=demonstrations data.rollout_repeat_n=1"
)
_DISTILLED = (
    "-trainer.algorithm.advantage -trainer.algorithm.loss trainer.type=self_hosted_opd"
    " trainer.algorithm.teacher=reference"
)
_SOURCE = yaml.safe_dump(MODEL, default_flow_style=True, width=9999).strip()
_FROZEN, _MODEL = _SOURCE, f"{{policy: {_SOURCE[:-1]}, train: local}}}}"
ROWS: list[Row] = [
    row(
        "weight.sync_mode=fully-async",
        "fully-async trains",
        f"{_READY}=batch_size_reached {_SIZE}=8",
    ),
    row(f"{_READY}=batch_size_reached {_SIZE}=12", "use a multiple of 8", f"{_SIZE}=16"),
    row(f"{_READY}=batch_size_reached {_SIZE}=12", "set weight.staleness_threshold=1"),
    row(
        "trajectory_pool.key_list=[run_id]",
        "write group_id",
        "-trajectory_pool.key_list trajectory_pool.key_list=[group_id]",
    ),
    row(
        "trajectory_pool.group_size=9",
        "",
        "-trajectory_pool.group_size data.rollout_repeat_n=9 trajectory_pool.group_size=9",
    ),
    row("trainer.algorithm.minibatches=100", "write at most", "trainer.algorithm.minibatches=8"),
    row(
        "rollout_worker.max_response_length=64", "lower it", "rollout_worker.max_response_length=3"
    ),
    row("rollout_worker.model=polcy", "did you mean policy", "rollout_worker.model=policy"),
    row("rollout_worker.evaluator=null", "is missing", "rollout_worker.evaluator=exact_match"),
    row(
        "rollout_worker.evaluator=exact_mach",
        "did you mean",
        "rollout_worker.evaluator=exact_match",
    ),
    row(
        "models.policy.train=null",
        "such as models.policy.train: local",
        "models.policy.train=local",
    ),
    row(
        "models.reference.adapter={r: 2}",
        "give it a train service",
        "models.reference.train=local rollout_worker.model=reference",
        base="frozen",
        left="trains one model",
    ),
    row(
        "models.reference.adapter={r: 2}", "or drop it", "-models.reference.adapter", base="frozen"
    ),
    row(
        "trajectory_pool.drop_equal_groups=true trainer.type=self_hosted_cross_entropy"
        " rollout_worker.type=demonstration data.split=demonstrations data.rollout_repeat_n=1"
        " data.batch_size=4",
        "write false",
        "trajectory_pool.drop_equal_groups=false",
    ),
    row("scenario=null validate.enabled=false", "or a scenario", "scenario=arithmetic"),
    row(
        "scenario=null",
        "set validate.enabled=false",
        "validate.enabled=false",
        left="data.data_files",
    ),
    row("trainer.algorithm.advantage=gae", "needs values of states"),
    row(
        "trainer.algorithm.kl.loss.coefficient=0.1",
        "add it, without a train service",
        "models.reference.source.config={model_type: qwen3, hidden_size: 8, intermediate_size: 8,"
        " num_hidden_layers: 1, num_attention_heads: 1, num_key_value_heads: 1, head_dim: 8,"
        " max_position_embeddings: 32} models.reference.source.tokenizer.characters=0123456789+=",
    ),
    row(
        "rollout_worker.type=protocol rollout_worker.evaluator=exact_match",
        "leave it out",
        "rollout_worker.evaluator=null",
        left="label",
    ),
    row(
        "trainer.algorithm.advantage=gae",
        "choose another, such as grpo",
        "trainer.algorithm.advantage=grpo",
        base="remote",
    ),
    row(
        "algorithm.loss_fn=cross_entropy",
        "take another, such as importance_sampling",
        "algorithm.loss_fn=importance_sampling",
        base="remote",
    ),
    row("algorithm.loss_fn=pp0", "did you mean", "algorithm.loss_fn=ppo", base="remote"),
    row(
        "algorithm.loss_fn=ppo algorithm.loss_fn_config={clip_low_threshold: 2.0}",
        "write 0 <=",
        "algorithm.loss_fn_config.clip_low_threshold=0.8",
        base="remote",
    ),
    row("rollout_worker.temperature=0.5", "write 1", base="remote"),
    row(
        "trainer.type=self_hosted_grpo",
        "choose another trainer.type",
        "trainer.type=remote_api_grpo",
        base="remote",
    ),
    row(
        "trainer.type=self_hosted_grpo",
        "or another train service",
        "models.policy.train=local",
        base="remote",
    ),
    row(
        "models.policy.fine_tune=local models.policy.train=null",
        "write models.policy.train",
        "-models.policy.fine_tune models.policy.train=local",
    ),
    row(
        "rollout_worker.type=protocol rollout_worker.agents={nobody: {frozen: true}}"
        " rollout_worker.evaluator=null",
        "has no such agent",
        "-rollout_worker.agents",
        left="label",
    ),
    row(
        f"{_RED}.red_team.scorer=null",
        "names no scorer",
        f"{_RED}.red_team.scorer={{type: lexicon, words_key: word}}",
        base=_PHASES,
    ),
    row(
        f"{_RED}.red_team.tree_width=1000 {_RED}.red_team.tree_depth=8",
        "exchanges; lower one of them",
        f"{_RED}.red_team.tree_width=2",
        base=_PHASES,
    ),
    row(
        f"{_RED}.models.tester.train=null",
        "the tester is not trained",
        f"{_RED}.models.tester.train=local",
        base=_PHASES,
    ),
    row(
        f"{_RED}.models.tester.train={{type: fsdp}}",
        "such as models.NAME.train: local",
        f"{_RED}.models.tester.train=local",
        base=_PHASES,
    ),
    row(
        "scenario=null",
        "such as scenario: red_team",
        "scenario=red_team",
        base=_PHASES,
        left="scenario",
    ),
    row(
        "validate.enabled=false",
        "write text_rl.test_scheme=none",
        "trainer.phases.1.text_rl.test_scheme=none",
        base=_JOBS,
        left="stop_at",
    ),
    row("validate.enabled=false", "or validate.enabled=true", "validate.enabled=true", base=_JOBS),
    row(
        "trainer.phases.1.models.policy.fine_tune=null",
        "such as models.policy.fine_tune: local",
        "trainer.phases.1.models.policy.fine_tune=local",
        base=_JOBS,
    ),
    row(
        "trainer.phases.1.models.policy.fine_tune=null trainer.phases.1.models.policy.train=local",
        "write models.policy.fine_tune instead",
        "trainer.phases.1.models.policy.train=null trainer.phases.1.models.policy.fine_tune=local",
        base=_JOBS,
    ),
    *(
        row(f"trainer.algorithm.{key}={value}", f"take another {key} or trainer", edit)
        for key, value, edit in (
            ("loss", "cross_entropy", "trainer.algorithm.loss=clipped"),
            ("loss", "cross_entropy", _SUPERVISED),
            ("loss", "dpo", "trainer.algorithm.loss=clipped"),
            ("advantage", "opd", "trainer.algorithm.advantage=grpo"),
        )
    ),
    *(
        row(
            f"trainer.algorithm.{kind}={value}",
            "{} reads {} of a batch, which trainer {} does not add; take another",
            edit,
            base="frozen",
        )
        for kind, value, edit in (
            ("loss", "reverse_kl", "trainer.algorithm.loss=clipped"),
            ("loss", "reverse_kl", _DISTILLED + " trainer.algorithm.loss=reverse_kl"),
            ("advantage", "opd", "trainer.algorithm.advantage=grpo"),
            ("advantage", "opd", _DISTILLED),
        )
    ),
    row(
        "trainer.algorithm.loss=cross_entropy",
        "{} does not read {}, which trainer {} learns from; take another",
        "trainer.algorithm.loss=clipped",
    ),
    row("models=null", "names no model; give one, such as models.policy", f"models={_MODEL}"),
    row(
        "models.policy.fine_tune=local models.policy.train=null",
        "is for trainers that train by jobs, such as ei_pure_text; write",
        "-models.policy.fine_tune models.policy.train=local",
    ),
    *(
        row(
            "models.reference.train=local trainer.algorithm.kl.loss.coefficient=0.1",
            "name another, or leave models.{}.train out",
            edit,
            base="frozen",
            left="trains one model",
        )
        for edit in ("-models.reference.train", f"models.other={_FROZEN} {_KL}.model=other")
    ),
    row(
        "trainer.stop_at={validation/exact_match: 0.5} validate.every=0",
        "none during training; set validate.every, such as 10",
        "validate.every=10",
    ),
    row(
        "validate.pass_metric=exact_mach",
        "no evaluator gives a metric {}; they give: {}; did you mean {}?",
        "validate.pass_metric=exact_match",
    ),
    row(
        f"{_KL}.reward={{coefficient: 0.1, controller: adaptive, horizon: 1}}",
        "coefficient negative; write at least {}",
        f"{_KL}.reward.horizon=2",
        base="frozen",
    ),
    row(
        "trainer.algorithm.overlong.buffer=1 trainer.type=self_hosted_opd"
        " trainer.algorithm.teacher=reference",
        "changes rewards, and the advantage {} does not use them; leave it out",
        "-trainer.algorithm.overlong.buffer",
        base="frozen",
    ),
    *(
        row("rollout_worker.stop_token_ids=[99]", "write one of them, or the text in stop", edit)
        for edit in ("rollout_worker.stop_token_ids=[13]", "-rollout_worker.stop_token_ids")
    ),
    row(
        "rollout_worker.type=agent rollout_worker.evaluator=null",
        "name what rewards an answer, such as exact_match",
        "rollout_worker.evaluator=exact_match",
    ),
    row(
        "scenario=null data.data_files=[tests/core] validate.enabled=false",
        "name its files, such as {}",
        "data.data_files=[tests/scenarios/apps/*.jsonl] data.prompt_key=question"
        " data.answer_key=solutions",
    ),
    row(
        "scenario=null data.data_files=[setup.cfg] validate.enabled=false",
        "unknown type; use {}",
        "data.data_files=[tests/scenarios/apps/problems.jsonl] data.prompt_key=question"
        " data.answer_key=solutions",
    ),
    row(
        "validate.data.data_files=[] scenario=null",
        ", or set {}",
        "validate.enabled=false",
        left="data.data_files",
    ),
    # Remote trainers.
    row(
        "algorithm.loss_fn=zzz",
        "A loss of your own needs a self-hosted trainer, such as trainer.type: self_hosted_grpo",
        "-algorithm.loss_fn trainer.type=self_hosted_grpo models.policy.train=local",
        base="remote",
    ),
    row(
        f"{_TINKER}.train.api_key=my+key",
        "must be the name of an environment variable, such as {}",
        f"{_TINKER}.train.api_key=TINKER_API_KEY",
        base="tinker_grpo",
        left="source.path",
    ),
    row(
        f"{_TINKER}.train.base_url=http://me:secret@localhost:1",
        "must hold no user or password",
        f"{_TINKER}.train.base_url=http://localhost:1",
        base="tinker_grpo",
        left="source.path",
    ),
    # Training by jobs.
    row(
        f"{_JOBS_AT}.models=null",
        "names no model; give one, such as models.policy, a source",
        f"{_JOBS_AT}.models.policy.fine_tune=local {_JOBS_AT}.models.policy.train=null",
        base=_JOBS,
        left="models",
    ),
    row(
        f"{_JOBS_AT}.models.policy.train=local {_JOBS_AT}.models.policy.fine_tune=null",
        "agents are fine-tuned by jobs: write models.{}.fine_tune instead",
        f"{_JOBS_AT}.models.policy.train=null {_JOBS_AT}.models.policy.fine_tune=local",
        base=_JOBS,
    ),
    row(
        f"{_JOBS_AT}.rollout_worker.type=single_turn",
        "{} plays no episodes of a protocol; write protocol, or a worker",
        f"{_JOBS_AT}.rollout_worker.type=protocol",
        base=_JOBS,
    ),
    row(
        f"{_JOBS_AT}.text_rl.max_cost=1",
        "needs prices, such as prices.policy.output=10",
        f"{_JOBS_AT}.text_rl.prices.policy.output=10",
        base=_JOBS,
    ),
    *(
        row(
            f"{_JOBS_AT}.text_rl.max_cost=1 {_JOBS_AT}.text_rl.prices.policy.output=0",
            "is never reached: all prices are 0; raise one, or write null",
            edit,
            base=_JOBS,
        )
        for edit in (
            f"{_JOBS_AT}.text_rl.prices.policy.output=1",
            f"{_JOBS_AT}.text_rl.max_cost=null",
        )
    ),
    *(
        row(
            f"{_TUNE}.timeout=1 {_TUNE}.poll_interval=5",
            "{}, below poll_interval={}; raise {}, or lower poll_interval",
            edit,
            base=_JOBS,
        )
        for edit in (f"{_TUNE}.timeout=5", f"{_TUNE}.poll_interval=1")
    ),
    *(
        row(
            f"{_TUNE}.preference_loss={loss}",
            says,
            f"{_TUNE}.preference_loss={right}",
            base=_JOBS,
        )
        for loss, says in (
            ("kto", "compares no pairs of replies; write dpo or ipo"),
            ("bradley_terry", "needs more than log-probabilities; write dpo or ipo"),
        )
        for right in ("dpo", "ipo")
    ),
    row(
        f"{_JOBS_AT}.rollout_worker.agents={{prover: {{frozen: true}},verifier: {{frozen: true}}}}",
        "so that no job would be made; let one of them learn",
        f"-{_JOBS_AT}.rollout_worker.agents {_JOBS_AT}.rollout_worker.agents.prover.frozen=true",
        base=_JOBS,
    ),
    row(
        f"{_JOBS_AT}.rollout_worker.prompts=tests/support",
        "has no prompt of agent {}; write one of {}",
        f"-{_JOBS_AT}.rollout_worker.prompts",
        base=_JOBS,
    ),
    row(
        "trainer.phases.1.rollout_worker.evaluator=exact_match",
        "is not used: the protocol rewards; leave it out",
        "-trainer.phases.1.rollout_worker.evaluator",
        base="arithmetic_claims",
    ),
    row(
        "trainer.type=remote_api_grpo",
        "self-hosted trainers, such as self_hosted_grpo",
        "trainer.type=self_hosted_grpo",
    ),
    row(
        "trainer.type=self_hosted_grpo",
        "remote-API trainers, such as remote_api_grpo",
        "trainer.type=remote_api_grpo",
        base="remote",
    ),
    row(
        "rollout_worker.tool_parser={type: brackets, tool: calculater}",
        "it has: {}; did you mean {}?",
        "rollout_worker.tool_parser.tool=calculator",
        base="calculator_agent",
        left="rollout_worker",
    ),
    row(
        "trajectory_pool.key_list=[promt]",
        "{} is no field of a trajectory, and {} has no such column; it has: {}; did you mean",
        "trajectory_pool.key_list=[prompt]",
    ),
    row(
        "rollout_worker= rollout_worker={type: protocol, protocol: multi_channel,"
        " channel_names: {main: a, prover_chat: a}}",
        "are both called {}; rename one",
        "rollout_worker.channel_names.prover_chat=b",
        left="label",
    ),
    # Red-teaming.
    row(
        f"{_RED}.red_team.baseline=null",
        "reward.fluency needs a baseline, such as baseline: baseline with models.baseline",
        f"{_RED}.red_team.baseline=baseline",
        base=_PHASES,
    ),
    row(
        f"{_RED}.models.tester.train.learning_rate=0.1",
        "; set trainer.{}",
        f"-{_RED}.models.tester.train.learning_rate {_RED}.trainer.lr=0.1",
        base=_PHASES,
    ),
    row(
        f"{_RED}.models.tester.train.weight_decay=0.1",
        "the trainer has an optimizer of its own; leave it out",
        f"-{_RED}.models.tester.train.weight_decay",
        base=_PHASES,
    ),
    row(
        f"{_RED}.models.tester.train.micro_batch_size=5",
        "has no effect: a batch is one pass; set trainer.batch_size",
        f"-{_RED}.models.tester.train.micro_batch_size {_RED}.trainer.batch_size=5",
        base=_PHASES,
    ),
    row(
        f"{_RED}.trainer.algorithm= {_RED}.trainer.algorithm.type=ppo"
        f" {_RED}.models.tester.train.value_head=false",
        "is false, and {} learns values; write true",
        f"{_RED}.models.tester.train.value_head=true",
        base=_PHASES,
    ),
    row(
        f"{_RED}.models.tester.fine_tune=local {_RED}.models.tester.train=null",
        "is for trainers by jobs; write models.{}.train",
        f"-{_RED}.models.tester.fine_tune {_RED}.models.tester.train=local",
        base=_PHASES,
    ),
    row(
        f"{_RED}.models.target.fine_tune=local",
        "is for trainers by jobs; leave it out",
        f"-{_RED}.models.target.fine_tune",
        base=_PHASES,
    ),
]


@pytest.mark.parametrize("each", tiered(ROWS), ids=str)
def test_a_remedy_helps(each):
    tried(each)


CHATTING = "{% for m in messages %}<{{m.role}}>{{m.content}}{% endfor %}"
#: What an attempt holds, for code that reads a task.
DATA = {"prompt": "ab", "question": "cd", "number": 3, "list": [1], "answer": "a"}


def agent(own):
    """An agent's file; ``own`` is what stands in it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "agent.yaml")
        path.write_text(yaml.safe_dump({"system_prompt": "Calculate.", **own}), "utf-8")
        load_agent(path, folder)


def agent_of_service(llm):
    """A trainer of named losses with an agent that samples as its file says."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "agent.yaml")
        path.write_text(yaml.safe_dump({"system_prompt": "2", **llm}), "utf-8")
        worker = {"type": "agent", "agent_config": str(path), "evaluator": "exact_match"}
        prepare({**REMOTE, "rollout_worker": worker})


def tool(binding):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "mine.py").write_text("def add(a, b):\n    return a + b\n", "utf-8")
        bind(binding, Path(folder))


def conversation(longest):
    worker = {"type": "agent", "max_prompt_length": longest, "max_response_length": 3}
    trained("self_hosted_grpo", {"rollout_worker": worker, "validate": {"enabled": False}})


def mapped(name):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "mine.py")
        path.write_text("def only(row):\n    return row\n", "utf-8")
        load_map(str(path) + name)


def a_task(**keys):
    own = {"prompt_key": "prompt", "answer_key": "answer", **keys}
    return RolloutTask(
        data=DATA, item=0, run_id=0, group_id="g", is_val=False, ask=None, tokenizers={},
        sampling=SamplingParams(max_new_tokens=4), **own,
    )  # fmt: skip


def text_of(code):
    """What code of a worker makes of a task."""
    assert "ab" in eval(code, {"task": a_task()})


def environment(**own):
    """Red-teaming with other settings than usual."""
    keys = {"baseline": "baseline"} if own.pop("baseline", None) else {}
    section = {**SECTION, **own.pop("section", {}), **keys}
    more = {"baseline": TINY} if keys else {}
    return make_environment(make_system(section=section, **more), **keys, **own)


def fluent(baseline):
    for tree in environment(baseline=baseline, tree_width=1).rollouts([0]):
        for node in tree.nodes():
            fluency(node)


class Continues(DialogueEnvironment):
    """Goes on as an expression says, or scores in a way of its own."""

    expression = "context"

    def advance(self, context, probe, response):
        return eval(self.expression, {}, {"context": context, "probe": probe, "response": response})


class Scores(DialogueEnvironment):
    """Sets the scores, or returns them."""

    returns = False

    def score(self, nodes):
        for node in nodes:
            node.score = Score(0.5)
        return [0.5] if self.returns else None


def continued(expression):
    cls = type("Continues", (Continues,), {"expression": expression})
    make_environment(make_system(), cls=cls, tree_width=1).rollouts([0])


def scored(returns):
    cls = type("Scores", (Scores,), {"returns": returns})
    make_environment(make_system(), cls=cls, tree_width=1).rollouts([0])


class Loss(PolicyGradient):
    """Returns what ``step`` must, or a number alone."""

    def step(self, batch):
        loss, logs = super().step(batch)
        return (loss, logs) if self.right else (float(loss.detach()), logs)


def harness(right):
    keys = {"lr": 1e-3, "training_steps": 1, "num_episodes_per_experience": 1, "batch_size": 2}
    own = type("Loss", (Loss,), {"right": right})()
    HarnessTrainer(TrainingConfiguration(**keys), environment(), own).train()


def algorithm_of(how):
    """The system of an algorithm that was given one in a way that the message names."""
    system = make_system()
    made = eval(how, {"PolicyGradient": PolicyGradient, "config": None, "system": system})
    assert made.system is system


def bare(own):
    """What an environment says that was given some of its parts."""
    made = DialogueEnvironment(SECTION, **own)
    assert made.system
    assert made.scorer
    assert made.context_of(0)


def evaluated(own):
    """Evaluates prompts, each time with other ones, in a folder."""
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(own.get("folders", ["one"])):
            evaluate_red_team(
                environment(),
                own.get("prompts", [PROMPTS[number]]),
                attempts=1,
                folder=Path(folder, name),
            )


def folder_of(name):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "file").write_text("", "utf-8")
        make_folder(Path(folder, name))


def asked(own):
    """A request to the endpoint of an attempt."""
    body = {"model": "policy", "messages": [{"role": "user", "content": "a"}], **own}
    Session._refuse(read_chat(json.dumps(body).encode()))


TOOL = {"type": "function", "function": {"name": "f"}}
JSON = {"type": "json_object"}


def formed(own):
    """A request to an endpoint whose parser does not say how a call is written."""
    body = {"model": "policy", "messages": [{"role": "user", "content": "a"}], **own}
    request = read_chat(json.dumps(body).encode())
    answer_grammar(request.form, request.tools, (), [BracketsParser({})], "")


def served(own):
    """A request for a model whose service samples with no options."""
    body = {"model": "policy", "messages": [{"role": "user", "content": "a"}], **own}
    request, limits = read_chat(json.dumps(body).encode()), {"policy": TokenLimits(9, 4)}
    session = SimpleNamespace(offer=SimpleNamespace(limits=limits, parsers=(), call_parsers=()))
    Session._check_options(session, request, "policy")
    asyncio.run(Session._grammar(session, request, "policy", [SimpleNamespace(text="")]))


def listening(own):
    """Listens at an address; ``busy`` stands for a port that is taken."""
    host, port = own
    with closing(listening_socket("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        listening_socket(host, taken if port == "busy" else int(port)).close()


def reward(own):
    """A reward function with these parameters."""
    refused(reward_function_fault(eval(f"lambda {own}: 1.0")))


def reported(name):
    run = SimpleNamespace(best_score=None, report_score=lambda *words, **more: None)
    report_score(
        run,
        SimpleNamespace(score=name, score_mode="max"),
        {"validation/reward": 1.0},
        "validation/reward",
    )


class Plain:
    """A tokenizer without a template."""

    pad_token_id, eos_token_id = 0, 1


class Unloaded(TrainService):
    """A train service with nothing of its own."""


Unloaded.__abstractmethods__ = frozenset()


def own_optimizer(service):
    """The module that a trainer with an optimizer of its own takes from a service."""
    service = make_system().models["tester"].train if service == "local" else Unloaded({})
    assert service.module


def values(keys):
    """Values of states from a train service with the keys of its section."""
    make_system(train=keys).models["tester"].train.compute_values(attempts())


def stop_tokens(own):
    service = SimpleNamespace(
        vocabulary_size=9, stops_at_tokens=own.get("elsewhere", False), tokenizer=Plain()
    )
    check_stop_tokens(own["tokens"], "policy", service, "rollout_worker.stop_token_ids")


def finished(reason):
    request = GenerationRequest((2,), SamplingParams(max_new_tokens=4), (0,) * 5)
    refused(_fault(Completion([3], [-1.0], reason, 0), request, 9))


def waited(timeout):
    service = SimpleNamespace(config=SimpleNamespace(timeout=timeout))
    group = SimpleNamespace(job_name="job", service=service, model=SimpleNamespace(name="policy"))
    _check_open(group, SimpleNamespace(is_open=True, state="running", message=""), 60.0)


def of_jobs(inference):
    TrainedJobs({}).load(SimpleNamespace(name="policy"), SimpleNamespace(inference=inference))


def exported(adapter):
    service = SimpleNamespace(export=lambda *words: None, close=lambda: None)
    kept = SimpleNamespace(_handed=None, _service=lambda handed: service)
    TrainedJobs.export(kept, None, None, None, adapter=adapter)


def shaped(own):
    coefficient, was_shaped = own
    options = SimpleNamespace(reward=SimpleNamespace(coefficient=coefficient))
    Shaper.check_shaped(SimpleNamespace(_kl=options, _overlong=None, _shaped=was_shaped), "Mine")


class Mine(SelfHostedGrpoTrainer):
    """A trainer whose ``_prepare_batch`` is the line that a message says to write."""

    line = ""

    def _prepare_batch(self, batch):
        names = {"self": self, "batch": batch}
        exec(self.line, names)
        return names["batch"]


def prepared(line):
    mine = type("Mine", (Mine,), {"line": line})({})
    check_reads(mine._prepare_batch(attempts()), SimpleNamespace(reads=["advantages"]), "loss")


def in_place(line):
    """A loss with a line of its own, as the trainer calls it."""

    def own(logp, batch, config):
        names = {"x": batch.values["advantages"]}
        exec(line, names)
        return -logp * names["x"], {}

    batch = attempts()
    batch.values |= {"advantages": torch.full((2, 3), 2.0), "loss_weights": torch.ones(2, 3)}
    logp = torch.zeros(2, 3, requires_grad=True)
    WeightedLoss(own, None)(logp, batch)


def attempts(**numbers):
    made = [
        Trajectory([2, 3, 4], [0, 1, 1], logprobs=[0.0, -1.0, -1.0], reward=reward, **{
            "group_id": "g", "run_id": number, **numbers
        })
        for number, reward in enumerate((1.0, 0.0))
    ]  # fmt: skip
    return Batch.from_trajectories(made)


def advantage(line):
    """Advantages that a line of code wrote to a trajectory."""
    traj = Trajectory([2, 3, 4], [0, 1, 1])
    exec(line, {"traj": traj})
    advantages_of(traj)


def key(own):
    with pytest.MonkeyPatch.context() as patch:
        for name in ("SERVICE_KEY", "OTHER_KEY"):
            patch.delenv(name, raising=False)
        for name, value in own.get("environment", {}).items():
            patch.setenv(name, value)
        config = SimpleNamespace(api_key=own.get("api_key"))
        key_of(config, "SERVICE_KEY", "https://far.example/v1", "none")


def held(service):
    """A trainer that is given a service by code, or one in its configuration."""
    if service is None:
        RemoteApiGrpoTrainer({}).set_service_holder(object())
    prepare({**REMOTE, "models": {"policy": {**MODEL, "train": service}}})


def aggregated(way):
    """A loss that does not scale with its advantages, averaged in a way."""
    service = SimpleNamespace(losses={"own": SimpleNamespace(scales=False, options={}, inputs=())})
    fault = loss_fault({"loss_fn": "own", "loss_fn_config": {}, "aggregation": way}, service)
    refused(fault and fault[1])


def too_late(timeout):
    calls = SimpleNamespace(_name="the service", url="http://x", _timeout=timeout)
    wait = SimpleNamespace(seconds=lambda: 60.0, what="answer")
    refused(str(RemoteCalls._timeout_error(calls, wait) or ""))


def stopped(stops):
    async def work():
        if stops:
            asyncio.get_running_loop().stop()
        await asyncio.sleep(0)

    run_coroutine(work())


def sampled(own):
    trajectory = Trajectory([2, 3], [0, 1], logprobs=[0.0, -1.0], versions=[-1, -1], **own)
    refused(_unsampled_fault(trajectory))


def likely(logprobs):
    refused(logprobs_fault(Trajectory([2, 3], [0, 1], logprobs=logprobs)))


def fits(length):
    request = GenerationRequest((2,) * length, SamplingParams(max_new_tokens=1), (0,) * 5)
    check_request(SimpleNamespace(), "policy", request, {"policy": TokenLimits(9, 4)})


def questions(section):
    questions_for(section, make_protocol("solo_verifier"))


def signature(form):
    names = {}
    exec(f"class Mine:\n    def _prepare_batch{form}:\n        return None", names)
    check_parameters(names["Mine"], "_prepare_batch", 2, "(self, batch)")


def warns_of_attempts(count):
    with warned():
        prepare({**TEXT, "data": {"batch_size": 8, "rollout_repeat_n": count}})


def sent(tokenizer):
    _tokenizer("policy", SimpleNamespace(tokenizer=tokenizer))


def rewritten(own):
    Shaper._score_rows(
        SimpleNamespace(
            _kl=SimpleNamespace(model=own),
            _frozen=SimpleNamespace(score=lambda name, batch: torch.zeros(2, 3)),
        ),
        Batch({}, {"model": "policy"}),
        {},
    )


def with_baseline(name):
    section = {**SECTION, "baseline": name}
    system = make_system(section=section, **({name: TINY} if name else {}))
    HarnessTrainer(TrainingConfiguration(), make_environment(system, baseline=name), "dpo")


def problems(suffix):
    """An attempt that reads bytes as a file of problems."""

    def attempt(content):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"problems{suffix}"
            path.write_bytes(content)
            read_files([path])

    return attempt


#: What decoding, a training step and a model need more of than there is.
LARGE = {"rows": 8, "prompt": 40, "answer": 20}
WIDE = {"rows": 8, "tokens": 40}


def _spec(**source):
    section = {**TINY["source"], "path": None, "dtype": "float32", **source}
    return ModelSpec("policy", ConfigView(section, checked=True), 0, "cpu")


def sampled_in_memory(own):
    """Answers of an engine with memory for the keys of 8 rows of 56 tokens."""
    own = {**LARGE, **own}
    # Of a family whose layers the engine calls, so that they can run out of memory.
    family = {"model_type": "gemma2", "query_pre_attn_scalar": 16, "max_position_embeddings": 128}
    service = TransformersInferenceService({"max_batch_size": own.pop("max_batch_size", 64)})
    service.load(_spec(config={**CONFIG, **family}))
    sampling = SamplingParams(max_new_tokens=own["answer"])
    asked = [
        GenerationRequest([2 + row] * own["prompt"], sampling, (0, 0, row, 0, 0))
        for row in range(own["rows"])
    ]
    with little_memory.of_sampling(service._model, 8 * 56 * CONFIG["head_dim"]):
        service.generate(asked)


def trained_in_memory(own):
    """A gradient in memory for half of what the largest pass keeps."""
    own = {**WIDE, **own}
    rows, tokens = own.pop("rows"), own.pop("tokens")
    service = LocalTrainService(own)
    service.load(_spec(config={**CONFIG, "num_hidden_layers": 4}))
    made = [Trajectory([2 + row] * tokens, [0] + [1] * (tokens - 1)) for row in range(rows)]
    batch = Batch.from_trajectories(made)
    batch.values["loss_weights"] = batch.values["loss_mask"].float()
    with little_memory.of_training(service.module, 1_300_000):
        service.forward_backward(batch, WeightedLoss(cross_entropy, {}))


def loaded_in_memory(source):
    """A model on a device with memory for half of the weights that a small one has."""
    there = LocalTrainService({})
    there.load(_spec())
    half = there.module.num_parameters() * 3
    place = torch.nn.Module.to

    def full(self, *args, **kwargs):
        placed = place(self, *args, **kwargs)
        if sum(weight.nbytes for weight in placed.parameters()) > half:
            little_memory.run_out()
        return placed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.Module, "to", full)
        load_model(_spec(**source))


LATE = {"train": None}
TOOLS = [{"name": "add", "binding": "operator:add"}]
NO_SCORER = {"prompts": PROMPTS}
TRIALS = [
    Trial(
        "the key {} is there twice; leave one out",
        problems(".jsonl"),
        b'{"a": 1, "a": 2}',
        b'{"a": 1}',
    ),
    Trial(
        "a number of more than {} digits; write it as a text",
        problems(".jsonl"),
        b'{"a": ' + b"1" * 5000 + b"}",
        b'{"a": "' + b"1" * 5000 + b'"}',
    ),
    Trial(
        "not UTF-8 text; save it as UTF-8",
        problems(".jsonl"),
        '{"a": 1}'.encode("utf-16"),
        b'{"a": 1}',
    ),
    Trial(
        "characters; write each problem on a line of its own",
        problems(".jsonl"),
        b" " * (LONGEST_LINE + 1),
        b'{"a": 1}\n{"a": 2}',
    ),
    Trial(
        "a quoted field does not end; close its quotation mark",
        problems(".csv"),
        b'a\n"1\n',
        b'a\n"1"\n',
    ),
    Trial(
        "they are: {}; did you mean {}?",
        agent,
        {"tools": TOOLS, "stop_tools": ["adds"]},
        Read(r"did you mean (\w+)", lambda name: {"tools": TOOLS, "stop_tools": [name]}),
    ),
    Trial(
        "must be text; for a list write",
        agent,
        {"system_prompt": ["a"], "system_prompt_type": "string"},
        Read(
            r"write system_prompt_type: (\w+)",
            lambda kind: {"system_prompt": ["a"], "system_prompt_type": kind},
        ),
    ),
    Trial(
        "{} has no {}; did you mean {}?",
        tool,
        "mine:ad",
        Read(r"did you mean (\w+)", "mine:{}".format),
    ),
    Trial(
        "there is no {}.py in {}, and no installed module",
        tool,
        "mne:add",
        Read(r"did you mean (\w+)", "{}:add".format),
    ),
    Trial(
        "write llm_config: {temperature: 1} in {}",
        agent_of_service,
        {"llm_config": {"temperature": 0.5}},
        Read(r"write (llm_config: .*\}) in", yaml.safe_load),
    ),
    Trial(
        "more than rollout_worker.max_prompt_length={}; raise it, or leave the problem out",
        conversation,
        2,
        Read(r"a prompt of (\d+) tokens", int),
    ),
    Trial(
        "names no function; write {}:FUNCTION",
        mapped,
        "",
        Read(r"write \S+(:FUNCTION)", lambda _: ":only"),
    ),
    Trial(
        "so no range keeps it; list the values that stay",
        lambda rule: filter_items([{"level": "x"}, {"level": "y"}], {"level": rule}),
        [0, 1],
        ["x"],
    ),
    *(
        Trial(
            "; leave the problem out, or name another column",
            lambda own: require_answers(*own),
            ([{"a": {1: 2}}], "a"),
            right,
        )
        for right in (([], "a"), ([{"a": {1: 2}, "b": "c"}], "b"))
    ),
    *(
        Trial("a RolloutTask was made text", text_of, "str(task)", Read(pattern, make))
        for pattern, make in (
            (r"write (task\.prompt)", str),
            (r"(task\[\"column\"\])", lambda code: code.replace("column", "prompt")),
            (r"or (task\.data)", "str({})".format),
            (r"(\{task!r\})", lambda code: f"f{code!r} + task.prompt"),
        )
    ),
    Trial(
        "name another column, or a worker that reads task.data",
        lambda name: a_task(prompt_key=name).prompt,
        "list",
        "question",
    ),
    Trial(
        "(data.answer_key); leave the problem out, or name another column",
        lambda name: a_task(answer_key=name).answer,
        "list",
        "answer",
    ),
    # Red-teaming.
    *(
        Trial("has no system; give it one", algorithm_of, "PolicyGradient()", right)
        for right in [Read(r"one, (\w+\(.*\)), or")]
    ),
    Trial(
        "has no system; give it system=...",
        bare,
        {"scorer": as_scorer(says_a)(), **NO_SCORER},
        {"scorer": as_scorer(says_a)(), "system": "given", **NO_SCORER},
    ),
    Trial(
        "has no scorer; give it scorer=...",
        bare,
        {"system": "given", **NO_SCORER},
        {"scorer": as_scorer(says_a)(), "system": "given", **NO_SCORER},
    ),
    Trial(
        "has no prompts; give it at least one",
        bare,
        {"system": "given", "scorer": as_scorer(says_a)()},
        {"scorer": as_scorer(says_a)(), "system": "given", **NO_SCORER},
    ),
    Trial(
        "prompts are the text {}; give a list, [{}]",
        lambda prompts: environment().contexts(prompts),
        "abc",
        Read(r"give a list, (\[.*\])$", ast.literal_eval),
    ),
    Trial("the fluency of a probe needs a baseline; name one", fluent, False, True),
    Trial("a Dialogue is expected, such as", continued, "None", Read(r"such as (context\..*\))$")),
    Trial(
        "it must set node.score of each exchange to a Score, and return nothing",
        scored,
        True,
        False,
    ),
    Trial("return (loss, logs) with loss.backward() possible", harness, False, True),
    Trial("there are no prompts to evaluate on; name a split", evaluated, {"prompts": []}, {}),
    Trial(
        "name another folder with {}",
        evaluated,
        {"folders": ["one", "one"]},
        {"folders": ["one", "other"]},
    ),
    Trial("is a file; name a folder with {}", folder_of, "file", "folder"),
    Trial(
        "write baseline: NAME, a frozen model with the weights that the tester begins with",
        with_baseline,
        None,
        "first",
    ),
    Trial(
        "baseline {} is trained; name a frozen model",
        lambda own: make_system(section={**SECTION, "baseline": "b"}, b={**TINY, **own}),
        {"train": {"type": "local"}},
        {},
    ),
    Trial(
        "target {} is trained; name a frozen model",
        lambda own: make_system(target={**TINY, **own}),
        {"train": {"type": "local"}},
        {},
    ),
    *(
        Trial(
            "is shown nothing: the prompt is empty",
            lambda own: environment(**own).rollouts([0]),
            {"prompts": [""], "tree_width": 1},
            right,
        )
        for right in (
            Read(
                r"set red_team\.tester\.(\w+)",
                lambda name: {
                    "prompts": [""],
                    "tree_width": 1,
                    "section": {"tester": {"max_new_tokens": 4, name: "abc"}},
                },
            ),
            {"prompts": ["abc"], "tree_width": 1},
        )
    ),
    # The endpoint of programs.
    Trial("is not supported: {}; leave it out", asked, {"logit_bias": {"3": 1}}, {}),
    Trial("seed is not supported here", asked, {"seed": 1}, {}),
    Trial(
        "calls cannot be forced, since no parser of calls says how one is written; send auto, or "
        "use a parser that does, such as hermes",
        formed,
        {"tools": [TOOL], "tool_choice": "required"},
        {"tools": [TOOL], "tool_choice": "auto"},
    ),
    Trial(
        "response_format cannot be enforced beside tools, since no parser of calls says how one "
        "is written; send tool_choice none, or use a parser that does",
        formed,
        {"tools": [TOOL], "response_format": JSON},
        {"tools": [TOOL], "response_format": JSON, "tool_choice": "none"},
    ),
    Trial(
        "cannot be enforced by the service of {}; leave it out",
        served,
        {"response_format": JSON},
        {},
    ),
    Trial("is not supported by the service of {}; leave it out", served, {"min_p": 0.1}, {}),
    Trial(
        "min_new_tokens is {}, and a grammar says when an answer ends; set it to 0",
        lambda least: SamplingParams(grammar="start: /a/", min_new_tokens=least),
        2,
        0,
    ),
    Trial(
        "name either command or url, one of them",
        lambda own: McpServerSection(**own),
        {},
        {"url": "http://127.0.0.1/mcp"},
    ),
    Trial(
        "prompt_logprobs is not supported during a run; leave it out",
        asked,
        {"prompt_logprobs": 0},
        {},
    ),
    Trial(
        "has the wrong parameters ({}); write it with {}",
        lambda names: accepted_arguments(eval(f"lambda {names}: None"), "mine"),
        "client",
        Read(r"write it with (.*), and"),
    ),
    Trial(
        "--host is empty; name an address, such as",
        listening,
        ("", 0),
        Read(r"such as (\S+)$", lambda host: (host, 0)),
    ),
    Trial(
        "take another --port, or 0 for a free one",
        listening,
        ("127.0.0.1", "busy"),
        Read(r"or (0) for", lambda port: ("127.0.0.1", port)),
    ),
    Trial(
        "which there is not here; leave it out", reward, "completions, trainer_state", "completions"
    ),
    Trial("by position alone; leave the / out", reward, "completions, /", "completions"),
    Trial(
        "validate.score: no metric {}; validation gave: {}; did you mean",
        reported,
        "validation/rewrd",
        Read(r"did you mean ([\w/]+)"),
    ),
    # Models and their services.
    Trial(
        "use a tokenizer with apply_chat_template",
        lambda own: chat_tokenizer(own, "policy"),
        Plain(),
        character_tokenizer("ab", CHATTING),
    ),
    Trial("finish reason {}; use one of {}", finished, "done", Read(r"use one of (\w+)")),
    Trial(
        "take a train service that has, such as models.NAME.train: local",
        own_optimizer,
        "mine",
        Read(r"train: (\w+)$"),
    ),
    Trial(
        "values of states are needed, and the train service has no",
        values,
        {},
        Read(r"train\.(\w+)=true", lambda name: {name: True}),
    ),
    *(
        Trial(
            "ends answers at the model's own end tokens alone; write the text of",
            stop_tokens,
            {"tokens": [5]},
            right,
        )
        for right in ({"tokens": []}, {"tokens": [5], "elsewhere": True})
    ),
    Trial(
        "model {} is frozen; give models.{}.train to train it",
        lambda train: Model("policy", None, train).service(),
        None,
        "local",
    ),
    Trial(
        "model {} is frozen; give models.{}.fine_tune to",
        lambda tune: SharedModelGroup.service.fget(
            SimpleNamespace(model=SimpleNamespace(name="policy", fine_tune=tune))
        ),
        None,
        "local",
    ),
    Trial(
        "models is empty; name at least one model",
        lambda names: LanguageModelSystem.load(
            {name: {**TINY, "train": {"type": "local"}} for name in names}
            | {name: TINY for name in ["target"] if names},
            {**SECTION, "tester": {"max_new_tokens": 4, "model": "policy"}},
        ),
        [],
        Read(r"such as models\.(\w+)$", lambda name: [name]),
    ),
    Trial("resume to wait further, or raise the timeout", waited, 30.0, 90.0),
    Trial(
        "use vLLM or SGLang, the inference service transformers",
        of_jobs,
        SimpleNamespace(takes_weights=False),
        SimpleNamespace(takes_weights=True, tokenizer=character_tokenizer("ab", CHATTING)),
    ),
    Trial("merged in; leave --adapter out", exported, True, False),
    *(
        Trial("makes no advantages of them; call", shaped, (0.1, False), right)
        for right in ((0.1, True), (0, False))
    ),
    Trial("is the trained model itself; name another entry", rewritten, "policy", "reference"),
    Trial("which the trainer did not set; write {} in its", prepared, "", Read(r"write `([^`]*)`")),
    Trial(
        "make a new tensor, such as", in_place, "x.clamp_(max=1)", Read(r"such as (.*) in place of")
    ),
    # Remote services.
    *(
        Trial(
            "has no advantage; write traj['advantage'] = a number",
            advantage,
            "",
            Read(pattern, make),
        )
        for pattern, make in (
            (r"write (traj.*) = a number", "{} = 1.0".format),
            (r"or (traj.*) = one number for each", "{} = [1.0, 2.0]".format),
        )
    ),
    *(
        Trial("which holds the key of {}, is not set{}; set it, or name another", key, {}, right)
        for right in (
            Read(r"variable (\w+), which", lambda name: {"environment": {name: "x"}}),
            {"environment": {"OTHER_KEY": "x"}, "api_key": "OTHER_KEY"},
        )
    ),
    Trial("did not {} within timeout={} seconds; raise the timeout", too_late, 30.0, 90.0),
    Trial(
        "outside of the service; write token-sum",
        aggregated,
        "seq-mean-token-mean",
        Read(r"write ([\w-]+)$"),
    ),
    Trial(
        "takes its service from models.<name>.train; write it there",
        held,
        None,
        Read(r"models\.policy\.train: (\w+)\."),
    ),
    # Rollouts.
    Trial("take loop.stop() out, which", stopped, True, False),
    *(
        Trial("mask it with 0, build the trajectory with trajectory_of", sampled, {}, right)
        for right in [Read(r"finish_reason '(\w+)'", lambda reason: {"finish_reason": reason})]
    ),
    Trial(
        "give the log-probabilities of the answer, not probabilities",
        likely,
        [0.0, 0.5],
        [0.0, math.log(0.5)],
    ),
    Trial(
        "fills the context of model {} ({} tokens); lower rollout_worker.max_prompt_length",
        fits,
        9,
        3,
    ),
    Trial(
        "cannot be sent to worker processes: {}; make it picklable",
        sent,
        lambda: None,
        character_tokenizer("ab"),
    ),
    Trial(
        "no question concerns the agents {}; name one of {}",
        questions,
        {"informative": False},
        Read(r"name one of .*?(\w+)$", lambda name: {name: {"agents": "verifiers", "ask": "Why?"}}),
    ),
    Trial(
        "has the wrong signature; write {}{}",
        signature,
        "(self)",
        Read(r"write _prepare_batch(\(.*\))$"),
    ),
    Trial(
        "so that nothing is learned; write at least 2",
        warns_of_attempts,
        1,
        Read(r"at least (\d)$", int),
    ),
    # Memory.
    *(
        Trial("while it was sampled from: lower models.{}.inference", sampled_in_memory, {}, right)
        for right in (
            Read(r"models\.policy\.inference\.(\w+)", lambda name: {name: 2}),
            Read(r"rollout_worker\.max_(prompt)_length", lambda name: {name: 10}),
            Read(r"(rollout_worker\.max_response_length)", lambda _: {"answer": 4, "prompt": 40}),
        )
    ),
    *(
        Trial(says, trained_in_memory, wrong, right)
        for says, wrong, right in (
            (
                "lower {}.{}={}",
                {"micro_batch_size": 8},
                Read(r"models\.policy\.train\.(\w+)=8", lambda name: {name: 2}),
            ),
            (
                "lower {}.{}={}",
                {"micro_batch_tokens": 320},
                Read(r"models\.policy\.train\.(\w+)=320", lambda name: {name: 80}),
            ),
            (
                "set {}.micro_batch_{}",
                {},
                Read(r"set models\.policy\.train\.(micro_batch_size) below 64", lambda n: {n: 2}),
            ),
            (
                "set {}.gradient_checkpointing=true",
                {},
                Read(r"set models\.policy\.train\.(\w+)=true", lambda name: {name: True}),
            ),
            (
                "lower rollout_worker.max_response_length",
                {},
                Read(r"lower (rollout_worker\.max_response_length)", lambda _: {"tokens": 10}),
            ),
        )
    ),
    Trial(
        "does not fit into the memory of {}: take a smaller model",
        loaded_in_memory,
        {},
        {"config": {**CONFIG, "hidden_size": 8, "intermediate_size": 8}},
    ),
    Trial(
        "or set models.{}.source.dtype=bfloat16",
        loaded_in_memory,
        {},
        Read(r"set models\.policy\.source\.dtype=(\w+)$", lambda name: {"dtype": name}),
    ),
]


@pytest.mark.parametrize("trial", tiered_trials(TRIALS))
def test_what_code_recommends_helps(trial):
    trial.run()


#: Texts that name no key, value or command.
REASONS = {
    "core/text/agents/agent: call": "the id of a call",
    "as another of tools and servers; name those": "of servers: tests/core/text/agents",
    "core/text/endpoint/forms: start: {}": "a rule of a grammar",
    "core/text/endpoint/forms: call": "a rule of a grammar",
    "core/text/evaluate/pass_at_k: pass@": "the name of a metric",
    "core/text/dialogue/evaluation/report_page: first success, turn": "the head of a column",
    "core/text/dialogue/evaluation/evaluation: keep dialogues": "says what failed",
    "core/text/dialogue/evaluation/report_page: write the report": "says what failed",
    "core/text/dialogue/evaluation/report_page: make the folder": "says what failed",
    "core/text/jobs/folder: make job": "says what failed",
    "core/text/schedule/items: ": "says what a function does",
    "core/text/staged/files: write down": "says what failed",
    "core/text/staged/journal: write down": "says what failed",
    "core/text/staged/transcripts: write": "says what failed",
    "core/text/remote/datums: the trajectory of": "says which trajectory",
    "core/text/trajectory: trajectory of": "says which trajectory",
    "in the {} tokens of a conversation; leave the problem out": "names no key, value or command",
    "holds no problems; give it at least one": "names no key, value or command",
    "check the scorer, or start from a tester": "names no key, value or command",
    "send less, or ask for fewer tokens": "names no key, value or command",
    "start a new run": "of saved states that are gone",
    "or start it anew if its saved states": "of saved states that are gone",
    "give the model another name than in that phase": "of services of others",
    "let the sequence end with this phase": "of services of others",
    "give it the same models.{}.source in both": "of two phases: tests/core/text",
    "give the model the inference service that belongs": "tried with a name, plugins/tinker",
    "models.<name>.source.dtype=bfloat16": "the settings are looked at above",
    "fine_tune.train.learning_rate": "of weights that became infinite",
    "core/text/learn/losses: batch.": "refused before the run, which is tried in test_trainers.py",
    "set its level to none": "of a worker of others: tests/core/text/learn",
    "let run_agent return the final answer": "tried in tests/docs/test_foreign_names.py",
    "names no algorithm; give one": "of a trainer that others write",
    "write f(data, target), f(data, target, evaluator)": "tests/core/text/evaluate",
    "validate.pass_metric: no attempt has": "what evaluators do not say before the run",
    "is there and not empty; name a new folder": "names no key, value or command",
    "is a function of this program": "of code in a program: tests/core/text",
    "check base_url and that it runs": "of a server that is silent: tests/plugins_tinker",
    "set that variable to a valid key": "of a server that refuses a key: tests/plugins_tinker",
    "rollout_worker.processes=0": "of processes: tests/core/text/rollout",
    "core/text/preflight: write 0": "of processes: tests/core/text/rollout",
    "core/text/preflight: leave it out": "of processes: tests/core/text/rollout",
    "runs rollout workers alone; name another": "of an executor that others write",
    "processes and executor exclude each other": "tests/plugins_ray/test_without_cluster.py",
    "as trajectory_of does": "of code of a worker: tests/core/text/rollout",
    "return await worker.judged": "of code of a worker: tests/core/text/rollout",
    "written is now called demonstration_of": "of an import in code",
    "so it is what its source says; name another": "names no key, value or command",
    "raise it in config.yaml and resume": "of a run that ends by its costs: tests/trainers",
    "; return the one it was given": "names no key, value or command",
    "; return those it was given": "names no key, value or command",
    "so let the rollout worker sample at 1": "of code of a worker; configurations are tried",
    "core/text/dialogue/preflight: leave it out": "said after the words that are tried",
    "core/text/dialogue/preflight: ; leave it out": "said after the words that are tried",
    "core/text/dialogue/preflight: write models": "said after the words that are tried",
    "core/text/data/": "of data sets: tests/core/text/data",
    "core/text/publication: ": "of a hub of models",
    "run plugrl eval {} validation, or let": "of a run of networks: test_core.py",
}


@pytest.mark.parametrize("key", ["trainer.phases.2", "trainer.phases[2]"])
@pytest.mark.parametrize("below", ["red_team.scorer", "trainer.algorithm"])
def test_a_fault_of_a_phase_names_the_key_as_an_override_writes_it(key, below):
    (line,) = faults(_PHASES, (f"{key}.{below}=lexicn",))
    assert line.startswith(f"trainer.phases.2.{below} (command line): unknown ")


def test_settings_that_save_memory_are_there():
    # Those that a dry run recommends where memory runs out.
    for word in (
        "models.policy.source.dtype=bfloat16",
        "models.policy.train.gradient_checkpointing=true",
        "models.policy.train.micro_batch_size=1",
        "models.policy.train.micro_batch_tokens=64",
        "rollout_worker.max_response_length=1",
    ):
        assert faults("text", (word,)) == ()


def test_every_remedy_is_tried_or_names_nothing():
    says = {each.says for each in (*ROWS, *TRIALS)} | {"pip install"}
    assert untried("core/text", says, REASONS) == []
