"""From a configuration to a finished run, and back from a run folder."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plugrl.core.config.preflight import device_fault, find_faults
from plugrl.core.config.schemas.sections import COMMON
from plugrl.core.config.sources.compose import ComposedConfig, compose
from plugrl.core.config.sources.origins import raise_faults
from plugrl.core.config.sources.overrides import check_texts
from plugrl.core.config.validated import ValidatedConfig
from plugrl.core.config.validation import validate
from plugrl.core.config.view import ConfigView, ExperimentSettings, HyperParameters
from plugrl.core.errors import ConfigError, PlugrlError, RunError, StopRun, UsageError
from plugrl.core.factory import Factory
from plugrl.core.hub.revisions import pin_revisions
from plugrl.core.launch.files import absent_files
from plugrl.core.plugins.arguments import (
    EVALUATOR,
    absent_rewards,
    resumed_rewards,
    reward_arguments,
)
from plugrl.core.plugins.callbacks import Callback, as_callbacks
from plugrl.core.plugins.discovery import LoadedPlugins, load_hook_plugins
from plugrl.core.plugins.hooks import HookCaller
from plugrl.core.plugins.registry import Registry, default_registry
from plugrl.core.plugins.user_code.error_location import component_error
from plugrl.core.plugins.user_code.working_folder import display_path, preserve_working_folder
from plugrl.core.run.process import cluster, determinism, threads
from plugrl.core.run.process import heap as allocation
from plugrl.core.run.process.launchers import refuse_copies
from plugrl.core.run.process.setup_script import PHASE, apply_configured_script
from plugrl.core.run.process.setup_script import apply_setup_script as enter_script
from plugrl.core.run.process.signals import defer_signals
from plugrl.core.run.records.records import read_jsonl, read_status
from plugrl.core.run.run import Run

if TYPE_CHECKING:
    from plugrl.core.trainer import Phase, Trainer, TrainerContext, TrainingResult

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Experiment:
    """A validated configuration, and the plugins that were loaded to validate it."""

    composed: ComposedConfig
    validated: ValidatedConfig
    plugins: LoadedPlugins
    registry: Registry

    @property
    def strict(self) -> bool:
        """Whether plugin faults end the run."""
        return bool(self.validated.tree["plugins"]["strict"])

    def warn_unchecked(self) -> None:
        """Warn about every key that no schema describes: it may be a typo without effect."""
        for line in self.validated.unchecked_lines:
            logger.warning("%s", line)

    def hooks(self, callbacks: Sequence[Callback] = ()) -> HookCaller:
        """The caller of the hooks, after every plugin had the chance to refuse the configuration.

        Args:
            callbacks: hooks of one run alone.

        Raises:
            ConfigError: a plugin refuses it.
        """
        caller = HookCaller(self.plugins.manager, strict=self.strict, callbacks=callbacks)
        caller.call("plugrl_configure", config=self.validated.hyper_params)
        return caller


@allocation.rare_collections()
@preserve_working_folder()
def prepare(
    config: str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    config_path: Sequence[str | Path] = (),
    registry: Registry | None = None,
    preflight: bool = True,
    base: Mapping[str, Any] | None = None,
    setup: bool = False,
    elsewhere: bool = False,
) -> Experiment:
    """Compose and validate a configuration, with the installed plugins loaded.

    Args:
        config: a YAML file, the name of a recipe, or a mapping.
        overrides: ``key=value`` strings, as on the command line.
        config_path: further folders in which ``defaults`` are looked up.
        registry: resolves names; by default the registry of this process.
        preflight: check the files, columns and devices that the configuration names, too.
        base: values that the configuration changes.
        setup: run ``environment.setup_script`` first, so that values can refer to variables that it
            exports and name files that it writes.
        elsewhere: the run is for another machine: an absolute path may be missing here, and what
            its files hold and which devices there are is not asked.

    Raises:
        ConfigError: the configuration is wrong; ``faults`` lists everything that is.
        PluginError: a plugin that it needs cannot be used.
        UsageError: a launcher started several copies of this process (with ``setup``).
    """
    if setup:
        refuse_copies()
    registry = registry or default_registry()
    composed = compose(config, overrides, config_path=config_path, base=base)
    if setup and apply_configured_script(composed):
        composed = compose(config, overrides, config_path=config_path, base=base)
    section = composed.tree.get("plugins")
    section = section if isinstance(section, Mapping) else {}
    disable = section.get("disable")
    if isinstance(disable, list):
        registry.disable([name for name in disable if isinstance(name, str)])
    plugins = load_hook_plugins(registry, strict=section.get("strict") is True)
    validated = validate(composed, registry, preflight=preflight, elsewhere=elsewhere)
    if preflight and not (elsewhere and absent_files(composed, validated)):
        name = str(composed.source) if composed.source is not None else "the configuration"
        faults = find_faults(validated, registry)
        if elsewhere:
            faults = [fault for fault in faults if not fault.path.startswith("settings.")]
        raise_faults(faults, f"{name} is wrong")
    return Experiment(composed, validated, plugins, registry)


def train(
    config: str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    config_path: Sequence[str | Path] = (),
    reward: Any = None,
    reward_weights: Sequence[float] | None = None,
    callbacks: Iterable[Any] = (),
) -> TrainedRun:
    """Train as a configuration says, in a new run folder.

    Arguments and errors are those of :func:`plugrl.train`.
    """
    called = as_callbacks(callbacks)
    functions: dict[str, Any] = {}
    if reward is not None:
        functions, picks = reward_arguments(reward, reward_weights)
        check_texts("overrides", overrides, '["seed=1"]')
        overrides = [*overrides, *picks]
    elif reward_weights is not None:
        raise UsageError("reward_weights are for reward, which is missing")
    with default_registry().arguments(EVALUATOR, functions):
        experiment = prepare(config, overrides, config_path=config_path, setup=True)
        experiment.warn_unchecked()
        return start(experiment, called)


@preserve_working_folder()
def start(experiment: Experiment, callbacks: Sequence[Callback] = ()) -> TrainedRun:
    """Train a prepared experiment in a new run folder; the errors are those of :func:`train`."""
    apply_process_settings(experiment)
    pinned = pin_revisions(experiment.validated, experiment.registry)
    experiment = replace(experiment, validated=pinned)
    hooks = experiment.hooks(callbacks)
    trackers = _trackers(experiment)
    with defer_signals():
        run = Run.create(
            experiment.validated,
            experiment.composed,
            hooks=hooks,
            trackers=trackers,
            records=sorted(experiment.registry.used, key=lambda r: (r.kind, r.name)),
            installed=experiment.registry.records(),
        )
        return _train(experiment, run)


@preserve_working_folder()
def resume(
    run: str | Path | TrainedRun,
    *,
    reward: Any = None,
    callbacks: Iterable[Any] = (),
    runs_folder: str | Path = "runs",
) -> TrainedRun:
    """Continue a run from its newest intact checkpoint, or from the start if it has none.

    Arguments and errors are those of :func:`plugrl.resume`; a run that is done is left unchanged.
    """
    from plugrl.core.run.initialization import functions_of, is_complete, read_config

    folder = _folder_of(run, runs_folder)
    called = as_callbacks(callbacks)
    if is_complete(folder):
        logger.info("the run %s is done: there is nothing to resume", folder)
        return load_run(folder)
    registry = default_registry()
    names = functions_of(folder, read_config(folder))
    if reward is None:
        # What a file of `-p` has registered stands in for them.
        names = [name for name in names if not registry.has_registered(EVALUATOR, name)]
    functions: dict[str, Any] = {}
    if names or reward is not None:
        functions = resumed_rewards(str(display_path(folder)), names, reward)
    with registry.arguments(EVALUATOR, functions):
        experiment = _saved_experiment(folder)
        apply_process_settings(experiment)
        hooks, trackers = experiment.hooks(called), _trackers(experiment)
        with defer_signals():
            opened = Run.open(
                folder,
                hooks=hooks,
                trackers=trackers,
                records=experiment.registry.used,
            )
            return _train(experiment, opened)


@contextmanager
def without_functions(folder: Path, command: str) -> Iterator[None]:
    """Let a run be loaded whose reward functions a Python program had; none can be called.

    Args:
        folder: the run folder.
        command: what loads it, for the message of those who call one.
    """
    from plugrl.core.run.initialization import functions_of, read_config

    names = functions_of(folder, read_config(folder, "opened"))
    with absent_rewards(default_registry(), str(display_path(folder)), names, command):
        yield


def _folder_of(run: str | Path | TrainedRun, runs_folder: str | Path) -> Path:
    from plugrl.core.run.folder import find

    if isinstance(run, TrainedRun):
        return run.folder
    check_run(run, runs_folder)
    # A folder that holds no run says so when it is read.
    return Path(run) if Path(run).is_dir() else find(str(run), Path(runs_folder))


def check_run(run: object, runs_folder: object) -> None:
    """Refuse what cannot name a run.

    Raises:
        UsageError: one of the two is neither text nor a path.
    """
    for name, value, example in (("run", run, "latest"), ("runs_folder", runs_folder, "runs")):
        if not isinstance(value, (str, os.PathLike)):
            raise UsageError(f"{name} must be text or a path, not {value!r:.60}; write {example!r}")


def _saved_experiment(folder: Path) -> Experiment:
    """The experiment of a run, prepared again from its folder.

    Raises:
        ConfigError: its ``config.yaml`` is missing, damaged or no longer fits.
        PluginError: a plugin that it needs cannot be used.
    """
    from plugrl.core.run.initialization import read_config

    # Its relative paths were made absolute when the run began.
    tree, file = read_config(folder), folder / "config.yaml"
    # Runs of earlier versions have no section of machines or sweeps.
    missing = [name for name in COMMON if name not in tree and name not in ("resource", "sweep")]
    if missing:
        # Defaults in their place would silently make it another experiment.
        names = ", ".join(missing)
        raise ConfigError(f"{file} was cut short or edited: it has no {names}; restore it")
    try:
        experiment = prepare(tree, setup=True)
    except ConfigError as error:
        raise error.at(f"{file} cannot be used") from error
    absent = list(_missing_keys(experiment.validated.tree, tree))
    if absent:
        # Cut short, edited, or written by an older plugrl: the run may have begun with other
        # values.
        logger.warning(
            "%s has no %s: the defaults of now are used",
            file,
            ", ".join(absent),
        )
    return experiment


@dataclass(frozen=True)
class TrainedRun:
    """A run that has ended, read from its folder.

    ``result`` is what the trainer gave back, where this process has trained the run.
    """

    folder: Path
    config: HyperParameters
    status: Mapping[str, Any]
    result: TrainingResult | None = None

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One mapping a line of ``metrics.jsonl``, in order."""
        return read_jsonl(self.folder / "metrics.jsonl")

    @property
    def last_metrics(self) -> dict[str, Any]:
        """The last value of every metric; for a run in phases, of its last phase."""
        last: dict[str, Any] = {}
        for line in self.metrics:
            if line.get("phase", last.get("phase")) != last.get("phase"):
                last = {}
            last |= line
        return last

    def checkpoint(self) -> dict[str, Any]:
        """The newest intact checkpoint: nested mappings of tensors and plain values.

        Raises:
            ConfigError: the run has none.
        """
        from plugrl.core.run.checkpoints.checkpoint import load_newest
        from plugrl.core.run.checkpoints.folder import checkpoint_folder

        found = load_newest(checkpoint_folder(self.folder))
        if found is None:
            raise ConfigError(
                f"{display_path(self.folder)} has no checkpoint that can be read; name another "
                "run; plugrl runs list shows them"
            )
        return found[1]


def load_run(run: str | Path, runs_folder: str | Path = "runs") -> TrainedRun:
    """Read a run folder without taking its lock.

    Args:
        run: a path, an id or the beginning of one, an experiment (its newest run), or ``latest``.
        runs_folder: where a run is looked up unless a path is given.

    Raises:
        UsageError: no run, or more than one, matches.
        ConfigError: a file of the run is missing or damaged.
    """
    from plugrl.core.run.folder import find
    from plugrl.core.run.initialization import read_config

    check_run(run, runs_folder)
    folder = find(str(run), Path(runs_folder))
    tree = read_config(folder, "loaded")
    return TrainedRun(folder, HyperParameters(tree), read_status(folder))


def _missing_keys(
    full: Mapping[str, Any], part: Mapping[str, Any], path: str = ""
) -> Iterator[str]:
    """The keys of the ``full`` configuration, defaults included, that ``part`` lacks."""
    for key, value in full.items():
        if key not in part:
            yield f"{path}{key}"
        elif isinstance(value, Mapping) and isinstance(part[key], Mapping):
            yield from _missing_keys(value, part[key], f"{path}{key}.")


def apply_process_settings(experiment: Experiment) -> None:
    """Apply setup script, variables, threads and seed to this process, before torch is used."""
    tree = experiment.validated.tree
    script = tree["environment"]["setup_script"]
    if script:
        enter_script(script, tree["settings"]["deadlines"].get(PHASE))
    os.environ.update(tree["environment"]["variables"])
    threads.limit(tree["settings"]["torch_threads"])
    determinism.configure(tree["settings"]["deterministic"])
    cluster.configure(tree["settings"]["cluster"], tree["environment"]["variables"])
    allocation.keep_freed_memory()
    _seed(int(tree["seed"]))


def _seed(seed: int) -> None:
    import numpy
    import torch

    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def _train(experiment: Experiment, run: Run) -> TrainedRun:
    logger.info("run folder %s", display_path(run.folder))
    from plugrl.core.trainer import TrainingResult

    result: TrainingResult | None = None
    with run, _attribute_errors(experiment, run):
        trainer = build_trainer(experiment.validated, experiment.registry, run)
        run.attach(trainer)
        run.restore()
        result = trainer.train()
    if result is None:
        # The trainer gives none, or a hook ended the run.
        result = TrainingResult(steps=run.step, metrics=dict(run.last_metrics))
    return replace(load_run(run.folder), result=result)


@contextmanager
def _attribute_errors(experiment: Experiment, run: Run) -> Iterator[None]:
    """Turn any exception that escapes a training into a ``RunError`` that names the component.

    That includes configuration and usage errors that are found only now: their exit code 2 would
    say that nothing was started.
    """
    try:
        yield
    except StopRun:
        raise
    except (ConfigError, UsageError) as error:
        raise RunError(str(error)) from error
    except PlugrlError:
        raise
    except BaseException as error:
        # The run handles Ctrl-C as a request to stop, so a KeyboardInterrupt comes from code.
        used = sorted(experiment.registry.used, key=lambda r: (r.kind, r.name))
        raise component_error(error, used, run.trainer) from error


def _factory(validated: ValidatedConfig, registry: Registry) -> Factory:
    return Factory(registry, validated.records)


def _trackers(experiment: Experiment) -> list[Any]:
    factory = _factory(experiment.validated, experiment.registry)
    sections = ConfigView({"trackers": experiment.validated.tree["trackers"]}, checked=True)
    return [
        factory.build("tracker", section, f"trackers[{i}]")
        for i, section in enumerate(sections["trackers"])
    ]


def build_trainer(validated: ValidatedConfig, registry: Registry, run: Run) -> Trainer:
    """Build the trainer of a configuration and bind it to ``run``."""
    trainer: Trainer = validated.trainer(validated.section("trainer"))
    trainer.bind(_context(validated, registry, _factory(validated, registry), run))
    return trainer


def _context(
    validated: ValidatedConfig, registry: Registry, factory: Factory, run: Run
) -> TrainerContext:
    from plugrl.core.trainer import TrainerContext

    instance = None
    # A trainer of phases has no task of its own; each phase builds its own.
    if validated.tree.get("scenario") is not None and not validated.phases:
        built = factory.build("scenario", validated.section("scenario"), "scenario")
        instance = built.build(int(validated.tree["seed"]))
    settings = dict(validated.settings)
    settings["device"] = _device(str(settings["device"]))
    return TrainerContext(
        hyper_params=validated.hyper_params,
        settings=ExperimentSettings(settings),
        run=run,
        factory=factory,
        scenario_instance=instance,
        phases=tuple(_phase(name, phase, registry) for name, phase in validated.phases),
    )


def _phase(name: str, validated: ValidatedConfig, registry: Registry) -> Phase:
    from plugrl.core.trainer import Phase

    here = os.getcwd()

    def build(run: Run) -> Trainer:
        # User code of the phase before may have changed the working directory.
        os.chdir(here)
        return build_trainer(validated, registry, run)

    return Phase(name=name, build=build)


def _device(name: str) -> str:
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    fault = device_fault(name)
    if fault is not None:
        raise ConfigError(f"settings.device {fault}")
    return name
