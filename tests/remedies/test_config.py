"""Every remedy that messages about configurations recommend is tried, and helps."""

from __future__ import annotations

import pytest
from remedies import Row, row, tiered, tried, untried

from plugrl.core.config.aliases import KEYS, OF_ANY_LOSS
from plugrl.core.errors import PlugrlError
from plugrl.core.experiment import prepare

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
_JOBS = "arithmetic_claims_ei"
#: What schemas and the check of the whole tree recommend.
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
    row("models.policy.fine_tune=local", "leave one of them out", "-models.policy.fine_tune"),
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


#: Texts that name no key, value or command.
REASONS = {
    "core/config/": "not looked at yet",
}


def test_every_remedy_is_tried_or_names_nothing():
    says = {each.says for each in ROWS} | {says for _, says, _ in FILES}
    assert untried("core/config", says, REASONS) == []
