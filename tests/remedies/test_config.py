"""Every remedy that messages about configurations recommend is tried, and helps."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

import pytest
import yaml
from remedies import MODEL, TEXT, Row, has, row, tiered, tried, untried
from trials import Read, Trial, refused, section, tiered_trials

import plugrl
from plugrl.core.config.aliases import KEYS, OF_ANY_LOSS
from plugrl.core.config.check import configure, hints_of
from plugrl.core.config.schemas.sections import DataConfig, ModelSourceConfig
from plugrl.core.config.sources.compose import compose
from plugrl.core.config.sources.files import read_small_text
from plugrl.core.config.view import HyperParameters
from plugrl.core.errors import PlugrlError
from plugrl.core.experiment import prepare
from plugrl.core.scenario import ScenarioInstance
from plugrl.core.tensordict.trainer import TensorDictTrainer

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
    row(
        "interaction_protocol=nip",
        "write scenario.protocol.type",
        "-interaction_protocol scenario.protocol.type=nip",
        base="graph_isomorphism_nip",
    ),
    row(
        "data.mock_api_type=x",
        "write scenario: arithmetic, or another",
        "-data.mock_api_type scenario=arithmetic",
    ),
    row("rollout_worker.trajectory_load_path=x", "plugrl replay RUN STEP", _REPLAY),
    row("rollout_worker.trajectory_format=x", "plugrl replay RUN STEP", _REPLAY),
    row(
        "rollout_worker.max_sequence_length=9",
        "write rollout_worker.max_prompt_length and",
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
        "write algorithm.loss.clip_ratio_low and",
        "-algorithm.clip_ratio algorithm.loss.clip_ratio_low=0.3 "
        "algorithm.loss.clip_ratio_high=0.3",
    ),
    row(
        "algorithm.loss_func_type=x",
        "write algorithm.loss, such as clipped or",
        "-algorithm.loss_func_type algorithm.loss=cispo",
    ),
    row("algorithm.temperature=0.5", "write rollout_worker.temperature"),
    row(
        "algorithm.ppo_mini_batch_size=8",
        "write algorithm.minibatches, optimizer",
        "-algorithm.ppo_mini_batch_size algorithm.minibatches=2",
    ),
    row(
        "algorithm.overlong_buffer={len: 1}",
        "write algorithm.overlong with buffer and",
        "-algorithm.overlong_buffer algorithm.overlong={buffer: 1,penalty: 1.0}",
    ),
    row(
        "algorithm.inference_service.url=x",
        "write another entry of models, such as",
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
        "write the teacher as an entry of models",
        "-trainer.teachers trainer.type=self_hosted_opd trainer.algorithm.teacher=reference",
        base="frozen",
    ),
    row(
        "validate.data.type=torch2",
        "write data_files for files, and leave them",
        "-validate.data.type",
    ),
    row(
        "models.policy.train.actor={ppo_epochs: 2}",
        "write its keys in trainer.algorithm, such",
        "-models.policy.train.actor trainer.algorithm.epochs=2",
    ),
    row(
        "models.policy.train.config={lr: 1}",
        "write its keys, such as learning_rate, in",
        "-models.policy.train.config models.policy.train.learning_rate=1e-5",
    ),
    *(
        row(
            f"models.policy.train.{key}=0.9",
            "write betas, a list of two numbers",
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
        "with rollout_worker.type: agent",
        "-models.policy.inference.tool_parser rollout_worker.type=agent "
        "rollout_worker.tool_parser=hermes",
    ),
    row(
        "models.policy.inference.reasoning_parser=think_tag",
        "with rollout_worker.type: agent",
        "-models.policy.inference.reasoning_parser rollout_worker.type=agent "
        "rollout_worker.reasoning_parser=think_tag",
    ),
    row(
        "runtime_monitor.rollout_progress_monitor={x: 1}",
        "write settings.progress",
        "-runtime_monitor.rollout_progress_monitor settings.progress=none",
    ),
    row("run_id=x", "write experiment_name, or plugrl resume", "-run_id experiment_name=x"),
    row("resume.mode=auto", "plugrl resume RUN", "-resume.mode"),
    row(
        "debug.enable_data_dump=true",
        "write runtime_monitor.dump_steps, or",
        "-debug.enable_data_dump runtime_monitor.dump_steps=[1]",
    ),
]

_READY = "trajectory_pool.check_batch_ready_function"
_SIZE = "trajectory_pool.batch_size"
_JOBS = "arithmetic_claims_ei"
#: What schemas and the check of the whole tree recommend.
_SOURCE = yaml.safe_dump(MODEL["source"], default_flow_style=True, width=9999).strip()
OF_CHECKS: list[Row] = [
    row("seed=???", "write a value", "-seed seed=1"),
    *(
        row(f"settings.{key}={folder}", says, f"settings.{key}=runs")
        for key in ("runs_folder", "checkpoint_path")
        for folder, says in (
            ("/dev/null", "{} is not a folder; {}"),
            ("/proc/runs", "{} is not writable; change its permissions or {}"),
            ("x" * 300, "{} is longer than file systems allow; {}"),
            (r'"a\0b"', "has a null character, which no path has; {}"),
        )
    ),
    row(r'environment.variables={A: "\0"}', "which no variable can hold; leave it out"),
    *(
        row(
            "models.reference.source=${models.policy.source}"
            " models.reference.source.config.hidden_size=16",
            "so that no key below it can be set; write {}={...} with all of its keys, or set keys",
            f"-models.reference.source.config.hidden_size {edit}",
            base="frozen",
        )
        for edit in (
            f"models.reference.source={_SOURCE}",
            "models.policy.source.config.hidden_size=16",
        )
    ),
    row("seed=1.0", "must be a whole number, not 1.0; write {}"),
    row("seed=１", "; write {}"),
    row("rollout_worker.temperature=1_0", "must be a number, not '1_0'; write {}"),
    row("data.max_prompt_length=5", "write it once, there", "-data.max_prompt_length"),
    row(
        "trainer.algorithm={epochs: 2,ppo_epochs: 3}",
        "write it in one place only",
        "-trainer.algorithm trainer.algorithm.epochs=2",
    ),
    row(
        "trainer.train_service={type: local} models.policy.train=local",
        "write it in one place only",
        "-trainer.train_service",
    ),
    row("trackers={jsonl: {}}", "change one by its number: {}.0", "trackers=[{type: jsonl}]"),
    row(
        "trackers={jsonl: {}}",
        "such as [{type: {}}]",
        "-trackers trackers=[jsonl] trackers.0.type=jsonl",
    ),
    row("environment.setup_script=/tmp", "is a folder; name a file", "environment.setup_script="),
    row(
        "models.polcy.source.path=x",
        "no file names it; to add it, write it in a file",
        "-models.polcy.source.path",
    ),
    row(
        "models.polcy.train=local", "did you mean", "-models.polcy.train models.policy.train=local"
    ),
    row(
        "rollout_worker={type: single_turn,custom_rollout_worker_module_path: a.py,"
        "custom_rollout_worker_class_name: A}",
        "write one of them",
        "-rollout_worker rollout_worker={type: single_turn,evaluator: exact_match}",
    ),
    row(
        "trackers=[{tpe: jsonl}]",
        "unknown key; write type, which names the ",
        "-trackers trackers=[{type: jsonl}]",
    ),
    row(
        "models.policy.adapter={r: 2} models.policy.train=null",
        " is for a trained model; give it a train service",
        "models.policy.train=local",
    ),
    row("data.batch_size:3", "; write {}={}"),
    row("+data.batch_size=3", "write {}={}"),
    row("++data.batch_size=3", "write {}={}"),
    row("~trainer.algorithm.kl", "starts with ~; write {}=null"),
    row("~trainer.algorithm.kl=", "starts with ~; write {}=null"),
    row("a_b.[x]=3", "is not a key such as data.batch_size", "-a_b.[x] data.batch_size=3"),
    row("scenario.wrappers=[a", "close the bracket", "-scenario.wrappers", base="nets"),
    row("data.batch_size=${dta.x}", "did you mean", "data.batch_size=${data.rollout_repeat_n}"),
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
    row("models.policy.fine_tune=local", "leave one of them out", "-models.policy.fine_tune"),
    row(
        "rollout_worker.type=agent rollout_worker.agent_workspace=setup.cfg",
        "is no folder; name one",
        "rollout_worker.agent_workspace=/tmp",
        left="agent_config",
    ),
    row("models.policy.source.path=x", "leave one of them out", "-models.policy.source.path"),
    row(
        "scenario.type=image_classification",
        "put an override SECTION= first",
        "-scenario.type scenario= scenario.type=image_classification",
        base="nets",
        left="no multiple",
    ),
    row("ppo.gamma=0.9", "did you mean", base="nets"),
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
    *(row(f"{key.old.replace('*', 'policy')}=1", str(key.instead)[:20]) for key in PLAIN),
]


@pytest.mark.parametrize("each", tiered(ROWS), ids=str)
def test_a_remedy_helps(each):
    tried(each)


#: Files with what is wrong, part of the message, and the file as the message says it.
FILES: list[tuple[str, str, str]] = [
    ("a: b: c\n", "quote text with a colon, and give each key its own line", 'a: "b: c"\n'),
    ("a: b: c\n", "quote text with a colon, and give each key its own line", "a:\n  b: c\n"),
    ("a: 1\n---\nb: 1\n", "keep one document; remove the --- line", "a: 1\nb: 1\n"),
    ("a: *b\n", "quote text that starts with *, or define the anchor above", 'a: "*b"\n'),
    ("a: *b\n", "quote text that starts with *, or define the anchor above", "b: &b 1\na: *b\n"),
    ("a: *\n", "quote text that starts with *", 'a: "*"\n'),
    ("a: &\n", "quote text that starts with &", 'a: "&"\n'),
    ("%x\n", "quote text that starts with %", 'a: "%x"\n'),
    ("a: !<x\n", "quote text that starts with !", 'a: "!<x"\n'),
    ("a: @x\n", "quote text that starts with this character", 'a: "@x"\n'),
    ("a:\n\tb: 1\n", "indent with spaces", "a:\n  b: 1\n"),
    ("a: 1\nb\nc: 1\n", "write key: value", "a: 1\nb: 1\nc: 1\n"),
    ("a:\n   b: 1\n  c: 1\n", "check the indentation", "a:\n  b: 1\n  c: 1\n"),
    ("a: 'b' c\n", "check the indentation, quotes", "a: b c\n"),
    ("a: 'b\n", "close the quote that is opened", "a: 'b'\n"),
    ("a: [\nb: 1\n", "close the bracket that is opened in line 1", "a: []\nb: 1\n"),
    ("1: x\n", "is not text; quote it", '"1": x\n'),
    ("", "write at least trainer: with a type", "trainer: self_hosted_grpo\n"),
    ("", "or begin with defaults: [quickstart]", "defaults: [quickstart]\n"),
    ("defaults: [1]\n", "must be a file name such as common/base", "defaults: [common/base]\n"),
    ("defaults: [quickstar]\n", "did you mean quickstart", "defaults: [quickstart]\n"),
    ("a: ${b.c}\nb: {cc: 1}\n", "did you mean b.cc?", "a: ${b.cc}\nb: {cc: 1}\n"),
    ("a: ${a}\n", "refers to itself; break the circle", "a: ${b}\nb: 1\n"),
    (
        "trainer: {type: sequence, phases: [{trainer: x}]}\n",
        "is required; write a name",
        "trainer: {type: sequence, phases: [{name: a, trainer: x}]}\n",
    ),
    (
        "models: {policy: {source: {path: a}, inference: {type: openai, api_key: <hidden>}}}\n",
        "has its value; write it",
        "models: {policy: {source: {path: a}, inference: {type: openai, api_key: x}}}\n",
    ),
    ("- trainer\n", "write sections such as trainer: and indent", "trainer: {type: x}\n"),
    ("a: 1\na: 2\n", "written twice", "a: 2\n"),
    ("a: !!set {x}\n", "is not supported; write plain YAML", "a: [x]\n"),
    ("a: !mine x\n", "is not supported; write plain YAML", "a: x\n"),
    ("a: &b [1]\nc: {<<: *b}\n", "give it an alias to a mapping", "a: &b {d: 1}\nc: {<<: *b}\n"),
    ("a: x\x07\n", "write it as an escape in double quotes", 'a: "x\\a"\n'),
    ("a: ${b\n", "not a valid interpolation; write", "a: ${b}\nb: 1\n"),
    ("a: ${b\n", "for a literal", "a: \\${b\n"),
    ("a: ${nothing:b}\n", "use ${key} or ${env.NAME}", "a: ${b}\nb: 1\n"),
    (
        "a: ${oc.env:NO_SUCH_NAME}\n",
        "set it{}, or write ${oc.env:{},default}",
        "a: ${oc.env:NO_SUCH_NAME,default}\n",
    ),
    ("trainer:dpo\n", "write {}: {}, with a space", "trainer: dpo\n"),
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

    assert any(has(line, says) for line in lines(wrong)), lines(wrong)
    assert not any(has(line, says) for line in lines(right))


@dataclass
class Renamed:
    """A section with an old name."""

    RENAMED: ClassVar[dict[str, str]] = {"learning_rate": "lr"}
    lr: float = 0.1


def own(schema):
    """A component with a section of its own."""
    return type("Own", (), {"Config": schema})


def reading(data):
    with TemporaryDirectory() as folder:
        file = Path(folder, "a.yaml")
        if data is None:
            os.mkfifo(file)
        else:
            file.write_bytes(data)
        read_small_text(file)


def annotated(defined):
    annotations = {"own": int if defined else "Nowhere"}
    hints_of(dataclass(type("Section", (), {"__annotations__": annotations, "own": 1})))


def free(key):
    """The first line about a key that no schema describes, of a trainer with free keys."""
    with TemporaryDirectory() as folder:
        file = Path(folder, "mine.py")
        file.write_text(
            "from plugrl.trainers.self_hosted_grpo import SelfHostedGrpoTrainer\n"
            "class Mine(SelfHostedGrpoTrainer):\n    pass\n",
            encoding="utf-8",
        )
        own = {"custom_trainer_module_path": str(file), "custom_trainer_class_name": "Mine"}
        given = TEXT | {"trainer": own | {"total_train_steps": 1, "algorithm": {key: 2}}}
        refused(next(iter(prepare(given).validated.unchecked_lines), None))


def defaults_of(times):
    """Files that name the next one so often, down to a last one."""
    with TemporaryDirectory() as folder:
        for number in range(16):
            named = ", ".join([f"f{number + 1}"] * times)
            Path(folder, f"f{number}.yaml").write_text(f"defaults: [{named}]\n", encoding="utf-8")
        Path(folder, "f16.yaml").write_text("seed: 1\n", encoding="utf-8")
        compose(Path(folder, "f0.yaml"))


def section_of_a_trainer(sections):
    """Read a section of one's own in a trainer that declares ``sections``."""

    class Mine(TensorDictTrainer):
        def train(self):
            self.hyper_params.mine  # noqa: B018

    Mine.sections = {**TensorDictTrainer.sections, **sections}
    task = ScenarioInstance(name="mine", make_environment=lambda split: None)
    Mine(scenario_instance=task).train()


#: What code says, and what it takes instead.
TRIALS = [
    Trial(
        "; declare a section that a trainer reads in its `sections`",
        section_of_a_trainer,
        {},
        {"mine": dataclasses.make_dataclass("MineConfig", [("k", int, 3)])},
    ),
    Trial("each counted as often as it is named; name each once", defaults_of, 2, 1),
    Trial("; see plugrl ls recipes", compose, "zzzz", "sft"),
    Trial("did you mean", compose, "sfft", Read(r"did you mean (\w+)\?")),
    Trial(
        " is a folder; name the YAML file in it",
        compose,
        Path(plugrl.__file__).parent / "recipes",
        Path(plugrl.__file__).parent / "recipes" / "sft.yaml",
    ),
    *(
        Trial(
            says,
            lambda overrides: compose("sft", overrides),
            wrong,
            Read(r"a list such as (\[.*?\])", json.loads),
        )
        for says, wrong in (
            ("{} must be a list such as {}, not {}", "seed=1"),
            ("{} must be a list such as {}; it holds {}", [1]),
        )
    ),
    Trial(
        "a {} cannot be written in a configuration; give plain values",
        lambda value: refused(next(iter(compose({"trainer": {"a": value}}).faults), None)),
        object(),
        1,
    ),
    Trial("save it as UTF-8", reading, "a: é".encode("latin-1"), "a: é".encode()),
    Trial("not a regular file; name a file of text", reading, None, b"a: 1"),
    Trial("; define what they name at module level", annotated, False, True),
    Trial(
        "is the old name of {}; write only {}",
        lambda keys: configure(own(Renamed), dict.fromkeys(keys, 0.1)),
        ["lr", "learning_rate"],
        Read(r"write only (\w+)", lambda name: [name]),
    ),
    Trial(
        "did you mean {}?",
        lambda key: HyperParameters({"rl": {"gamma": 0.9}})["rl"][key],
        "gama",
        Read(r"did you mean (\w+)\?"),
    ),
    Trial("did you mean {}?", free, "epoch", Read(r"did you mean (\w+)\?")),
    Trial(
        " is hub, so name must name a data set, owner/name",
        section(own(DataConfig), type="hub"),
        {},
        Read(r"name a data set, (\S+)$", lambda name: {"name": name}),
    ),
    Trial(
        " needs model_type, such as qwen3",
        lambda kind: configure(own(ModelSourceConfig), {"config": {"hidden_size": 8, **kind}}),
        {},
        Read(r"such as (\w+)", lambda kind: {"model_type": kind}),
    ),
]


@pytest.mark.parametrize("trial", tiered_trials(TRIALS))
def test_a_remedy_of_code_helps(trial):
    trial.run()


@pytest.mark.integration
def test_a_setup_script_exports_what_a_configuration_reads(tmp_path, call):
    script, file = tmp_path / "setup.sh", tmp_path / "a.yaml"
    script.write_text("export PLUGRL_OWN_SEED=3\n", encoding="utf-8")
    lines = ["defaults: [quickstart]", "environment: {setup_script: setup.sh}"]
    file.write_text("\n".join([*lines, "seed: ${oc.env:PLUGRL_OWN_SEED}", ""]), encoding="utf-8")
    assert _EXPORT in call("validate", file)[2]
    assert call("validate", file, "--setup")[0] == 0


_EXPORT = ", let environment.setup_script export it (plugrl validate --setup runs it)"
#: Texts that are short, by their files: what the rows above say of them is in many texts.
SHORT = {
    "core/config/aliases: leave it out",
    "core/config/sources/files: name another folder",
    "core/config/sources/lookup: ; did you mean {}?",
    "core/config/sources/origins: ; did you mean {}?",
    "core/config/validated: ; did you mean {}?",
    "core/config/view: ; did you mean {}?",
}
#: Texts that name no key, value or command.
REASONS = {
    "core/config/schemas/sweep: ": "tests/commands/test_search.py",
    "is no Unicode; give text in UTF-8": "of the encoding of a text in code",
    "not Unicode at column {}: {}; write the text in UTF-8": "of the encoding of a terminal",
    "core/config/schemas/describe: list of": "the sort of a value, in a table of options",
    "a step trains on data.batch_size": "only a trainer without a trajectory pool has no such key",
    "write models.NAME.source, which has": "only a trainer that reads no models has no such key",
}


def test_every_remedy_is_tried_or_names_nothing():
    says = {each.says for each in (*ROWS, *TRIALS)} | {says for _, says, _ in FILES} | SHORT
    says.add(_EXPORT)
    assert untried("core/config", says, REASONS) == []
