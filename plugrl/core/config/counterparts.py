"""Keys that people know from other trainers: what to write instead, where nothing means the same.

Keys with the same meaning are second spellings; see :mod:`plugrl.core.config.aliases`.
"""

from __future__ import annotations

from typing import Any

from plugrl.core.config.origins import KeyPath, dotted

_OUT = "leave it out"
_HERE = f"the service works inside the run; {_OUT}"
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

#: By canonical path, a model's name as ``*``: why there is no such key, and the remedy.
REMEDIES: dict[str, str] = {
    "data.num_workers": f"data is read inside the run; {_OUT}",
    "data.keep_batch_order": f"the order is always kept; {_OUT}",
    "data.drop_last": f"an epoch goes over into the next one, so nothing is dropped; {_OUT}",
    "data.tokenizer_path": "write models.NAME.source, which has the tokenizer",
    "data.mock_api_type": "write a scenario such as arithmetic, whose problems are made up",
    "data.max_response_length": "write rollout_worker.max_response_length",
    "environment.require_setup_script": f"a script that is written must be there; {_OUT}",
    "rollout_worker.num_workers": f"one worker answers all prompts of a step together; {_OUT}",
    "rollout_worker.save_trace": f"attempts are in samples/ of the run folder; {_OUT}",
    "rollout_worker.trace_path": f"attempts are in samples/ of the run folder; {_OUT}",
    "rollout_worker.trajectory_load_path": "write plugrl replay RUN STEP on the command line",
    "rollout_worker.trajectory_format": "write plugrl replay RUN STEP on the command line",
    "rollout_worker.resource": "write rollout_worker.processes",
    "rollout_worker.need_llm_inference": f"every worker has an inference service; {_OUT}",
    "rollout_worker.tokenizer": "write models.NAME.source, which has the tokenizer",
    "rollout_worker.max_sequence_length": "write max_prompt_length and max_response_length",
    "trainer.algorithm.batch_size": "a step trains on data.batch_size x data.rollout_repeat_n"
    " answers; leave it out, or divide them with algorithm.minibatches",
    "trainer.algorithm.use_kl_in_reward": _KL,
    "trainer.algorithm.kl_penalty": _KL,
    "trainer.algorithm.kl_ctrl": _KL,
    "trainer.algorithm.critic": _KL,
    "trainer.algorithm.use_kl_loss": _KL_LOSS,
    "trainer.algorithm.kl_loss_coef": _KL_LOSS,
    "trainer.algorithm.kl_loss_type": _KL_LOSS,
    "trainer.algorithm.clip_ratio": "write algorithm.loss.clip_ratio_low and clip_ratio_high",
    "trainer.algorithm.loss_func_type": "write algorithm.loss, such as clipped or cispo",
    "trainer.algorithm.temperature": "write rollout_worker.temperature; training takes the same",
    "trainer.algorithm.ppo_mini_batch_size": "write algorithm.minibatches, optimizer steps a pass",
    "trainer.algorithm.overlong_buffer": "write algorithm.overlong with buffer and penalty",
    "trainer.algorithm.inference_service": "write another entry of models, such as"
    " models.reference.source",
    "trainer.teachers": "write the teacher as an entry of models without a train service, such as"
    " models.teacher.source, and its name as trainer.algorithm.teacher",
    **{f"trainer.algorithm.{key}": instead for key, instead in OF_ANY_LOSS.items()},
    "trainer.sync_weight_path": f"weights are handed over in memory; {_OUT}",
    "weight.sync_weight_path": f"weights are handed over in memory; {_OUT}",
    "weight.sync_method": f"weights are handed over in memory; {_OUT}",
    "weight.validate_freq": "write validate.every",
    "validate.data.shuffle": f"held-out problems keep their order; {_OUT}",
    "validate.data.type": "write data_files for files, and leave them out for the scenario",
    "validate.data.batch_size": "write validate.data.limit to use fewer problems",
    "validate.eval": "write validate.every",
    "models.*.train.url": _HERE,
    "models.*.train.model_tag": f"models.NAME says which model it is; {_OUT}",
    "models.*.train.world_size": f"the service local uses one device; {_OUT}",
    "models.*.train.actor": "write its keys in trainer.algorithm, such as loss, kl and epochs, and"
    " in the service itself, such as learning_rate",
    "models.*.train.config": "write its keys, such as learning_rate, in the service itself",
    "models.*.train.beta1": "write betas, a list of two numbers",
    "models.*.train.beta2": "write betas, a list of two numbers",
    "models.*.inference.url": _SERVER,
    "models.*.inference.base_url": _SERVER,
    "models.*.inference.api_key": _SERVER,
    "models.*.inference.max_retries": "write patience, in seconds, of the inference service openai",
    "models.*.inference.tool_parser": "write rollout_worker.tool_parser",
    "models.*.inference.reasoning_parser": "write rollout_worker.reasoning_parser",
    "models.*.inference.parse_tool_call_arguments": f"arguments are always read; {_OUT}",
    "rollout_worker.enable_trace_prefix_merge": f"turns whose tokens go on are always one; {_OUT}",
    "models.*.inference.model_tag": f"models.NAME says which model it is; {_OUT}",
    "models.*.inference.freeze_for_weight_sync": f"sampling always waits for the weights; {_OUT}",
    "runtime_monitor.exception_handling.check_interval": "a failure is known when it happens;"
    f" {_OUT}",
    "runtime_monitor.rollout_progress_monitor": "write settings.progress",
    "multi_model": f"models has one entry for each; {_OUT}",
    "run_id": "a run gets its id when it begins; write experiment_name, or plugrl resume RUN on the"
    " command line",
    "resource": f"plugrl starts no machines; {_OUT}",
    "resume": "write plugrl resume RUN on the command line",
    "debug": "write runtime_monitor.dump_steps, or plugrl --debug on the command line",
    "launch_mode": f"a run is one process; {_OUT}",
}

#: By path as written: values that ask for what happens anyway, so that the key is dropped.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "validate.data.type": ("torch", "files"),
    "validate.data.shuffle": (False,),
    "validate.eval.type": ("default",),
    "trainer.algorithm.use_kl_in_reward": (False,),
    "environment.require_setup_script": (True,),
    "trainer.algorithm.use_kl_loss": (False,),
}


def remedy(path: KeyPath) -> str | None:
    """Say why there is no key ``path`` and what to write instead; ``None``: nothing is known."""
    if path[:1] == ("models",) and len(path) > 2:
        path = ("models", "*", *path[2:])
    return REMEDIES.get(dotted(path))
