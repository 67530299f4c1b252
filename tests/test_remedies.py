"""Every remedy that a message recommends is tried: what it says is done, and the fault is gone.

A row provokes a message and takes the edit from its text: ``key=value``, ``write KEY``,
``write VALUE``, ``leave it out`` and ``did you mean KEY?`` are read. What is said otherwise, such
as "lower it", the row does itself.
"""

from __future__ import annotations

import ast
import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

import plugrl
from plugrl.core.config.aliases import KEYS, OF_ANY_LOSS
from plugrl.core.errors import PlugrlError
from plugrl.core.experiment import prepare

MODEL = {
    "source": {
        "config": {"model_type": "qwen3", "hidden_size": 8, "intermediate_size": 8}
        | {"num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1}
        | {"head_dim": 8, "max_position_embeddings": 32},
        "tokenizer": {"characters": "0123456789+="},
    }
}
TEXT = {
    "scenario": {"type": "arithmetic", "digits": 1, "validation": 4, "development": 4}
    | {"demonstrations": 4},
    "models": {"policy": {**MODEL, "train": "local"}},
    "rollout_worker": {"max_prompt_length": 4, "max_response_length": 3}
    | {"evaluator": "exact_match"},
    "data": {"batch_size": 2, "rollout_repeat_n": 4},
    "trainer": {"type": "self_hosted_grpo", "total_train_steps": 1},
    "settings": {"device": "cpu"},
}
REMOTE = TEXT | {
    "models": {"policy": {**MODEL, "train": "in_process"}},
    "trainer": {"type": "remote_api_grpo", "total_train_steps": 1},
}
#: A second model that is frozen, as a reference or a teacher is.
FROZEN = TEXT | {"models": TEXT["models"] | {"reference": MODEL}}
NETS = {
    "scenario": {"type": "gymnasium", "id": "CartPole-v1", "num_envs": 2},
    "trainer": "vanilla_ppo",
    "rl": {"frames_per_batch": 64, "num_iterations": 1},
    "settings": {"device": "cpu"},
}
BASES = {"text": TEXT, "remote": REMOTE, "frozen": FROZEN, "nets": NETS}
# A dotted key, and text that is one.
_KEY = r"[a-z_]+(?:\.[A-Za-z_][\w]*|\[\d+\])*"
_DOTTED = r"[a-z_]+(?:\.[A-Za-z_]\w*|\[\d+\])+"


@dataclass(frozen=True)
class Row:
    """What provokes a message, part of its text, and the edit where the text is no command.

    Attributes:
        words: overrides of the base; the first is what is wrong.
        says: a part of the message.
        edit: overrides that do what the message says; ``-KEY`` takes a word out. None: as it says.
        base: the configuration.
        left: what another fault may say then, which is honest news.
    """

    words: tuple[str, ...]
    says: str = ""
    edit: tuple[str, ...] | None = None
    base: str = "text"
    left: str | None = None

    def __str__(self) -> str:
        return f"{self.base}: {' '.join(self.words)}"


def _words(text: str) -> tuple[str, ...]:
    """The words of a command line, divided by the spaces outside of brackets."""
    marked, depth = "", 0
    for character in text:
        depth += (character in "[{") - (character in "]}")
        marked += "\n" if character == " " and not depth else character
    return tuple(marked.split("\n")) if marked else ()


def row(words: str, says: str = "", edit: str | None = None, **more: str) -> Row:
    """A row from command lines."""
    return Row(_words(words), says, None if edit is None else _words(edit), **more)


@functools.cache
def faults(base: str, words: tuple[str, ...]) -> tuple[str, ...]:
    """The lines of the report about a base with overrides."""
    try:
        prepare(json.loads(json.dumps(BASES[base])) if base in BASES else base, list(words))
    except PlugrlError as error:
        return tuple(getattr(error, "faults", None) or (str(error),))
    return ()


def applied(fault: str, words: tuple[str, ...]) -> tuple[str, ...]:
    """``words`` with what a fault recommends."""
    key = re.split(r" \(|: ", fault, maxsplit=1)[0]
    wrong = next((word for word in words if _same(word.partition("=")[0], key)), "")
    rest = tuple(word for word in words if word != wrong)
    value = wrong.partition("=")[2]
    meant = re.search(rf"did you mean ({_KEY})\?", fault)
    if meant:
        new = meant[1] if "." in meant[1] else key.rpartition(".")[0] + "." + meant[1]
        return (*rest, f"{new.lstrip('.')}={value}")
    said = re.findall(rf"({_DOTTED})=([^\s,;)]+)", fault.partition("; ")[2] or fault)
    if said:
        return (*words, *(f"{k}={v}" for k, v in said))
    moved = re.search(rf"write ({_DOTTED})(?:: ([^\s,;)]+))?(?=[ ,;.]|$)", fault)
    if moved:
        new = moved[1].replace("NAME", "policy")
        return (*rest, f"{new}={moved[2] or value}")
    if "leave it out" in fault:
        return rest
    written = re.search(r"write (?:only )?([^\s,;]+)", fault)
    assert written, f"no edit is read in: {fault}"
    return (*rest, f"{key}={written[1]}")


def _same(word: str, key: str) -> bool:
    return word == key or key.startswith((f"{word}.", f"{word}[")) or word.startswith(f"{key}.")


def tried(each: Row) -> str:
    """Try the remedy of a row; give the fault that it was about."""
    before = faults(each.base, each.words)
    about = [line for line in before if each.says in line]
    assert about, f"no such message; there are: {before}"
    fault = about[0]
    if each.edit is None:
        words = applied(fault, each.words)
    else:
        out = {edit[1:] for edit in each.edit if edit[0] == "-"}
        kept = [word for word in each.words if word.partition("=")[0] not in out]
        words = (*kept, *(edit for edit in each.edit if edit[0] != "-"))
    after = faults(each.base, words)
    honest = [line for line in after if each.left is None or each.left not in line]
    assert not honest, f"{fault}\n with {words}: {honest}"
    return fault


#: Rows of the table of keys whose text is no command, or that need a value or base of their own.
_REPLAY = "-rollout_worker.trajectory_load_path -rollout_worker.trajectory_format"
_KL_REWARD = "algorithm.kl.reward={coefficient: 0.1, kind: kl,controller: fixed}"
_KL_LOSS = "algorithm.kl.loss={coefficient: 0.1,kind: low_var_kl}"
_FOLDER = "there is no such folder"
_URL = "http://127.0.0.1:1/v1"
_ASK = "models.policy.inference"
_OPENAI = f"{_ASK}.type=openai"
_HOSTED = "trainer.type=self_hosted_grpo models.policy.train=local"
OF_TABLE: list[Row] = [
    row("data.mock_api_type=x", "", "-data.mock_api_type scenario=arithmetic"),
    row("rollout_worker.trajectory_load_path=x", "plugrl replay RUN STEP", _REPLAY),
    row("rollout_worker.trajectory_format=x", "plugrl replay RUN STEP", _REPLAY),
    row(
        "rollout_worker.max_sequence_length=9",
        "",
        "-rollout_worker.max_sequence_length rollout_worker.max_prompt_length=5 "
        "rollout_worker.max_response_length=4",
    ),
    *(
        row(
            f"algorithm.{key}",
            "write algorithm.kl.",
            f"-algorithm.{key.partition('=')[0]} {edit}",
            base="frozen",
        )
        for key, edit in (
            ("use_kl_in_reward=true", _KL_REWARD),
            ("kl_penalty=kl", _KL_REWARD),
            ("kl_ctrl={type: fixed}", _KL_REWARD),
            ("critic={}", _KL_REWARD),
            ("use_kl_loss=true", _KL_LOSS),
            ("kl_loss_coef=0.1", _KL_LOSS),
            ("kl_loss_type=k3", _KL_LOSS),
        )
    ),
    row("algorithm.use_kl_in_reward=true", "leave it out", "-algorithm.use_kl_in_reward"),
    row(
        "algorithm.clip_ratio=0.3",
        "",
        "-algorithm.clip_ratio algorithm.loss.clip_ratio_low=0.3 "
        "algorithm.loss.clip_ratio_high=0.3",
    ),
    row("algorithm.loss_func_type=x", "", "-algorithm.loss_func_type algorithm.loss=cispo"),
    row("algorithm.temperature=0.5", "write rollout_worker.temperature"),
    row(
        "algorithm.ppo_mini_batch_size=8",
        "",
        "-algorithm.ppo_mini_batch_size algorithm.minibatches=2",
    ),
    row(
        "algorithm.overlong_buffer={len: 1}",
        "",
        "-algorithm.overlong_buffer algorithm.overlong={buffer: 1,penalty: 1.0}",
    ),
    row(
        "algorithm.inference_service.url=x",
        "",
        "-algorithm.inference_service.url models.judge.source={config: {model_type: qwen3,"
        "hidden_size: 8,intermediate_size: 8,num_hidden_layers: 1,num_attention_heads: 1,"
        "num_key_value_heads: 1,head_dim: 8},tokenizer: {characters: '0123456789+='}}",
    ),
    *(
        row(
            f"algorithm.{key}={value}",
            OF_ANY_LOSS[key][:20],
            f"-algorithm.{key} {edit}".strip(),
            base="remote",
        )
        for key, value, edit in (
            ("loss", "clipped", "algorithm.loss_fn=ppo"),
            ("entropy_coefficient", "0.1", ""),
            ("kl", "{loss: {coefficient: 0.1}}", ""),
            ("value", "{clip: 0.2}", ""),
            ("overlong", "{buffer: 1}", ""),
            ("sampler_correction", "{level: token}", ""),
        )
    ),
    # The other half of these: a trainer that has any loss.
    *(
        row(f"algorithm.{key}={value}", "self_hosted_grpo", _HOSTED, base="remote")
        for key, value in (
            ("loss", "clipped"),
            ("entropy_coefficient", "0.1"),
            ("overlong", "{buffer: 1,penalty: 1.0}"),
            ("sampler_correction", "{level: token}"),
        )
    ),
    row(
        "trainer.teachers=[x]",
        "",
        "-trainer.teachers trainer.type=self_hosted_opd trainer.algorithm.teacher=reference",
        base="frozen",
    ),
    row("validate.data.type=torch2", "leave them out", "-validate.data.type"),
    row(
        "models.policy.train.actor={ppo_epochs: 2}",
        "",
        "-models.policy.train.actor trainer.algorithm.epochs=2",
    ),
    row(
        "models.policy.train.config={lr: 1}",
        "",
        "-models.policy.train.config models.policy.train.learning_rate=1e-5",
    ),
    *(
        row(
            f"models.policy.train.{key}=0.9",
            "",
            f"-models.policy.train.{key} models.policy.train.betas=[0.9,0.95]",
        )
        for key in ("beta1", "beta2")
    ),
    *(
        row(
            f"models.policy.inference.{key}=http://localhost:1", "this service works inside the run"
        )
        for key in ("url", "base_url", "api_key")
    ),
    row(
        "models.policy.inference.url=http://localhost:1",
        "type: openai",
        "-models.policy.inference.url models.policy.inference.type=openai "
        "models.policy.inference.base_url=http://127.0.0.1:1/v1",
        left="127.0.0.1:1",
    ),
    row(
        f"{_OPENAI} {_ASK}.url={_URL}",
        "write base_url",
        f"-{_ASK}.url {_ASK}.base_url={_URL}",
        left=_URL,
    ),
    row(
        f"{_OPENAI} {_ASK}.max_retries=3 {_ASK}.base_url={_URL}",
        "write patience",
        f"-{_ASK}.max_retries {_ASK}.patience=3",
        left=_URL,
    ),
    row(
        "models.policy.train={type: tinker, base_model: x} models.policy.train.url=http://[::1]:1",
        "write base_url",
        "-models.policy.train.url models.policy.train.base_url=http://[::1]:1",
        base="remote",
        left="write type: tinker",
    ),
    row(
        "models.policy.inference.tool_parser=hermes",
        "",
        "-models.policy.inference.tool_parser rollout_worker.type=agent "
        "rollout_worker.tool_parser=hermes",
    ),
    row(
        "models.policy.inference.reasoning_parser=think_tag",
        "",
        "-models.policy.inference.reasoning_parser rollout_worker.type=agent "
        "rollout_worker.reasoning_parser=think_tag",
    ),
    row(
        "runtime_monitor.rollout_progress_monitor={x: 1}",
        "",
        "-runtime_monitor.rollout_progress_monitor settings.progress=none",
    ),
    row("run_id=x", "", "-run_id experiment_name=x"),
    row("resume.mode=auto", "plugrl resume RUN", "-resume.mode"),
    row(
        "debug.enable_data_dump=true", "", "-debug.enable_data_dump runtime_monitor.dump_steps=[1]"
    ),
]
_READY = "trajectory_pool.check_batch_ready_function"
_SIZE = "trajectory_pool.batch_size"
#: What schemas, the check of the whole tree and the look before a run recommend.
OF_CHECKS: list[Row] = [
    row("seed=???", "write a value", "-seed seed=1"),
    row("seed=1.0", "write 1"),
    row("seed=1_000", "write 1000"),
    row("trainer.algorithm.epochs=nan", "must be a whole number", "trainer.algorithm.epochs=1"),
    row("validate.temperature=.inf", "use a finite number", "validate.temperature=1"),
    row("data.btch_size=3", "did you mean"),
    row("dta.batch_size=3", "did you mean", "-dta.batch_size data.batch_size=3"),
    row("rollout_repeat_n=4", "did you mean"),
    row("trainer.rollout_repeat_n=4", "did you mean"),
    row(
        "settings.checkpoint_path=''",
        "or null",
        "-settings.checkpoint_path settings.checkpoint_path=null",
    ),
    row(
        "environment.variables={A=B: x}",
        "leave out",
        "-environment.variables environment.variables={AB: x}",
    ),
    row("trackers=[jsonl, jsonl]", "leave one of them out", "-trackers trackers=[jsonl]"),
    row(
        "trackers={path: x}",
        "must be a list of trackers such as",
        "-trackers trackers=[{type: jsonl}]",
    ),
    row(
        "logger={jsonl: {path: x}}",
        "give `backend` too",
        "-logger logger={backend: jsonl, jsonl: {path: x}}",
    ),
    row(
        "logger.jsonl.path=x",
        "change the first tracker with trackers.0.path",
        "-logger.jsonl.path trackers=[jsonl] trackers.0.path=x",
    ),
    row("logger={backend: jsonl, path: x}", "write options as", "-logger trackers=[{type: jsonl}]"),
    row(f"{_READY}=batch_size", "needs batch_size, such as", f"{_SIZE}=8"),
    row("validate.samples=4", "set a temperature above 0", "validate.temperature=1.0"),
    row("validate.samples=4", "or samples to 1", "validate.samples=1"),
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
    row("models.policy.fine_tune=local", "leave one of them out", "-models.policy.fine_tune"),
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
    row("models.policy.source.path=x", "leave one of them out", "-models.policy.source.path"),
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
    # Remote trainers.
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
    # Small networks.
    row("rl.frames_per_batch=65", "take", "rl.frames_per_batch=66", base="nets"),
    row("scenario.id=''", "name an environment", "scenario.id=CartPole-v1", base="nets"),
    row(
        "scenario.vectorization=native scenario.wrappers=[gymnasium.wrappers:FlattenObservation]",
        "write scenario.vectorization: sync",
        base="nets",
    ),
    row(
        "scenario.type=image_classification",
        "put an override SECTION= first",
        "-scenario.type scenario= scenario.type=image_classification",
        base="nets",
        left="no multiple",
    ),
    row(
        "trainer.type=solo_agent rl=null",
        "take a scenario whose agents do",
        "scenario= scenario={type: image_classification}",
        base="nets",
    ),
    row("trainer.type=reinforce rl.clip_value=true", "leave it out", "-rl.clip_value", base="nets"),
    row("scenario=null", "needs one", "scenario={type: gymnasium, id: CartPole-v1}", base="nets"),
    row("ppo.gamma=0.9", "did you mean", base="nets"),
]
_PHASES, _JOBS = "red_team_quickstart_grpo", "arithmetic_claims_ei"
_RED = "trainer.phases.2"
#: What those say that red-team, train by jobs or learn from preferences, and by whom.
OF_WORLDS: list[Row] = [
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
        "lower",
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
    row(
        "trainer.phases.1.name=warm_start",
        "another phase is called",
        "trainer.phases.1.name=other",
        base=_JOBS,
    ),
    row("trainer.phases.1.name=null", "", "trainer.phases.1.name=other", base=_JOBS),
    row(
        "trainer.phases.0.trackers=[jsonl]",
        "belongs to the whole run",
        "-trainer.phases.0.trackers trackers=[jsonl]",
        base=_JOBS,
    ),
    row(
        "algorithm.epochs=2",
        "did you mean trainer.phases[0].trainer.algorithm",
        "-algorithm.epochs trainer.phases.0.trainer.algorithm.epochs=2",
        base="dpo",
    ),
]
#: Those that say it all by themselves.
PLAIN = [key for key in KEYS if key.instead and key.both is None and key.beside is None
         and not any(each.words[0].replace("algorithm.", "trainer.algorithm.", 1)
                     .replace("trainer.trainer.", "trainer.")
                     .startswith(key.old.replace("*", "policy")) for each in OF_TABLE)]  # fmt: skip
ROWS: list[Row] = [
    *OF_TABLE,
    *OF_CHECKS,
    *OF_WORLDS,
    *(row(f"{key.old.replace('*', 'policy')}=1", str(key.instead)[:20]) for key in PLAIN),
]


#: All of them in the tier integration, each fourth in the fast one.
TIERED = [
    each if number % 4 == 0 else pytest.param(each, marks=pytest.mark.integration)
    for number, each in enumerate(ROWS)
]


@pytest.mark.parametrize("each", TIERED, ids=str)
def test_a_remedy_helps(each):
    tried(each)


#: Files with what is wrong, part of the message, and the file as the message says it.
FILES: list[tuple[str, str, str]] = [
    ("- trainer\n", "write sections such as trainer: and indent", "trainer: {type: x}\n"),
    ("a: 1\na: 2\n", "written twice", "a: 2\n"),
    ("a: !!set {x}\n", "is not supported; write plain YAML", "a: [x]\n"),
    ("a: !mine x\n", "is not supported; write plain YAML", "a: x\n"),
    ("a: &b [1]\nc: {<<: *b}\n", "give it an alias to a mapping", "a: &b {d: 1}\nc: {<<: *b}\n"),
    ("a: x\x07\n", "write it as an escape in double quotes", 'a: "x\\a"\n'),
    ("a: ${b\n", "not a valid interpolation; write", "a: ${b}\nb: 1\n"),
    ("a: ${b\n", "for a literal", "a: \\${b\n"),
    ("a: ${nothing:b}\n", "use ${key} or ${env.NAME}", "a: ${b}\nb: 1\n"),
    ("a: ${oc.env:NO_SUCH_NAME}\n", "is not set; set it", "a: ${oc.env:NO_SUCH_NAME,default}\n"),
    ("defaults: [_self_, _self_]\n", "times; keep one", "defaults: [_self_]\n"),
    (
        "train_service: local\nmodels: {a: {}, b: {}}\ntrainer: self_hosted_grpo\n",
        "fits one model only",
        "models: {a: {train: local}, b: {}}\ntrainer: self_hosted_grpo\n",
    ),
]


@pytest.mark.parametrize(("wrong", "says", "right"), FILES)
def test_a_remedy_of_a_file_helps(wrong, says, right, tmp_path):
    def lines(text: str) -> list[str]:
        (tmp_path / "a.yaml").write_text(text, encoding="utf-8")
        try:
            prepare(tmp_path / "a.yaml")
        except PlugrlError as error:
            return list(getattr(error, "faults", None) or (str(error),))
        return []

    assert any(says in line for line in lines(wrong)), lines(wrong)
    assert not any(says in line for line in lines(right))


#: Command lines, part of the message, and the command line that it recommends.
COMMANDS: list[tuple[str, str, str]] = [
    ("validate -m self-hosted -c sft -r", "write plugrl validate sft", "validate sft"),
    ("validate sft --cfg job", "plugrl has no --cfg: write", "config show sft"),
    ("config schema section ppoo", "did you mean ppo?", "config schema section ppo"),
    ("config schema section logger", "it is another name of", "config schema section trackers"),
    ("config schema section algorithm", "its keys are those of", "config schema trainer sac"),
    ("config schema section zzzz", "; see plugrl config schema section", "config schema section"),
    ("config schema loss", "name one of the losses; see plugrl ls", "ls losses"),
    ("validate zzzz.yaml", "; see plugrl ls recipes", "ls recipes"),
    ("validate sfft", "did you mean sft", "validate sft"),
    ("validate .", "is a folder; name the YAML file in it", "validate sft"),
]


@pytest.mark.parametrize(("line", "says", "then"), COMMANDS)
def test_a_remedy_on_the_command_line_helps(line, says, then, tmp_path, monkeypatch, call):
    monkeypatch.chdir(tmp_path)
    code, _, error = call(*line.split())
    assert (code, says in error) == (2, True), error
    assert call(*then.split())[0] == 0


# Which remedies there are, by the texts of the source.

_VERB = r"(?:write|set|take|give|run:|use|lower|add|name|leave|choose|raise|drop|see plugrl)\b"
#: Parts of messages that many have, so that a row about one says nothing about another.
_COMMON = {"leave it out", "did you mean", "type: openai", "leave them out"}
#: Where a message cannot be provoked by a configuration, a file or a command alone, by the room.
ELSEWHERE = {
    "commands/_scaffold": "texts of generated packages, and their names: tests/testing",
    "commands/_templates": "texts of generated packages",
    "commands/": "needs a finished run or a source checkout: tests/commands",
    "core/config/": "of a second layer, a package or a renamed key: tests/core/config",
    "core/loaded_run": "needs a finished run",
    "core/experiment": "needs a damaged run",
    "core/sweep": "checked when a sweep begins: tests/commands/test_sweep.py",
    "core/plugins/": "of packages and files of plugin authors: tests/plugins",
    "core/protocol/": "of the code of a protocol: tests/core/protocol/test_protocol.py",
    "core/renamed_methods": "of the code of a subclass: tests/core/test_renamed_methods.py",
    "core/run/": "of a run that goes on or is resumed: tests/core/run",
    "core/sandbox": "of what a kernel lacks",
    "core/scenario": "said of a scenario in code; configurations are refused before",
    "core/tensordict/": "of environments and of code of trainers: tests/core/tensordict",
    "core/text/": "of data, answers and servers during a run: tests/core/text",
    "plugins/": "needs a server, a package that is missing or a model folder: tests/plugins_*",
    "scenarios/": "of environments and data: tests/scenarios",
    "trainers/": "of batches and runs: tests/trainers",
    "__init__": "of imports in code of users",
}


#: Rooms of the package that are read together.
ROOMS = ("core/config", "core/text", "core/tensordict", "core", "plugins", "scenarios", "")


def room_of(name: str) -> str:
    """The first of the rooms that a file is in."""
    return next(room for room in ROOMS if name.startswith(room))


def remedies(room: str) -> dict[str, list[str]]:
    """The fixed parts of all texts that recommend something, by file without its suffix."""
    found: dict[str, list[str]] = {}
    root = Path(plugrl.__file__).parent
    for path in sorted((root / room).rglob("*.py")):
        name = str(path.relative_to(root).with_suffix(""))
        if "testing" in path.parts or room_of(name) != room:
            continue
        tree, quiet = ast.parse(path.read_text(encoding="utf-8")), set()
        for node in ast.walk(tree):
            helps = isinstance(node, ast.Call) and getattr(node.func, "id", "") in _HELPS
            prose = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            if helps or prose:
                quiet |= {id(inner) for inner in ast.walk(node)}
            elif isinstance(node, ast.JoinedStr):
                quiet |= {id(inner) for inner in ast.walk(node) if inner is not node}
        for node in ast.walk(tree):
            if id(node) in quiet or not isinstance(node, (ast.Constant, ast.JoinedStr)):
                continue
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            constants = [each for each in parts if isinstance(each, ast.Constant)]
            text = "{}".join(str(each.value) for each in constants)
            if re.search(rf"[;:,] (?:or )?{_VERB}", text):
                found.setdefault(name, []).append(text)
    return found


_HELPS = {"described", "component"}
#: Files whose remedies are tried one by one: a new one needs a row, or a reason in ``NOT_HERE``.
STRICT = ("core/config/aliases", "core/config/schemas/sections", "core/text/remote/preflight")
#: Remedies of those rooms that no row can provoke.
NOT_HERE = {
    "so that nothing can be averaged": "no built-in service has such a loss: tests/trainers",
    "a step trains on data.batch_size": "only a trainer without a trajectory pool has no such key",
}


@pytest.mark.parametrize("room", ROOMS)
def test_every_remedy_has_a_row_or_a_reason(room):
    says = {each.says for each in ROWS if each.says not in _COMMON and len(each.says) > 5}
    says |= {says for _, says, _ in FILES} | {says for _, says, _ in COMMANDS}
    says |= {str(key.instead)[:20] for key in PLAIN}
    used, missing = set(), []
    for name, texts in remedies(room).items():
        for text in texts:
            if any(part in text for part in says):
                continue
            if name.startswith(STRICT):
                if not any(part in text for part in NOT_HERE):
                    missing.append(f"{name}: {text}")
                continue
            reason = next((prefix for prefix in ELSEWHERE if name.startswith(prefix)), None)
            used.add(reason)
            if reason is None:
                missing.append(f"{name}: {text}")
    assert not missing, "\n".join(missing)
    assert used - {None} == {each for each in ELSEWHERE if room_of(each) == room}
