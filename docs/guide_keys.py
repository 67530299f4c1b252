"""Keys as guides for recipes write them, and what each comes to: for docs/reference/guides.md.

Every row is tried on a small configuration, so that the page says what really happens.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: Sections, and in each the keys with a value; further words of a row are what it needs beside it.
KEYS: dict[str, str] = {
    "Whole run": """
project_name=mine | experiment_name=mine | launch_mode=local | multi_model=false
environment.setup_script=task.env.sh | environment.require_setup_script=true
logger={"backend":"tensorboard"} | logger={"backend":["console","jsonl"]}
logger={"backend":"jsonl","enable_feishu_logging":true}
resume.mode=auto | resume.resume_path=x | debug.enable_data_dump=true
resource.inference.served_model_name=x | resource.training.gpu_count=4 | run_id=x
""",
    "Data": """
data.type=torch | data.data_files=[train.jsonl] | data.batch_size=4 | data.rollout_repeat_n=8
data.seed=42 | data.shuffle=true | data.prompt_key=prompt | data.filter_prompts=true
data.max_prompt_length=6 | data.max_response_length=8 | data.keep_batch_order=true
data.drop_last=true | data.tokenizer_path=x | data.num_workers=1 | data.mock_api_type=completion
""",
    "Rollout worker": """
rollout_worker.type=nexau | rollout_worker.type=simple | rollout_worker.num_workers=8
rollout_worker.custom_rollout_worker_module_path=w.py rollout_worker.custom_rollout_worker_class_name=W
rollout_worker.evaluator_module_path=judge.py:Judge
rollout_worker.nexau_agent_config_path=agent.yaml rollout_worker.type=agent
rollout_worker.nexau_agent_workspace=. rollout_worker.type=agent
rollout_worker.task_name=mine | rollout_worker.tokenizer=model | rollout_worker.temperature=1.0
rollout_worker.max_prompt_length=6 | rollout_worker.max_response_length=8
rollout_worker.max_sequence_length=14 | rollout_worker.need_llm_inference=true
rollout_worker.save_trace=true | rollout_worker.trace_path=x
rollout_worker.enable_trace_prefix_merge=true | rollout_worker.trajectory_load_path=x
rollout_worker.trajectory_format=jsonl | rollout_worker.resource.num_workers=0
""",  # noqa: E501
    "Trajectory pool": """
trajectory_pool.type=default | trajectory_pool.batch_size=8 | trajectory_pool.group_size=4
trajectory_pool.key_list=[query]
trajectory_pool.check_batch_ready_function=batch_size trajectory_pool.batch_size=8
trajectory_pool.check_batch_ready_function=loaded_batch_finished
""",
    "Algorithm": """
algorithm.type=grpo | algorithm.batch_size=8 | algorithm.do_old_log_prob_compute=true
algorithm.use_kl_in_reward=false | algorithm.use_kl_in_reward=true | algorithm.kl_penalty=kl
algorithm.critic.kl_ctrl.type=adaptive | algorithm.kl_ctrl.type=fixed
algorithm.inference_service.model=model | algorithm.inference_service.tokenizer=model
algorithm.clip_ratio=0.2 | algorithm.clip_ratio_low=0.2 | algorithm.clip_ratio_high=0.2
algorithm.clip_ratio_c=3.0 | algorithm.loss_agg_mode=token-mean | algorithm.loss_func_type=x
algorithm.entropy_coeff=0.0 | algorithm.ppo_epochs=1 | algorithm.ppo_mini_batch_size=8
algorithm.use_kl_loss=true | algorithm.kl_loss_coef=0.1 | algorithm.temperature=1.0
""",
    "Trainer": """
trainer.type=self_hosted_grpo | trainer.total_train_steps=100 | trainer.save_freq=100
trainer.checkpoint_path=checkpoints | trainer.remove_previous_ckpt=false
trainer.sync_weight_path=weights | trainer.max_prompt_length=6 | trainer.max_response_length=8
trainer.custom_trainer_module_path=t.py trainer.custom_trainer_class_name=T
trainer.algorithm.type=grpo | trainer.teachers=[] | trainer.train_service.backend=self-hosted
""",
    "Weights and validation": """
weight.type=default | weight.sync_mode=sync | weight.staleness_threshold=2
weight.sync_method=network | weight.sync_weight_path=weights | weight.validate_freq=5
validate.validate_before_train=true | validate.data.data_files=[train.jsonl]
validate.data.type=torch | validate.data.shuffle=false | validate.data.shuffle=true
validate.data.batch_size=8 | validate.eval.type=default | validate.eval.compute_interval=5
validate.eval.validate_freq=5
""",
    "Services": """
train_service.backend=nextrainer | service.train_service.backend=nextrainer
service.train_service.url=http://x | service.train_service.model_tag=policy
service.train_service.world_size=4 | service.train_service.config.learning_rate=1e-5
service.train_service.config.eps=1e-8 | service.train_service.config.weight_decay=0.01
service.train_service.config.grad_clip_norm=1.0 | service.train_service.actor.ppo_epochs=1
service.inference_service.model_tag=policy | service.inference_service.max_retries=3
service.inference_service.freeze_for_weight_sync=true
service.inference_service.tool_parser=qwen25 | service.inference_service.reasoning_parser=think_tag
service.inference_service.parse_tool_call_arguments=true
""",
    "Training behind an API": """
trainer.type=remote_api_grpo | trainer.type=remote_api_cross_entropy | trainer.type=remote_api_opd
service.train_service.config.loss_fn=importance_sampling
service.train_service.config.learning_rate=1e-5
service.train_service.config.beta1=0.9 service.train_service.config.beta2=0.95
""",
    "Runtime monitor": """
runtime_monitor.exception_handling.enabled=true
runtime_monitor.exception_handling.policy=stop_on_error
runtime_monitor.exception_handling.check_interval=10
runtime_monitor.health_check.enabled=true | runtime_monitor.health_check.check_interval=30
runtime_monitor.health_check.timeout=5.0
runtime_monitor.rollout_progress_monitor.enabled=true
runtime_monitor.rollout_progress_monitor.update_interval=1.0
runtime_monitor.rollout_progress_monitor.log_interval=10
runtime_monitor.rollout_progress_monitor.use_tqdm=true
""",
}

#: Command lines of launchers and of Hydra.
LINES = (
    "plugrl train recipe=my_task/my_task seed=1",
    "python -m plugrl.main recipe=my_task/my_task",
    "python -m plugrl.validator recipe=my_task/my_task",
    "plugrl train --config-path recipe/my_task --config-name my_task",
    "plugrl -m self-hosted -c recipe/my_task/my_task.yaml --run-nexrl",
    "plugrl -m training-service -c recipe/my_task/my_task.yaml -r -t exp-v2",
    "plugrl -m self-hosted -c recipe/my_task/my_task.yaml -r --inference-url my-service:8000",
    "plugrl train recipe=my_task/my_task --multirun seed=1,2",
    "plugrl train recipe=my_task/my_task --cfg job",
)
_MODULES = {"plugrl.main": "train", "plugrl.validator": "validate"}
_FILES = {
    "recipe/my_task/my_task.yaml": "",
    "task.env.sh": "export A=1\n",
    "train.jsonl": '{"prompt": "1+1=", "answer": "2", "query": "1"}\n',
    "agent.yaml": "type: agent\nname: mine\n",
    "judge.py": "from plugrl import Evaluator\nclass Judge(Evaluator):\n"
    "    def evaluate(self, data, evaluation_target): ...\n",
    "w.py": "from plugrl.scenarios.rollout_workers.single_turn import SingleTurnRolloutWorker\n"
    "class W(SingleTurnRolloutWorker): ...\n",
    "t.py": "from plugrl.trainers.self_hosted_grpo import SelfHostedGrpoTrainer\n"
    "class T(SelfHostedGrpoTrainer): ...\n",
}
_MODEL = {"config": {"model_type": "qwen3"}, "tokenizer": {"characters": "012+="}}
_TREE: dict[str, Any] = {
    "models": {"policy": {"source": _MODEL}},
    "data": {"data_files": ["train.jsonl"]},
    "rollout_worker": {"evaluator": "exact_match"},
    "validate": {"enabled": False},
    "service": {"train_service": {"type": "local"}},
    "trainer": {"type": "self_hosted_grpo", "total_train_steps": 1},
}
#: What a file without a trainer of that kind has instead.
_REMOTE = "Training behind an API"


def rows() -> Iterator[tuple[str, str, str]]:
    """Section, key with its value, and what it comes to."""
    with _folder():
        for section, text in KEYS.items():
            for line in text.strip().replace("\n", " | ").split(" | "):
                first, *others = line.split()
                yield section, first, outcome(first, others, remote=section == _REMOTE)


def rows_of(words: list[str]) -> list[str]:
    """What some ``key=value`` words come to, each alone."""
    with _folder():
        return [outcome(word, [], remote=False) for word in words]


def lines() -> Iterator[tuple[str, str]]:
    """A command line, and what it runs or is answered with."""
    from plugrl.commands._launcher_syntax import translate_words
    from plugrl.core.errors import UsageError

    with _folder():
        for line in LINES:
            words = line.split()
            words = [_MODULES[words[2]], *words[3:]] if words[0] == "python" else words[1:]
            try:
                yield line, f"runs `{' '.join(['plugrl', *translate_words(words)])}`"
            except UsageError as error:
                text, _, command = str(error).partition(": write ")
                yield line, f"refused: {text}: write `{command}`"


def page() -> str:
    """The page about keys and command lines, without its heading."""
    parts = ["## Command lines", "| Written | Comes to |\n| --- | --- |"]
    parts[-1] += "".join(f"\n| `{line}` | {what} |" for line, what in lines())
    before = ""
    for section, word, what in rows():
        if section != before:
            parts += [f"## {section}", "| Written | Comes to |\n| --- | --- |"]
        before = section
        parts[-1] += f"\n| `{word}` | {what} |"
    return "\n\n".join(parts)


def outcome(word: str, others: list[str], *, remote: bool = False) -> str:
    """What ``key=value`` comes to, with other words beside it."""
    from plugrl.core.errors import ConfigError
    from plugrl.core.experiment import prepare

    key = word.partition("=")[0]
    tree = {name: dict(value) for name, value in _TREE.items()}
    if remote:
        tree["service"] = {"train_service": {"type": "in_process"}}
        tree["trainer"] = {"type": "remote_api_grpo", "total_train_steps": 1}
    try:
        validated = prepare(tree, [word, *others], preflight=False).validated
    except ConfigError as error:
        mine = [line for line in error.faults if line.startswith(f"{key} (")]
        if not mine:
            mine = [line for line in error.faults if key.startswith(line.partition(" (")[0])]
        if not mine:
            raise
        return "refused: " + mine[0].partition("): ")[2].removeprefix("unknown key: ")
    return _means(key, validated)


def _covers(written: str, key: str) -> bool:
    return key == written or key.startswith(f"{written}.")


def _means(key: str, validated: Any) -> str:
    from plugrl.core.config.sources.origins import dotted

    paths = [
        dotted(path)
        for path, origin in validated.origins.items()
        if origin.source == "command line" and _covers(origin.key or dotted(path), key)
    ]
    if key in paths:
        return "accepted"
    if paths:
        return f"means `{min(paths, key=len)}`"
    return "accepted: it is what happens anyway"


@contextmanager
def _folder() -> Iterator[None]:
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as name:
        for file, text in _FILES.items():
            (Path(name) / file).parent.mkdir(parents=True, exist_ok=True)
            (Path(name) / file).write_text(text, encoding="utf-8")
        os.chdir(name)
        try:
            yield
        finally:
            os.chdir(here)
