"""The root sections of a configuration and their schemas.

A trainer reads the sections that it names in ``Trainer.sections``; the ones in ``COMMON``
belong to every run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from plugrl.core.config.schemas.resource import ResourceConfig
from plugrl.core.config.schemas.schema import component, described
from plugrl.core.config.schemas.sweep import SweepConfig
from plugrl.core.config.schemas.temperature import check_temperature
from plugrl.core.errors import ConfigError


@dataclass
class PluginsConfig:
    """Which installed plugins the run needs, and how strict it is about them."""

    require: list[str] = described([], 'requirements such as "plugrl-x>=1.2" that must be met')
    strict: bool = described(False, "turn plugin warnings and version changes into errors")
    disable: list[str] = described([], "entry-point or distribution names that are not loaded")


@dataclass
class EnvironmentConfig:
    """What the process environment of the run looks like."""

    variables: dict[str, str] = described({}, "environment variables set before the run starts")
    setup_script: str | None = described(
        None, "shell script whose variables are set before those", file="file"
    )

    def __post_init__(self) -> None:
        _check_variables(self.variables)


def _check_variables(variables: dict[str, str]) -> None:
    for name, value in variables.items():
        if not re.fullmatch(r"[^\s=\0]+", name):
            raise ConfigError(
                f"variables has {name!r}, which is no name of an environment variable; leave "
                "out =, spaces and line breaks"
            )
        if "\0" in value:
            raise ConfigError(
                f"variables.{name} has a null character, which no variable can hold; leave it out"
            )


@dataclass
class ClusterConfig:
    """The cluster that components join whose work is done on other machines, such as `ray`."""

    address: str | None = described(
        None,
        "host:port, or auto for the one that runs on this machine; null: RAY_ADDRESS, else one of "
        "this machine that ends with the process",
    )
    namespace: str | None = described(None, "namespace of the actors; null: one of this process")
    cpus: int | None = described(
        None,
        "CPUs that a cluster of this machine hands out; null: those that there are",
        at_least=1,
        at_most=10**4,
    )
    object_store_memory: float | None = described(
        None,
        "megabytes of shared memory of a cluster of this machine; null: a share of what is free",
        at_least=80,
        at_most=1e8,
    )
    variables: dict[str, str] = described(
        {}, "environment variables of the actors, over those of `environment`"
    )
    files: list[str] = described(
        [],
        "files and folders that actors read, besides the code that the configuration names; they "
        "travel to the machines that lack them",
        file="data",
    )
    log_to_driver: bool = described(False, "show what actors print")
    start_timeout: float = described(
        180.0,
        "seconds that joining the cluster may take, and the start of an actor",
        above=0,
        at_most=1e8,
    )

    def __post_init__(self) -> None:
        _check_variables(self.variables)


@dataclass
class SettingsConfig:
    """Experiment settings: they do not change what is learned."""

    runs_folder: str = described("runs", "folder that holds the run folders")
    device: str = described("auto", "auto, cpu, cuda or cuda:N")
    torch_threads: int | str = described(
        "auto",
        "threads of torch; auto: all cores for a model of 20 million parameters or more, else one",
        at_least=1,
        at_most=1024,
    )
    deterministic: bool = described(
        False, "equal numbers from run to run on one GPU too, for a part of its speed"
    )
    progress: str = described("auto", "auto, rich, plain or none")
    checkpoint_every: int = described(
        0,
        "steps between checkpoints; 0: only after checkpoint_minutes, at stops and at the end",
        at_least=0,
        at_most=10**9,
    )
    checkpoint_minutes: float = described(
        5.0,
        "minutes after which the end of a step saves a checkpoint too; 0: never",
        at_least=0,
        at_most=1e6,
    )
    checkpoint_path: str | None = described(
        None, "folder that gets a folder of checkpoints from each run; null: the run folder"
    )
    keep_checkpoints: int | None = described(
        2,
        "newest checkpoints that stay on disk, besides the best; null: all",
        at_least=1,
        at_most=10**6,
    )
    rollout_samples: int = described(
        4,
        "attempts of each training step that are kept in samples/rollouts.jsonl, longer texts cut "
        "to 10,000 characters; 0: none",
        at_least=0,
        at_most=10_000,
    )
    deadline: float = described(
        1800.0, "seconds that one phase of a step may take", above=0, at_most=1e8
    )
    deadlines: dict[str, float] = described(
        {}, "seconds by phase name, over `deadline`", above=0, at_most=1e8
    )
    tracker_timeout: float = described(
        60.0,
        "seconds that one call of a tracker, and the end of all of them, may take",
        above=0,
        at_most=1e8,
    )
    cluster: ClusterConfig = described(ClusterConfig, "the cluster that components join")

    @classmethod
    def from_tree(cls, tree: dict[str, Any]) -> SettingsConfig:
        """The section of a resolved configuration, which holds plain mappings."""
        return cls(**{**tree, "cluster": ClusterConfig(**tree.get("cluster", {}))})

    def __post_init__(self) -> None:
        if isinstance(self.torch_threads, str) and self.torch_threads != "auto":
            raise ConfigError("torch_threads must be a number or auto")
        if self.progress not in ("auto", "rich", "plain", "none"):
            raise ConfigError("progress must be auto, rich, plain or none")
        if self.checkpoint_path is not None and not self.checkpoint_path.strip():
            raise ConfigError("checkpoint_path is empty; write a folder, or null for the run's own")


@dataclass
class ExceptionHandlingConfig:
    """What an attempt that failed means for the run."""

    enabled: bool = described(True, "false: the same as the policy continue")
    policy: Literal["stop_on_error", "stop_on_critical", "continue"] = described(
        "stop_on_critical",
        "stop_on_error: one failed attempt ends the run; stop_on_critical: max_invalid_steps does; "
        "continue: neither, such attempts are left out and counted",
    )

    @property
    def effective(self) -> str:
        """The policy that counts."""
        return self.policy if self.enabled else "continue"


@dataclass
class HealthCheckConfig:
    """Whether worker processes are alive; the code of an attempt has `rollout_worker.timeout`."""

    enabled: bool = described(False, "replace worker processes that give no sign of life")
    check_interval: float = described(30.0, "seconds between two checks", above=0, at_most=1e8)
    timeout: float = described(
        5.0,
        "seconds in which a process must give a sign of life, which it does 4 times a second",
        at_least=1,
        at_most=1e8,
    )


@dataclass
class RuntimeMonitorConfig:
    """What the guards do when something goes wrong in the middle of a run."""

    non_finite: Literal["stop", "skip"] = described(
        "stop", "non-finite loss, gradient, reward or log-probability: stop, or skip and count"
    )
    max_skipped_steps: int = described(
        10, "skipped steps in a row that end the run", at_least=1, at_most=10**9
    )
    max_invalid_steps: int = described(
        3, "steps in a row without one valid reward: end the run", at_least=1, at_most=10**9
    )
    max_worker_restarts: int = described(
        10, "worker processes that may die and be replaced", at_least=0, at_most=10**9
    )
    dead_reward_steps: int = described(
        50, "steps in a row in which every reward is equal: warn once", at_least=1, at_most=10**9
    )
    dead_coefficients: Literal["stop", "warn", "ignore"] = described(
        "stop", "a number of the loss's section reaches no gradient: stop, warn or ignore"
    )
    dump_steps: list[int] = described(
        [], "steps that are kept in dumps/ for `plugrl replay`", at_least=0, at_most=10**9
    )
    exception_handling: ExceptionHandlingConfig = described(
        ExceptionHandlingConfig, "what a failed attempt means for the run"
    )
    health_check: HealthCheckConfig = described(
        HealthCheckConfig, "whether worker processes are alive"
    )

    @classmethod
    def from_tree(cls, tree: dict[str, Any]) -> RuntimeMonitorConfig:
        """The section of a resolved configuration, which holds plain mappings."""
        inner = {"exception_handling": ExceptionHandlingConfig, "health_check": HealthCheckConfig}
        made = {key: schema(**tree[key]) for key, schema in inner.items() if key in tree}
        return cls(**{**tree, **made})


@dataclass
class CurriculumConfig:
    """Which problems come more often, by difficulty and by what was learned of them."""

    column: str | None = described(None, "column with the difficulty; null: one bucket")
    edges: list[float] = described(
        [], "numbers between the buckets, in order; empty: each value is a bucket"
    )
    advance_at: float | None = described(
        None,
        "mean reward of the newest bucket at which the next opens; null: all are open",
        at_least=-1e6,
        at_most=1e6,
    )
    window: int = described(
        64, "newest problems whose rewards `advance_at` looks at", at_least=1, at_most=10**6
    )
    weights: list[float] | None = described(
        None,
        "share of each bucket, the easiest first; null: as many as it has problems",
        at_least=0,
        at_most=1e6,
    )
    resample: Literal["none", "spread", "failure"] = described(
        "none",
        "none: epoch by epoch; else at random, more often where rewards differ (spread) or are "
        "low (failure)",
    )
    floor: float = described(
        0.1, "smallest weight of a problem that is resampled; the largest is 1", above=0, at_most=1
    )
    memory: float = described(
        0.5, "share of the earlier value in a problem's moving averages", at_least=0, below=1
    )

    def __post_init__(self) -> None:
        if self.edges != sorted(set(self.edges)):
            raise ConfigError("edges must rise")
        if self.edges and self.column is None:
            raise ConfigError("edges need column, the difficulty that they are compared with")
        if self.advance_at is not None and self.column is None:
            raise ConfigError("advance_at needs column: there is one bucket without it")
        if self.weights is not None and not any(self.weights):
            raise ConfigError("weights must have one above 0")


def check_data_set(data: Any) -> None:
    """Check the keys of a section that name a data set of the hub.

    Raises:
        ConfigError: they contradict each other.
    """
    if data.name is None:
        for key in ("subset", "revision"):
            if getattr(data, key) is not None:
                raise ConfigError(f"{key} needs name, the data set of the hub that it belongs to")
    elif data.data_files:
        raise ConfigError("name and data_files exclude each other; leave one of them out")


@dataclass
class DataConfig:
    """Where the prompts come from and in which order."""

    type: Literal["auto", "files", "hub", "scenario"] = described(
        "auto",
        "auto: files when data_files is set, the hub when name is, otherwise the scenario",
    )
    data_files: list[str] = described(
        [],
        "parquet, JSONL, JSON, CSV or Arrow files, patterns such as data/*.jsonl, folders of "
        "save_to_disk, or hf://datasets/... of the hub, in order",
        file="data",
    )
    name: str | None = described(None, "data set of the hub, owner/name")
    subset: str | None = described(None, "its subset; null: the only one, or the default")
    revision: str | None = described(
        None, "its branch, tag or commit; null: the main branch; a run keeps the commit"
    )
    split: str = described("train", "split of the data set or of the scenario's data")
    map: str | None = described(
        None,
        "file.py:function or a data_map of a package: a row to a row, a list of rows, or None to "
        "leave it out",
        file="code",
    )
    prompt_key: str = described("prompt", "column with the prompt")
    answer_key: str = described("answer", "column with the reference answer")
    filter_prompts: bool = described(False, "leave out prompts over max_prompt_length")
    keep: dict[str, list[Any]] = described(
        {}, "by column, the problems that stay: [low, high] of a number, or a list of values"
    )
    curriculum: CurriculumConfig | None = described(
        None, "draw problems by difficulty or by what was learned; null: epoch by epoch"
    )
    batch_size: int = described(32, "prompts a step", at_least=1, at_most=10**6)
    rollout_repeat_n: int = described(1, "samples a prompt", at_least=1, at_most=10**5)
    shuffle: bool = described(True, "reshuffle each epoch from the seed")
    seed: int | None = described(None, "seed of the order; null: the run's seed")

    def __post_init__(self) -> None:
        if self.type == "files" and not self.data_files:
            raise ConfigError("type is files, so data_files must name at least one file")
        if self.type == "hub" and not self.name:
            raise ConfigError("type is hub, so name must name a data set, owner/name")
        check_data_set(self)


@dataclass
class ValidationDataConfig:
    """The held-out problems."""

    data_files: list[str] = described(
        [],
        "as data.data_files; empty: the data set of name, that of data, or the scenario",
        file="data",
    )
    name: str | None = described(None, "data set of the hub; null: that of data")
    subset: str | None = described(None, "its subset; null: the only one, or the default")
    revision: str | None = described(None, "its branch, tag or commit; null: the main branch")
    splits: list[str] = described(
        ["validation"], "splits of the data set or of the scenario's data, each reported"
    )
    map: str | None = described(None, "as data.map; null: that of data", file="code")
    limit: int | None = described(None, "use only the first problems", at_least=1, at_most=10**9)

    def __post_init__(self) -> None:
        check_data_set(self)


@dataclass
class ValidateConfig:
    """Held-out evaluation before, during and after training."""

    enabled: bool | Literal["auto"] = described(
        True, "whether the run is validated at all; auto: if there are held-out problems"
    )
    validate_before_train: bool = described(True, "validate before the first step")
    every: int = described(
        0, "steps between validations; 0: only before and after", at_least=0, at_most=10**9
    )
    temperature: float = described(0.0, "sampling temperature; 0: greedy", at_least=0, at_most=100)
    samples: int = described(
        1,
        "attempts at each problem; several give pass@k and best@k for k = 1, 2, 4, ...",
        at_least=1,
        at_most=10**5,
    )
    pass_metric: str | None = described(
        None, "evaluator metric that says whether an attempt passes; null: its reward"
    )
    pass_threshold: float = described(
        1.0, "an attempt passes from this value on", at_least=-1e6, at_most=1e6
    )
    data_source_key: str = described(
        "data_source", "column by whose values metrics are given too, where problems have it"
    )
    score: str | None = described(
        None, "metric whose best checkpoint is kept; null: the reward on the first split"
    )
    score_mode: Literal["max", "min"] = described("max", "whether the best score is the highest")
    data: ValidationDataConfig = described(ValidationDataConfig, "the held-out problems")

    def __post_init__(self) -> None:
        check_temperature(self.temperature)
        if self.samples > 1 and self.temperature == 0:
            raise ConfigError(
                f"samples is {self.samples}, and with temperature 0 they are all equal; set a "
                "temperature above 0, or samples to 1"
            )


@dataclass
class TokenizerConfig:
    """A tokenizer that is built rather than loaded, and the template of either."""

    characters: str | None = described(None, "one token for each of these characters")
    chat_template: str | None = described(
        None, "Jinja that writes messages, over the tokenizer's own; null: its own"
    )

    def __post_init__(self) -> None:
        if self.chat_template is not None:
            from plugrl.core.chat_template import ChatTemplate

            try:
                ChatTemplate(self.chat_template)
            except ConfigError as error:
                raise ConfigError(f"chat_template {error}") from None


@dataclass
class ModelSourceConfig:
    """Where the weights of a model come from: a folder, or a configuration with random weights.

    Where the services keep the weights elsewhere, it may be a tokenizer alone.
    """

    path: str | None = described(
        None,
        "folder in the Hugging Face format, or a model of the hub, owner/name; the folder wins",
        file="optional",
    )
    revision: str | None = described(
        None,
        "branch, tag or commit of a model of the hub; null: main; a run keeps the commit",
    )
    config: dict[str, Any] = described({}, "transformers configuration with its model_type")
    tokenizer: TokenizerConfig = described(TokenizerConfig, "tokenizer, when path is not given")
    dtype: Literal["float32", "bfloat16", "float16"] = described("float32", "weights' data type")
    quantization: Literal["int8", "nf4"] | None = described(
        None,
        "frozen linear layers in 8 bits or, as QLoRA's, in 4, by the extra torchao; null: in dtype",
    )
    seed: int | None = described(None, "seed of random weights; null: the run's seed")

    def __post_init__(self) -> None:
        if self.revision is not None and self.path is None:
            raise ConfigError("revision needs path, a model of the hub")
        if self.path is not None and self.config:
            raise ConfigError("path and config exclude each other; leave one of them out")
        if self.path is None and not self.config and not self.tokenizer.characters:
            raise ConfigError("path (a model folder) or config (with model_type) is required")
        if self.config and "model_type" not in self.config:
            raise ConfigError("config needs model_type, such as qwen3")


@dataclass
class AdapterConfig:
    """Small matrices that are trained in place of a model's weights (LoRA, arXiv 2106.09685)."""

    type: Literal["lora"] = described("lora", "kind of adapter")
    r: int = described(
        8, "rank of the product that is added to a weight", at_least=1, at_most=10**5
    )
    alpha: float = described(16.0, "the product is scaled by alpha / r", above=0, at_most=1e6)
    dropout: float = described(
        0.0, "share of the adapter's inputs that are dropped in training", at_least=0, below=1
    )
    target_modules: list[str] | str = described(
        "auto", "names of layers, such as q_proj; auto: all linear layers but the head"
    )

    def __post_init__(self) -> None:
        if self.target_modules != "auto" and not isinstance(self.target_modules, list):
            raise ConfigError("target_modules must be auto or a list of names")
        if not self.target_modules:
            raise ConfigError("target_modules must name at least one layer, or be auto")


@dataclass
class ModelConfig:
    """One model: its weights, how it is asked, and how it is trained, if it is."""

    source: ModelSourceConfig = described(ModelSourceConfig, "weights and tokenizer")
    inference: Any = component("inference_service", "transformers", help="how it is asked")
    train: Any = component("train_service", help="how it is trained; absent: frozen")
    fine_tune: Any = component("fine_tune_service", help="how jobs train it; absent: none do")
    adapter: AdapterConfig | None = described(None, "train an adapter; null: all weights")

    def __post_init__(self) -> None:
        if self.train is not None and self.fine_tune is not None:
            raise ConfigError("train and fine_tune exclude each other; leave one of them out")
        if self.adapter is not None and self.train is None and self.fine_tune is None:
            raise ConfigError("adapter is for a trained model; give it a train service, or drop it")


@dataclass
class TrajectoryPoolConfig:
    """How finished trajectories become training batches."""

    type: Literal["default"] = described("default", "kind of pool")
    key_list: list[str] = described(
        ["group_id"],
        "trajectories that agree on these fields or data columns are a group; empty: each alone",
    )
    group_size: int | None = described(
        None, "attempts of a complete group; null: data.rollout_repeat_n", at_least=1, at_most=10**5
    )
    batch_size: int | None = described(
        None,
        "trajectories of a training batch; null: all of a loaded batch",
        at_least=1,
        at_most=10**9,
    )
    max_idle_batches: int = described(
        20,
        "loaded batches in a row that complete no group: the run ends",
        at_least=1,
        at_most=10**6,
    )
    drop_equal_groups: bool = described(
        False,
        "drop groups whose valid rewards are all equal; more prompts are loaded until a batch "
        "is ready",
    )
    check_batch_ready_function: Literal[
        "loaded_batch_finished",
        "batch_size_reached",
        "batch_size",
        "batch_size_reached_and_loaded_batch_finished",
    ] = described(
        "loaded_batch_finished",
        "when a batch is ready: all loaded prompts are answered, complete groups hold batch_size "
        "trajectories (batch_size is short for batch_size_reached), or both",
    )

    def __post_init__(self) -> None:
        if self.check_batch_ready_function != "loaded_batch_finished" and self.batch_size is None:
            rule = self.check_batch_ready_function
            raise ConfigError(
                f"check_batch_ready_function {rule} needs batch_size, such as 64; best is "
                "data.batch_size times data.rollout_repeat_n, or a multiple of it"
            )


@dataclass
class WeightConfig:
    """When and how the sampling weights follow the trained ones."""

    type: Literal["default"] = described("default", "kind of controller")
    sync_mode: Literal["sync", "batch-async", "fully-async"] = described(
        "sync",
        "sync: rollout and training alternate; batch-async: the next batch is attempted during "
        "training; fully-async: attempts go on all the time",
    )
    staleness_threshold: int = described(
        0,
        "largest version gap of a trained token; trajectories with an older one are dropped",
        at_least=0,
        at_most=10**6,
    )
    in_flight: Literal["finish", "restart", "continue"] = described(
        "finish",
        "fully-async: when weights move, open attempts are waited for, begin again, or go on with "
        "the new weights",
    )
    parity_tolerance: float | None = described(
        None,
        "largest mean log-probability difference after a sync; null: 1e-4, or 0.02 in bfloat16",
        at_least=0,
        at_most=100,
    )


#: Sections that belong to every run, with their schemas (None: a plain value or a mapping).
COMMON: dict[str, Any] = {
    "project_name": str,
    "experiment_name": str,
    "seed": int,
    "plugins": PluginsConfig,
    "environment": EnvironmentConfig,
    "settings": SettingsConfig,
    "runtime_monitor": RuntimeMonitorConfig,
    "resource": ResourceConfig,
    "sweep": SweepConfig,
    "trackers": component("tracker", many=True, help="where metrics go besides metrics.jsonl"),
    "trainer": component("trainer", help="the training algorithm"),
}

#: Sections of the text world; a trajectory trainer reads them.
TEXT: dict[str, Any] = {
    "models": dict[str, ModelConfig],
    "data": DataConfig,
    "scenario": component("scenario", help="the task"),
    "rollout_worker": component("rollout_worker", "single_turn", help="how a prompt is answered"),
    "trajectory_pool": TrajectoryPoolConfig,
    "weight": WeightConfig,
    "validate": ValidateConfig,
}

DEFAULTS: dict[str, Any] = {"project_name": "plugrl", "experiment_name": "experiment", "seed": 0}

#: What trainers call the phases of a step, which `settings.deadlines` may name.
PHASE_NAMES = (
    *("setup_script", "rollout", "train", "sync", "validate", "checkpoint"),
    *("create_jobs", "analysis", "export"),
)

#: Names that some trainer or world uses for a section; elsewhere they are at least no typing slip.
_KNOWN = """
project_name experiment_name seed plugins environment models data scenario protocol agents
rollout_worker trajectory_pool algorithm trainer weight validate service train_service
trackers logger runtime_monitor resume resource executor settings debug rl ppo spg
reinforce solo_agent text_rl red_team
"""
KNOWN = frozenset(_KNOWN.split())
