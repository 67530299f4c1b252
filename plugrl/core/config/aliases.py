"""Keys and names that people write otherwise than plugrl, in one table.

:mod:`plugrl.core.config.canonical` reads it: guides, other trainers and earlier versions are
understood, and what means nothing here is told what to write instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Key:
    """A key that is written otherwise.

    Attributes:
        old: as it is written; of rows further down, as rows above left it. ``*`` is any model.
        new: where it belongs, ``None`` for nowhere. ``*`` is the one model.
        value: other spellings of its values; or gives the value for ``new``, and raises a
            ``ValueError`` that says what is wrong with the one written.
        drop: values that ask for what happens anyway, so that the key goes.
        instead: why there is no such key and what to write, where it could not be moved.
        both: what holds where ``new`` is written too, in any file. ``equal``: both have the same
            value. ``merged``: they are one mapping, in which the later layer counts. By default
            they exclude each other in one layer, and the later layer counts.
        own: whether a component of the user's own in this section may have such a key, which then
            does not move.
        beside: a key that the section has, where ``instead`` helps; ``None``: it helps everywhere.
        replaces: keys beside ``new`` that go when it is set.
        warns: whether the key goes away some day.
    """

    old: str
    new: str | None = None
    value: dict[str, Any] | Callable[[Any], Any] | None = None
    drop: tuple[Any, ...] = ()
    instead: str | None = None
    both: Literal["equal", "merged"] | None = None
    own: bool = False
    beside: str | None = None
    replaces: tuple[str, ...] = ()
    warns: bool = False


def _trackers(value: Any) -> list[Any]:
    """``logger: {backend: [a, b], a: {...}}`` as a list of trackers; the console is always on."""
    if isinstance(value, dict) and "backend" in value:
        rest = dict(value)
        names = rest.pop("backend")
        names = names if isinstance(names, list) else [names]
        entries: list[Any] = []
        for name in names:
            options = rest.pop(name, None) if isinstance(name, str) else None
            entries.append({"type": name, **options} if isinstance(options, dict) else name)
        if rest:
            raise ValueError(f"unknown keys: {', '.join(rest)}; write options as `trackers` does")
        value = entries
    elif isinstance(value, dict) and value and "type" not in value:
        key = next((f".{k}" for v in value.values() if isinstance(v, dict) for k in v), "")
        remedy = f"give `backend` too, or change the first tracker with trackers.0{key}"
        raise ValueError(f"has no `backend`, which says which trackers are used; {remedy}")
    elif not isinstance(value, list):
        value = [] if value is None else [value]
    return [item for item in value if item != "console"]


def _evaluator(value: Any) -> dict[str, Any]:
    """``file.py:Class`` as an evaluator given by its file."""
    path, colon, name = value.rpartition(":") if isinstance(value, str) else (None, value, None)
    if value is not None and not (colon and path and name and name.isidentifier()):
        raise ValueError(f"must be file.py:ClassName, not {value!r}")
    return {"custom_evaluator_module_path": path, "custom_evaluator_class_name": name}


def _switch(on: Any, off: Any) -> Callable[[Any], Any]:
    def value(written: Any) -> Any:
        if written is not None and not isinstance(written, bool):
            raise ValueError(f"must be true or false, not {written!r}")
        return on if written else off

    return value


def _no(old: str, instead: str, *drop: Any, beside: str | None = None) -> Key:
    return Key(old, instead=instead, drop=drop, beside=beside)


def _text(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ValueError(f"must be text, not {value!r}")
    return value


_OUT = "leave it out"
_HERE = f"the service works inside the run; {_OUT}"
_MEMORY = f"weights are handed over in memory; {_OUT}"
_SAMPLES = (
    "attempts are in samples/ of the run folder; write settings.runs_folder, and"
    " settings.rollout_samples for more of them"
)
_REPLAY = "write plugrl replay RUN STEP on the command line"
_BETAS = "write betas, a list of two numbers"
_SERVER = (
    "this service works inside the run; leave it out, or write type: openai with base_url to ask a "
    "server"
)
_KL = (
    "write algorithm.kl.reward with coefficient, kind, controller, target and horizon, and the"
    " reference as models.reference.source; leave it out for no penalty"
)
_KL_LOSS = (
    "write algorithm.kl.loss with coefficient and kind, and the reference as"
    " models.reference.source; leave it out for no such term"
)
_SELF_HOSTED = "or trainer.type: self_hosted_grpo with a train service such as local"

#: Keys of ``trainer.algorithm`` that need the gradient of any loss: what to write where a service
#: takes its own losses by name.
OF_ANY_LOSS: dict[str, str] = {
    "loss": "the train service takes its own losses by name; write algorithm.loss_fn, such as"
    f" importance_sampling, ppo or cispo, and loss_fn_config, {_SELF_HOSTED}",
    "entropy_coefficient": f"no named loss has an entropy term; leave it out, {_SELF_HOSTED}",
    "kl": f"no named loss has a KL term; subtract it from the advantages, {_SELF_HOSTED}",
    "value": f"no named loss trains a value head; leave it out, {_SELF_HOSTED}",
    "overlong": f"an evaluator can shape rewards by length; leave it out, {_SELF_HOSTED}",
    "sampler_correction": "losses such as importance_sampling correct for the sampler already;"
    f" leave it out, {_SELF_HOSTED}",
}

_SOURCE: dict[str, Any] = {
    "new": "models.*.source.path",
    "value": _text,
    "both": "equal",
    # What a file below built for want of a model goes with its tokenizer.
    "replaces": ("config", "tokenizer"),
}

#: In the order in which they are moved.
KEYS: tuple[Key, ...] = (
    # Sections and keys with a place of their own here.
    Key("logger", "trackers", _trackers),
    Key("algorithm", "trainer.algorithm"),
    Key("trainer.algorithm.type", "trainer.algorithm.advantage"),
    Key("train_service", "trainer.train_service"),
    Key("service.train_service", "trainer.train_service"),
    *(
        Key(f"service.{vendor}_service.{key}", f"trainer.train_service.{key}")
        for vendor in ("tinker", "weaver")
        for key in ("base_url", "api_key", "lora_rank", "training_mode")
    ),
    *(
        Key(f"trainer.train_service.config.{key}", f"trainer.train_service.{key}")
        for key in ("learning_rate", "eps", "weight_decay", "grad_clip_norm", "beta1", "beta2")
    ),
    Key("trainer.train_service.config.loss_fn", "trainer.algorithm.loss_fn"),
    Key("trainer.train_service.config.kl_penalty_coef", "trainer.algorithm.kl_penalty_coef"),
    Key("trainer.train_service.config.kl_discount_factor", "trainer.algorithm.kl_discount_factor"),
    Key("trainer.algorithm.kl_penalty_coef", "trainer.algorithm.advantage.coefficient"),
    Key("trainer.algorithm.kl_discount_factor", "trainer.algorithm.advantage.discount"),
    Key("trainer.algorithm.entropy_coeff", "trainer.algorithm.entropy_coefficient"),
    Key("trainer.algorithm.loss_agg_mode", "trainer.algorithm.aggregation"),
    Key("trainer.algorithm.ppo_epochs", "trainer.algorithm.epochs"),
    Key("trainer.algorithm.distillation_epochs", "trainer.algorithm.epochs"),
    Key("trainer.algorithm.distillation_coeff", "trainer.algorithm.advantage.coefficient"),
    Key(
        "trainer.algorithm.do_old_log_prob_compute",
        "trainer.algorithm.sampler_correction.level",
        _switch("token", "none"),
    ),
    Key("trainer.algorithm.clip_ratio_low", "trainer.algorithm.loss.clip_ratio_low"),
    Key("trainer.algorithm.clip_ratio_high", "trainer.algorithm.loss.clip_ratio_high"),
    Key("trainer.algorithm.clip_ratio_c", "trainer.algorithm.loss.clip_ratio_dual"),
    Key("trainer.save_freq", "settings.checkpoint_every"),
    Key(
        "runtime_monitor.rollout_progress_monitor.enabled",
        "settings.progress",
        _switch("auto", "none"),
    ),
    Key("trainer.checkpoint_path", "settings.checkpoint_path"),
    Key("trainer.remove_previous_ckpt", "settings.keep_checkpoints", _switch(1, None)),
    Key("validate.eval.compute_interval", "validate.every"),
    Key("validate.eval.validate_freq", "validate.every"),
    Key("validate.validate_freq", "validate.every"),
    Key("rollout_worker.evaluator_module_path", "rollout_worker.evaluator", _evaluator),
    *(
        Key(f"rollout_worker.{key}", f"rollout_worker.evaluator.{key}")
        for key in ("custom_evaluator_module_path", "custom_evaluator_class_name")
    ),
    Key("rollout_worker.nexau_agent_config_path", "rollout_worker.agent_config"),
    Key("rollout_worker.nexau_agent_workspace", "rollout_worker.agent_workspace"),
    Key("trainer.max_prompt_length", "rollout_worker.max_prompt_length"),
    Key("trainer.max_response_length", "rollout_worker.max_response_length"),
    # Values.
    Key("data.type", "data.type", {"torch": "files"}),
    Key("environment.setup_script", "environment.setup_script", {"": None}),
    *(
        Key(
            f"red_team.custom_environment_{end}",
            f"red_team.custom_dialogue_environment_{end}",
            warns=True,
        )
        for end in ("module_path", "class_name")
    ),
    # What may be said in two places.
    Key(
        "trainer.algorithm.batch_size",
        "trajectory_pool.batch_size",
        both="equal",
        own=True,
        instead="a step trains on data.batch_size x data.rollout_repeat_n answers; leave it out, or"
        " divide them with algorithm.minibatches",
    ),
    Key(
        "rollout_worker.tokenizer",
        own=True,
        instead="write models.NAME.source, which has the tokenizer",
        **_SOURCE,
    ),
    Key("data.tokenizer_path", **_SOURCE),
    Key("trainer.algorithm.inference_service.model", **_SOURCE),
    Key("trainer.algorithm.inference_service.tokenizer", **_SOURCE),
    Key(
        "trainer.train_service.world_size",
        "resource.training.gpu_count",
        both="equal",
        own=True,
        instead="write resource.training.gpu_count, for plugrl launch",
    ),
    Key("trainer.train_service", "models.*.train", both="merged"),
    Key("service.inference_service", "models.*.inference", both="merged"),
    Key("data.max_prompt_length", "rollout_worker.max_prompt_length", both="equal"),
    # What is always so, or means nothing here.
    _no("data.num_workers", f"data is read inside the run; {_OUT}"),
    _no("data.keep_batch_order", f"the order is always kept; {_OUT}"),
    _no("data.drop_last", f"an epoch goes over into the next one, so nothing is dropped; {_OUT}"),
    _no("data.mock_api_type", "write scenario: arithmetic, or another whose problems are made up"),
    _no("data.max_response_length", "write rollout_worker.max_response_length"),
    _no(
        "environment.require_setup_script", f"a script that is written must be there; {_OUT}", True
    ),
    _no("rollout_worker.num_workers", f"one worker answers all prompts of a step together; {_OUT}"),
    Key("rollout_worker.save_trace", "settings.rollout_samples", _switch(64, 0)),
    _no("rollout_worker.trace_path", _SAMPLES),
    _no("rollout_worker.trajectory_load_path", _REPLAY),
    _no("rollout_worker.trajectory_format", _REPLAY),
    _no("rollout_worker.resource", "write rollout_worker.processes"),
    _no("rollout_worker.need_llm_inference", f"every worker has an inference service; {_OUT}"),
    _no(
        "rollout_worker.max_sequence_length",
        "write rollout_worker.max_prompt_length and rollout_worker.max_response_length",
    ),
    _no(
        "rollout_worker.enable_trace_prefix_merge",
        f"turns whose tokens go on are always one; {_OUT}",
    ),
    _no("trainer.algorithm.use_kl_in_reward", _KL, False),
    *(_no(f"trainer.algorithm.{key}", _KL) for key in ("kl_penalty", "kl_ctrl", "critic")),
    _no("trainer.algorithm.use_kl_loss", _KL_LOSS, False),
    *(_no(f"trainer.algorithm.{key}", _KL_LOSS) for key in ("kl_loss_coef", "kl_loss_type")),
    _no("trainer.algorithm.clip_ratio", "write algorithm.loss.clip_ratio_low and clip_ratio_high"),
    _no("trainer.algorithm.loss_func_type", "write algorithm.loss, such as clipped or cispo"),
    _no(
        "trainer.algorithm.temperature", "write rollout_worker.temperature; training takes the same"
    ),
    _no(
        "trainer.algorithm.ppo_mini_batch_size",
        "write algorithm.minibatches, optimizer steps a pass",
    ),
    _no("trainer.algorithm.overlong_buffer", "write algorithm.overlong with buffer and penalty"),
    _no(
        "trainer.algorithm.inference_service",
        "write another entry of models, such as models.reference.source",
    ),
    *(_no(f"trainer.algorithm.{key}", instead) for key, instead in OF_ANY_LOSS.items()),
    _no(
        "trainer.teachers",
        "write the teacher as an entry of models without a train service, such as"
        " models.teacher.source, and its name as trainer.algorithm.teacher",
    ),
    _no("trainer.sync_weight_path", _MEMORY),
    _no("weight.sync_weight_path", _MEMORY),
    _no("weight.sync_method", _MEMORY),
    _no("weight.validate_freq", "write validate.every"),
    _no("validate.data.shuffle", f"held-out problems keep their order; {_OUT}", False),
    _no(
        "validate.data.type",
        "write data_files for files, and leave them out for the scenario",
        "torch",
        "files",
    ),
    _no("validate.data.batch_size", "write validate.data.limit to use fewer problems"),
    Key("validate.eval.type", drop=("default",)),
    _no("validate.eval", "write validate.every"),
    _no("models.*.train.url", "write base_url, the address of the service", beside="base_url"),
    _no("models.*.train.url", _HERE),
    _no("models.*.train.model_tag", f"models.NAME says which model it is; {_OUT}"),
    _no("models.*.train.world_size", "write resource.training.gpu_count, for plugrl launch"),
    _no(
        "models.*.train.actor",
        "write its keys in trainer.algorithm, such as loss, kl and epochs, and in the"
        " service itself, such as learning_rate",
    ),
    _no("models.*.train.config", "write its keys, such as learning_rate, in the service itself"),
    _no("models.*.train.beta1", _BETAS),
    _no("models.*.train.beta2", _BETAS),
    _no("models.*.inference.url", "write base_url, the address of the server", beside="base_url"),
    _no("models.*.inference.url", _SERVER),
    _no("models.*.inference.base_url", _SERVER),
    _no("models.*.inference.api_key", _SERVER),
    _no("models.*.inference.max_retries", "write patience, in seconds", beside="patience"),
    _no("models.*.inference.max_retries", _HERE),
    *(
        _no(
            f"models.*.inference.{key}",
            f"write rollout_worker.{key}, with rollout_worker.type: agent",
        )
        for key in ("tool_parser", "reasoning_parser")
    ),
    _no("models.*.inference.parse_tool_call_arguments", f"arguments are always read; {_OUT}"),
    _no("models.*.inference.model_tag", f"models.NAME says which model it is; {_OUT}"),
    _no(
        "models.*.inference.freeze_for_weight_sync",
        f"sampling always waits for the weights; {_OUT}",
    ),
    _no(
        "runtime_monitor.exception_handling.check_interval",
        f"a failure is known when it happens; {_OUT}",
    ),
    _no("runtime_monitor.rollout_progress_monitor", "write settings.progress"),
    _no("multi_model", f"models has one entry for each; {_OUT}"),
    _no(
        "run_id",
        "a run gets its id when it begins; write experiment_name, or plugrl resume RUN on"
        " the command line",
    ),
    _no("dataset", f"a task has its data, and files of problems are data.data_files; {_OUT}"),
    _no("interaction_protocol", "write scenario.protocol.type"),
    _no("resume", "write plugrl resume RUN on the command line"),
    _no("debug", "write runtime_monitor.dump_steps, or plugrl --debug on the command line"),
    _no("launch_mode", f"a run is one process; {_OUT}"),
)

#: Second spellings of a component's name, by kind, for when no package provides it.
COMPONENT_NAMES: dict[str, dict[str, str]] = {
    "rollout_worker": {"nexau": "agent", "simple": "single_turn"},
    "parser": {"qwen": "hermes", "qwen25": "hermes", "qwen3": "hermes"},
    "inference_service": {"vllm": "openai", "sglang": "openai"},
    "train_service": {"nextrainer": "local", "self-hosted": "local", "self_hosted": "local"},
}

#: Kinds that may write `backend` for `type`.
BACKEND_KINDS = frozenset({"train_service", "inference_service", "tracker"})
