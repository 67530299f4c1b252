"""The contract of searchers.

Run it with ``--plugrl-searcher NAME``, or subclass :class:`SearcherContract` with an attribute
``plugrl_searcher``. A searcher gives as ``conformance``: ``config``, its section; and ``hopeless``,
how many trials that are done and good it takes until a bad one ends, if it ends any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from plugrl.core.config.schemas.sweep import ParameterConfig
from plugrl.core.searcher import Searcher
from plugrl.testing.contract import ComponentContract, needed

SPACE = {
    "rl.lr": ParameterConfig(type="float", low=1e-5, high=1e-2, log=True),
    "rl.gamma": ParameterConfig(type="float", low=0.9, high=1.0),
    "data.batch_size": ParameterConfig(type="int", low=1, high=64),
    "trainer.kind": ParameterConfig(type="choice", values=["a", 1, True, None, 0.5]),
}


class SearcherContract(ComponentContract):
    """The tests; they need the attribute ``plugrl_searcher``."""

    kind = "searcher"
    defaults: ClassVar[Mapping[str, Any]] = {"hopeless": None}

    @pytest.fixture
    def opened(self, make: Callable[[], Searcher]) -> Callable[..., Searcher]:
        """Opens a folder by one more searcher, as another process does."""

        def opened(folder: Path, **given: Any) -> Searcher:
            folder.mkdir(exist_ok=True)
            searcher = make()
            searcher.open(folder, SPACE, **{"maximize": True, "seed": 3, **given})
            return searcher

        return opened

    def test_values_are_in_their_space(
        self, opened: Callable[..., Searcher], tmp_path: Path
    ) -> None:
        searcher = opened(tmp_path)
        for number in range(12):
            trial = searcher.ask()
            assert (trial.number, trial.state, trial.value) == (number, "running", None)
            assert set(trial.values) == set(SPACE)
            for key, value in trial.values.items():
                assert SPACE[key].holds(value), f"{key} is {value!r}"
            searcher.tell(number, "done", float(number))

    def test_another_process_sees_the_trials(
        self, opened: Callable[..., Searcher], tmp_path: Path
    ) -> None:
        searcher = opened(tmp_path)
        asked = [searcher.ask() for _ in range(4)]
        other = opened(tmp_path)
        other.tell(0, "done", 0.5)
        other.report(1, 1, 0.25)
        other.tell(1, "pruned")
        other.tell(2, "failed")
        for seen in (searcher, other, opened(tmp_path)):
            trials = list(seen.trials())
            assert [one.values for one in trials] == [one.values for one in asked]
            assert [one.state for one in trials] == ["done", "pruned", "failed", "running"]
            assert [one.value for one in trials] == [0.5, 0.25, None, None]
        assert other.ask().number == 4

    def test_equal_seeds_propose_equal_values(
        self, opened: Callable[..., Searcher], tmp_path: Path
    ) -> None:
        found = {}
        for name, again, seed in (("a", False, 3), ("b", True, 3), ("c", False, 4)):
            searcher, values = opened(tmp_path / name, seed=seed), []
            for number in range(12):
                # A process that was killed asks in another one.
                searcher = opened(tmp_path / name, seed=seed) if again else searcher
                values.append(dict(searcher.ask().values))
                searcher.tell(number, "done", float(number % 5))
            found[name] = values
        assert found["a"] == found["b"], "what is proposed depends on more than seed and trials"
        assert found["a"] != found["c"], "the seed has no effect"

    def test_a_hopeless_trial_ends_and_a_good_one_does_not(
        self, opened: Callable[..., Searcher], tmp_path: Path, example: Mapping[str, Any]
    ) -> None:
        needed(example, "hopeless")
        for maximize, sign in ((True, 1.0), (False, -1.0)):
            searcher = opened(tmp_path / str(maximize), maximize=maximize)
            for _ in range(example["hopeless"]):
                number = searcher.ask().number
                for step in range(1, 9):
                    assert not searcher.report(number, step, sign * step)
                searcher.tell(number, "done", sign * 8)
            good, bad = searcher.ask().number, searcher.ask().number
            ends = {good: False, bad: False}
            for step in range(1, 9):
                ends[good] |= searcher.report(good, step, sign * (step + 1))
                ends[bad] |= searcher.report(bad, step, -sign)
                # A run that was killed reports a step again.
                ends[bad] |= searcher.report(bad, step, -sign)
            assert ends == {good: False, bad: True}


class TestSearcher(SearcherContract):
    """The contract for every ``--plugrl-searcher``."""

    __test__ = True
