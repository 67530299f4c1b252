"""``OptunaSearcher``: Optuna's samplers and pruners, with its journal in the sweep's folder."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from plugrl.core.config.schemas.schema import described
from plugrl.core.config.schemas.sweep import ParameterConfig
from plugrl.core.errors import PluginError
from plugrl.core.plugins.user_code.error_location import one_line
from plugrl.core.run.records.jsonl_file import JsonlFile
from plugrl.core.searcher import Searcher, Trial, TrialState

#: The journal of all trials; ``optuna.storages.JournalStorage`` and Optuna's dashboard read it.
JOURNAL = "optuna.journal"
#: The name of the study in it.
STUDY = "sweep"


class OptunaSearcher(Searcher):
    """Values by TPE, quasi-random numbers or chance; runs below the median of others are ended.

    Sources: Bergstra et al. (2011), Algorithms for hyper-parameter optimization; Li et al. (2018),
    arXiv 1810.05934, for successive halving.

    Raises:
        PluginError: the package ``optuna`` cannot be imported.
    """

    @dataclass
    class Config:
        """How Optuna searches."""

        sampler: Literal["tpe", "quasi_random", "random"] = described(
            "tpe", "tpe: near values that did well; quasi_random: evenly (Sobol); random"
        )
        startup_trials: int = described(
            10, "trials at random before tpe models them", at_least=1, at_most=10**6
        )
        pruner: Literal["median", "halving", "none"] = described(
            "median",
            "median: end runs below the median at the same step; halving: keep the best part",
        )
        pruner_startup_trials: int = described(
            5, "median: trials that end before any is pruned", at_least=0, at_most=10**6
        )
        pruner_warmup_steps: int = described(
            0, "median: steps in which no run is pruned", at_least=0, at_most=10**9
        )
        reduction_factor: int = described(
            4, "halving: one of how many runs goes on", at_least=2, at_most=10**4
        )

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        try:
            import optuna
        except Exception as error:
            raise PluginError(
                f"the searcher optuna cannot import the package optuna ({one_line(error)}): "
                'pip install "plugrl[optuna]"'
            ) from error
        self._optuna: Any = optuna
        # It announces every trial; the sweep does so itself.
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._study: Any = None
        self._space: dict[str, Any] = {}
        self._seed = 0

    def open(
        self, folder: Path, space: Mapping[str, ParameterConfig], *, maximize: bool, seed: int
    ) -> None:
        """Open the journal of the folder, or begin it."""
        storages = self._optuna.storages
        file = JsonlFile(folder / JOURNAL)
        lock = storages.journal.JournalFileSymlinkLock(str(file.path))
        lock.acquire()
        try:
            # A process that was killed, or a full disk, may have cut the last line short; the next
            # one would be joined to it, and no line after that could be read.
            file.truncate(file.size())
        finally:
            lock.release()
        backend = storages.journal.JournalFileBackend(str(file.path), lock_obj=lock)
        self._study = self._optuna.create_study(
            study_name=STUDY,
            storage=storages.JournalStorage(backend),
            direction="maximize" if maximize else "minimize",
            pruner=self._pruner(),
            load_if_exists=True,
        )
        self._space = {key: self._distribution(one) for key, one in space.items()}
        self._seed = seed

    def trials(self) -> Sequence[Trial]:
        """All trials of the journal."""
        return [self._trial(frozen) for frozen in self._study.get_trials(deepcopy=False)]

    def ask(self) -> Trial:
        """Values by the sampler, whose generator begins anew at each trial."""
        # So a sweep that was killed proposes what it would have proposed.
        self._study.sampler = self._sampler(self._seed + len(self._study.get_trials()))
        asked = self._study.ask(self._space)
        return Trial(asked.number, dict(asked.params))

    def report(self, number: int, step: int, value: float) -> bool:
        """Note a value, and ask the pruner."""
        trial = self._optuna.trial.Trial(self._study, self._frozen(number)._trial_id)
        with warnings.catch_warnings():
            # A resumed run validates some steps again, with equal numbers.
            warnings.simplefilter("ignore")
            trial.report(value, step)
        return bool(trial.should_prune())

    def tell(self, number: int, state: TrialState, value: float | None = None) -> None:
        """End a trial; one that was pruned keeps its last value."""
        states = self._optuna.trial.TrialState
        ends = {"done": states.COMPLETE, "pruned": states.PRUNED, "failed": states.FAIL}
        self._study.tell(number, value if state == "done" else None, state=ends[state])

    def _frozen(self, number: int) -> Any:
        return self._study.get_trials(deepcopy=False)[number]

    def _trial(self, frozen: Any) -> Trial:
        states = self._optuna.trial.TrialState
        state: TrialState = "running"
        if frozen.state == states.COMPLETE:
            state = "done"
        elif frozen.state == states.PRUNED:
            state = "pruned"
        elif frozen.state == states.FAIL:
            state = "failed"
        value = frozen.value
        if value is None and state == "pruned" and frozen.intermediate_values:
            value = frozen.intermediate_values[max(frozen.intermediate_values)]
        return Trial(frozen.number, dict(frozen.params), state, value)

    def _distribution(self, one: ParameterConfig) -> Any:
        kinds = self._optuna.distributions
        if one.type == "choice":
            return kinds.CategoricalDistribution(list(one.values))
        low, high = one.ends()
        if one.type == "int":
            return kinds.IntDistribution(low, high, log=one.log)
        return kinds.FloatDistribution(low, high, log=one.log)

    def _sampler(self, seed: int) -> Any:
        samplers, config = self._optuna.samplers, self.config
        if config.sampler == "tpe":
            return samplers.TPESampler(n_startup_trials=config.startup_trials, seed=seed)
        if config.sampler == "quasi_random":
            # Its place in the sequence is in the journal, so that one seed serves all trials.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return samplers.QMCSampler(seed=self._seed, warn_independent_sampling=False)
        return samplers.RandomSampler(seed=seed)

    def _pruner(self) -> Any:
        pruners, config = self._optuna.pruners, self.config
        if config.pruner == "median":
            # Optuna counts steps from 0.
            warmup = config.pruner_warmup_steps + 1
            return pruners.MedianPruner(config.pruner_startup_trials, warmup)
        if config.pruner == "halving":
            return pruners.SuccessiveHalvingPruner(reduction_factor=config.reduction_factor)
        return pruners.NopPruner()
