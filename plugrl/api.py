"""The Python forms: ``plugrl.GRPO(...).train()``, ``plugrl.PPO("CartPole-v1").train()``.

Each only makes the configuration that a YAML file would hold, so that whatever a file can say, a
form can say too: further keyword arguments are sections of the configuration, ``config`` is the
whole of it, and ``save`` writes it for the command line.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, ClassVar

from plugrl.core import experiment
from plugrl.core.config.sources.compose import mapping_text
from plugrl.core.config.sources.merge import inherit
from plugrl.core.config.view import plain
from plugrl.core.errors import ConfigError, UsageError
from plugrl.core.plugins.user_code.error_location import one_line
from plugrl.core.run.atomic_writes import write_text
from plugrl.results import RunResult

#: Where rows that a program gives are written, below the folder of the runs.
_ROWS = ".data"
#: Evaluations of small networks on the way, so that there is a curve.
_EVALUATIONS = 10


def train(
    config: str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    config_path: Sequence[str | Path] = (),
    reward: Any = None,
    reward_weights: Sequence[float] | None = None,
    callbacks: Iterable[Any] = (),
) -> RunResult:
    """Train as a configuration says, in a new run folder.

    Args:
        config: a YAML file, the name of a packaged recipe, or a mapping.
        overrides: ``key=value`` strings, as on the command line.
        config_path: further folders in which ``defaults`` are looked up.
        reward: what rewards an answer, in place of ``rollout_worker.evaluator``: a function
            ``f(prompts, completions, **columns)``, as of TRL, or ``f(data, target)``, or a list of
            them, whose rewards are added up. A function lives in this process: the run is resumed
            by :func:`resume` with the same one.
        reward_weights: how much each function of the list counts; None: 1.
        callbacks: hooks of this run alone: objects with methods such as ``plugrl_step_end``, or
            functions ``f(step, metrics)``. ``plugrl.StopRun`` raised there ends the run.

    Raises:
        ConfigError: the configuration is wrong.
        PluginError: a plugin that it needs cannot be used, or a function has wrong parameters.
        UsageError: an argument is none of what is listed above.
        RunError: the run failed; the log in its folder says why.
    """
    run = experiment.train(
        config,
        overrides,
        config_path=config_path,
        reward=reward,
        reward_weights=reward_weights,
        callbacks=callbacks,
    )
    return RunResult.of(run, reward)


def resume(
    run: str | Path | RunResult,
    *,
    reward: Any = None,
    callbacks: Iterable[Any] = (),
    runs_folder: str | Path = "runs",
) -> RunResult:
    """Continue a run from its newest intact checkpoint, or from the start if it has none.

    A run that is done is left unchanged.

    Args:
        run: a path, an id or the beginning of one, an experiment (its newest run), ``latest``, or
            what :func:`train` gave.
        reward: the functions that it was trained with, where it was given some.
        callbacks: as of :func:`train`; those that it began with are not saved.
        runs_folder: where a run is looked up unless a path is given.

    Raises:
        ConfigError: the folder holds no run.
        UsageError: another process owns the run, or its reward functions are missing.
        PluginError: plugins changed and ``plugins.strict`` is set.
        RunError: the run failed again.
    """
    again = experiment.resume(run, reward=reward, callbacks=callbacks, runs_folder=runs_folder)
    return RunResult.of(again, reward)


class Algorithm:
    """An algorithm and what it is trained on, as a configuration; the forms are its subclasses.

    Args:
        sections: of the configuration; they take precedence over what the form itself says, key by
            key. ``seed``, ``experiment_name`` and ``settings`` are among them.
    """

    #: The name of the trainer.
    trainer: ClassVar[str]

    def __init__(self, own: Mapping[str, Any], sections: Mapping[str, Any]) -> None:
        name = type(self).__name__.lower()
        form = {"experiment_name": name, **own, "trainer": {"type": self.trainer, **own["trainer"]}}
        try:
            self._config = inherit(form, plain(sections))
        except RecursionError:
            raise ConfigError(
                f"{type(self).__name__}: a section holds itself; give plain values"
            ) from None
        self._rows: Sequence[Mapping[str, Any]] | None = None
        self._reward: Any = None
        self._reward_weights: Sequence[float] | None = None

    @property
    def config(self) -> dict[str, Any]:
        """A copy of the configuration, as ``plugrl.train`` takes it.

        A reward that is the name or section of an evaluator is in it; functions are not.
        """
        config: dict[str, Any] = copy.deepcopy(self._config)
        if isinstance(self._reward, (str, Mapping)):
            # In place of what a section says, as in training: the options of two do not mix.
            without = inherit(config, {"rollout_worker": {"evaluator": None}})
            config = inherit(without, {"rollout_worker": {"evaluator": plain(self._reward)}})
        return config

    def save(self, path: str | Path) -> Path:
        """Write the configuration as a YAML file for ``plugrl train``.

        Raises:
            ConfigError: the configuration has values that no file can hold.
            UsageError: the file cannot be written, or the reward is a function, which no file
                can hold.
        """
        if not isinstance(path, (str, Path)):
            raise UsageError(f"path must be text or a Path, not {path!r:.60}; write 'run.yaml'")
        named = self._reward
        if named is not None and not isinstance(named, (str, Mapping)):
            raise UsageError(
                "a YAML file cannot hold a reward function; write it to a file and give "
                'reward={"custom_evaluator_module_path": "rewards.py", '
                '"custom_evaluator_class_name": "my_reward"}'
            )
        text = mapping_text(self.config)
        self._write_rows()
        path = Path(path)
        _write(path, text)
        return path

    def _train(self, changed: Mapping[str, Any], callbacks: Iterable[Any]) -> RunResult:
        self._write_rows()
        return train(
            inherit(self._config, changed),
            reward=self._reward,
            reward_weights=self._reward_weights,
            callbacks=callbacks,
        )

    def _write_rows(self) -> None:
        """Write rows of a program where the configuration looks for them, once."""
        if self._rows is None:
            return
        file = Path(self._config["data"]["data_files"][0])
        if not file.is_file():
            _write(file, _written(self._rows), folders=True)

    def __repr__(self) -> str:
        said = ", ".join(f"{name}={value!r:.60}" for name, value in self._summary().items())
        return f"{type(self).__name__}({said})"

    def _summary(self) -> dict[str, Any]:
        return {}


class LanguageModelAlgorithm(Algorithm):
    """The forms for language models.

    Args:
        model: a folder in the Hugging Face format, a model of the hub, or the section
            ``models.policy.source``, such as ``{"config": {...}}`` for random weights.
        data: files or globs (parquet, JSONL, JSON, CSV, Arrow), a data set of the hub, rows as
            mappings or a ``datasets.Dataset``, or the section ``data``. None: that of ``scenario``.
        steps: training steps.
        batch_size: prompts a step.
        learning_rate: of AdamW; None: the default of the train service.
        max_prompt_length: longest prompt in tokens.
        max_response_length: longest answer in tokens.
        validation: held-out files, splits of the data, or the section ``validate``; None: nothing
            is held out.
        sections: further sections of the configuration, which take precedence.

    Raises:
        ConfigError: model or data are none of what is listed above.
    """

    #: The rollout worker, where it is not the one that asks the model.
    worker: ClassVar[str | None] = None

    def __init__(
        self,
        model: str | Path | Mapping[str, Any],
        data: Any = None,
        *,
        steps: int = 100,
        batch_size: int = 16,
        learning_rate: float | None = None,
        max_prompt_length: int = 1024,
        max_response_length: int = 256,
        validation: Any = None,
        **sections: Any,
    ) -> None:
        if not isinstance(model, (str, Path, Mapping)):
            raise ConfigError(
                f"model is of type {type(model).__name__}; give a folder that save_pretrained "
                "wrote, or the name of a model of the hub"
            )
        source = dict(model) if isinstance(model, Mapping) else {"path": str(model)}
        settings = sections.get("settings")
        runs = settings.get("runs_folder") if isinstance(settings, Mapping) else None
        section, rows = data_section(data, str(runs or "runs"))
        worker: dict[str, Any] = {"type": self.worker} if self.worker else {}
        rate = {} if learning_rate is None else {"learning_rate": learning_rate}
        own: dict[str, Any] = {
            "models": {"policy": {"source": source, "train": {"type": "local", **rate}}},
            "data": {**section, "batch_size": batch_size},
            "rollout_worker": worker
            | {
                "max_prompt_length": max_prompt_length,
                "max_response_length": max_response_length,
            },
            "validate": _validate_section(validation),
            "trainer": {"total_train_steps": steps},
        }
        super().__init__(own, sections)
        self._rows = rows

    def train(self, steps: int | None = None, *, callbacks: Iterable[Any] = ()) -> RunResult:
        """Train in a new run folder; the errors are those of :func:`plugrl.train`.

        Args:
            steps: training steps; None: as the configuration says.
            callbacks: hooks of this run alone.
        """
        changed = {} if steps is None else {"trainer": {"total_train_steps": steps}}
        return self._train(changed, callbacks)

    def _summary(self) -> dict[str, Any]:
        source = _section(self._config, "models", "policy", "source")
        data = _section(self._config, "data")
        return {
            "model": source.get("path") or _section(source, "config").get("model_type"),
            "data": data.get("name") or data.get("data_files") or self._config.get("scenario"),
        }


class GRPO(LanguageModelAlgorithm):
    """Group-relative policy optimisation of a language model (Shao et al., arXiv 2402.03300).

    Args:
        model: see :class:`LanguageModelAlgorithm`.
        data: see there.
        reward: as of :func:`plugrl.train`: functions, or the name or section of an evaluator.
        reward_weights: how much each function of a list counts; None: 1.
        samples: answers to each prompt, which are compared with one another.
        arguments: the others of :class:`LanguageModelAlgorithm`.
    """

    trainer = "self_hosted_grpo"

    def __init__(
        self,
        model: str | Path | Mapping[str, Any],
        data: Any = None,
        reward: Any = None,
        *,
        reward_weights: Sequence[float] | None = None,
        samples: int = 8,
        **arguments: Any,
    ) -> None:
        super().__init__(model, data, **arguments)
        if "rollout_repeat_n" not in self._config["data"]:
            self._config["data"]["rollout_repeat_n"] = samples
        self._reward, self._reward_weights = reward, reward_weights


class SFT(LanguageModelAlgorithm):
    """Supervised training of a language model on answers, with cross-entropy."""

    trainer = "self_hosted_cross_entropy"
    worker = "demonstration"


class DPO(LanguageModelAlgorithm):
    """Direct preference optimisation on pairs of answers (Rafailov et al., arXiv 2305.18290).

    The reference is the model that training begins with.
    """

    trainer = "self_hosted_dpo"
    worker = "preference"

    def __init__(
        self, model: str | Path | Mapping[str, Any], data: Any = None, **arguments: Any
    ) -> None:
        super().__init__(model, data, **arguments)
        source = _section(self._config, "models", "policy", "source")
        if source:
            reference = {"source": copy.deepcopy(source)}
            self._config["models"].setdefault("reference", reference)


class ControlAlgorithm(Algorithm):
    """The forms for small networks.

    Args:
        environment: an id of Gymnasium, such as ``CartPole-v1``; ``module:Id-v0`` or
            ``file.py:Id-v0``, which is imported first, to register it; or the section ``scenario``.
        num_envs: copies that are stepped together.
        total_steps: steps over all copies.
        hidden: widths of the hidden layers; None: the default of the section ``agents``.
        learning_rate: of Adam; None: the trainer's default.
        sections: further sections of the configuration, which take precedence.

    Raises:
        ConfigError: the environment is none of what is listed above.
    """

    num_envs: ClassVar[int] = 1
    total_steps: ClassVar[int] = 100_000
    #: Widths and activation of the body.
    body: ClassVar[Mapping[str, Any]] = {"hidden": [64, 64], "activation": "tanh"}

    def __init__(
        self,
        environment: str | Mapping[str, Any],
        *,
        num_envs: int | None = None,
        total_steps: int | None = None,
        hidden: Sequence[int] | None = None,
        learning_rate: float | None = None,
        **sections: Any,
    ) -> None:
        if not isinstance(environment, (str, Mapping)):
            raise ConfigError(
                f"environment is of type {type(environment).__name__}; register it in a file with "
                'gymnasium.register(id="Mine-v0", entry_point=...) and give "file.py:Mine-v0", so '
                "that copies and later processes can make it"
            )
        scenario: dict[str, Any] = {"type": "gymnasium", "id": environment}
        if isinstance(environment, Mapping):
            scenario = dict(environment)
        if num_envs is not None or "num_envs" not in scenario:
            scenario["num_envs"] = self.num_envs if num_envs is None else num_envs
        body = {"type": "mlp", **self.body}
        if hidden is not None:
            # What is no list is refused as any other value of the section.
            wrong = isinstance(hidden, str) or not isinstance(hidden, Iterable)
            body["hidden"] = hidden if wrong else list(hidden)
        rl = {} if learning_rate is None else {"lr": learning_rate}
        own = {
            "scenario": scenario,
            "agents": {"_default": {"body": body}},
            "rl": rl,
            "trainer": {},
        }
        super().__init__(own, sections)
        validate = sections.get("validate", {})
        self._evaluates = not isinstance(validate, Mapping) or "every" in validate
        if total_steps is None and "num_iterations" not in _section(self._config, "rl"):
            total_steps = self.total_steps
        if total_steps is not None:
            self._config = inherit(self._config, self._length(total_steps))

    def train(self, total_steps: int | None = None, *, callbacks: Iterable[Any] = ()) -> RunResult:
        """Train in a new run folder; the errors are those of :func:`plugrl.train`.

        Args:
            total_steps: steps over all copies, rounded up to whole iterations; None: as the
                configuration says.
            callbacks: hooks of this run alone.
        """
        return self._train({} if total_steps is None else self._length(total_steps), callbacks)

    def _length(self, steps: int) -> dict[str, Any]:
        """The sections of a run of so many steps, evaluated ten times on the way."""
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise UsageError(f"total_steps must be a whole number above 0, not {steps!r}")
        rl = self._config["rl"]
        if rl is not None and not isinstance(rl, Mapping):
            return {}  # It is refused with the rest of the configuration.
        batch = (rl or {}).get("frames_per_batch", self._batch)
        if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
            batch = self._batch  # So is this.
        iterations = -(-steps // batch)
        length: dict[str, Any] = {"rl": {"num_iterations": iterations}}
        if not self._evaluates:
            length["validate"] = {"every": max(1, iterations // _EVALUATIONS)}
        return length

    #: Steps of an iteration: the default of ``rl.frames_per_batch``.
    _batch: ClassVar[int] = 2048

    def _summary(self) -> dict[str, Any]:
        scenario = _section(self._config, "scenario")
        return {"environment": scenario.get("id") or scenario.get("type")}


class PPO(ControlAlgorithm):
    """Proximal policy optimisation of small networks (Schulman et al., arXiv 1707.06347)."""

    trainer = "vanilla_ppo"
    num_envs = 4

    def __init__(self, environment: str | Mapping[str, Any], **arguments: Any) -> None:
        super().__init__(environment, **arguments)
        if isinstance(self._config["rl"], dict):
            self._config["rl"].setdefault("num_epochs", 10)


class DQN(ControlAlgorithm):
    """Deep Q-learning (Mnih et al., Nature 518, 2015)."""

    trainer = "dqn"
    body: ClassVar[Mapping[str, Any]] = {"hidden": [64, 64], "activation": "relu"}
    _batch = 1000


class SAC(ControlAlgorithm):
    """Soft actor-critic (Haarnoja et al., arXiv 1812.05905)."""

    trainer = "sac"
    total_steps = 20_000
    body: ClassVar[Mapping[str, Any]] = {"hidden": [256, 256], "activation": "relu"}
    _batch = 1000


class TD3(ControlAlgorithm):
    """Twin delayed policy gradients (Fujimoto et al., arXiv 1802.09477)."""

    trainer = "td3"
    total_steps = 20_000
    body: ClassVar[Mapping[str, Any]] = {"hidden": [256, 256], "activation": "relu"}
    _batch = 1000


def data_section(
    data: Any, runs_folder: str = "runs"
) -> tuple[dict[str, Any], Sequence[Mapping[str, Any]] | None]:
    """The section ``data`` that something stands for, and rows that are to be written first.

    Raises:
        ConfigError: it is nothing that data can be given as.
    """
    if data is None:
        return {}, None
    if isinstance(data, Mapping):
        return dict(data), None
    if isinstance(data, (str, Path)):
        return _named(data), None
    # A DataFrame gives the names of its columns, which are no files.
    may_be_files = isinstance(data, (Sequence, Set, Iterator))
    try:
        if callable(getattr(data, "to_list", None)):  # a datasets.Dataset
            data = data.to_list()
        rows = list(data) if isinstance(data, Iterable) else []
    except Exception as error:
        raise ConfigError(
            f"the rows of data, of type {type(data).__name__}, cannot be read: {one_line(error)}; "
            "give a list of mappings"
        ) from error
    if rows and may_be_files and all(isinstance(row, (str, Path)) for row in rows):
        return {"data_files": [str(row) for row in rows]}, None
    if rows and all(isinstance(row, Mapping) for row in rows):
        return {"data_files": [_file_of(rows, runs_folder)]}, rows
    raise ConfigError(
        f"data must be files, a data set of the hub, rows as mappings or a section, not "
        f"{_shown(data)}; write data='train.jsonl', data='owner/name' or "
        "data=[{'prompt': ..., 'answer': ...}]"
    )


def _shown(value: Any) -> str:
    """A value for a message: the type of what is shown over several lines, as tables are."""
    text = repr(value)
    return f"a {type(value).__name__}" if "\n" in text else f"{text:.60}"


def _section(config: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """A section of a configuration that nobody has checked; empty where there is none."""
    found: Any = config
    for name in names:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _write(file: Path, text: str, *, folders: bool = False) -> None:
    try:
        if folders:
            file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, text)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot write {file}: {reason}") from error


def _named(data: str | Path) -> dict[str, Any]:
    """Files on the disk, or else a data set of the hub."""
    from plugrl.core.text.data.files import PLAIN_SUFFIXES, WILD

    text = str(data)
    is_file = (
        isinstance(data, Path)
        or os.path.exists(os.path.expanduser(text))
        or Path(text).suffix in PLAIN_SUFFIXES
        or "://" in text
        or bool(WILD & set(text))
    )
    return {"data_files": [text]} if is_file else {"name": text}


def _file_of(rows: Sequence[Mapping[str, Any]], runs_folder: str) -> str:
    """Where rows are written: a name that their content decides, so that a resumed run finds it."""
    digest = hashlib.sha256(_written(rows).encode()).hexdigest()[:16]
    return str(Path(runs_folder) / _ROWS / f"{digest}.jsonl")


def _written(rows: Sequence[Mapping[str, Any]]) -> str:
    try:
        text = "".join(json.dumps(dict(row), ensure_ascii=False) + "\n" for row in rows)
        text.encode()
        return text
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"rows of data must be text, numbers, lists and mappings: {error}"
        ) from error


def _validate_section(validation: Any) -> dict[str, Any]:
    if validation is None:
        return {"enabled": "auto"}
    if isinstance(validation, Mapping):
        return dict(validation)
    given = list(validation) if isinstance(validation, (list, tuple)) else [validation]
    if not given or not all(isinstance(each, (str, Path)) for each in given):
        raise ConfigError(
            "validation must be files, splits of the data set or the section validate, not "
            f"{_shown(validation)}; write validation='held_out.jsonl'"
        )
    files = [str(each) for each in given if "/" in str(each) or "data_files" in _named(each)]
    splits = [str(each) for each in given if str(each) not in files]
    return {"data": {"data_files": files, "splits": splits}}
