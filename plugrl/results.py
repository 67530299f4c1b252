"""``RunResult``: what training gives back, with what the commands do as methods."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from plugrl.core.errors import PluginError, UsageError
from plugrl.core.experiment import TrainedRun
from plugrl.core.experiment import load_run as load_core
from plugrl.core.experiment import resume as resume_core
from plugrl.core.plugins.user_code.working_folder import display_path
from plugrl.core.run.records.headline import Headline, headline_of
from plugrl.core.run.records.records import read_jsonl
from plugrl.core.run.records.summary import summary

if TYPE_CHECKING:
    from plugrl.core.loaded_run import LoadedRun
    from plugrl.core.tensordict.policy import Policy
    from plugrl.core.text.endpoint.serving import Serving


class Metrics(list[dict[str, Any]]):
    """The lines of ``metrics.jsonl``, in order, and their columns by name.

    ``metrics[-1]`` is a line, ``metrics["train/loss"]`` the values of all lines that have the
    metric. It is a list with and without pandas, so that a program does not depend on what else
    is installed; :meth:`to_pandas` makes a DataFrame.
    """

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            return super().__getitem__(key)
        values = [line[key] for line in self if key in line]
        if not values:
            raise KeyError(f"no metric {key!r}; there are {', '.join(self.columns)}")
        return values

    @property
    def columns(self) -> list[str]:
        """The names of all metrics, in the order in which they came."""
        return list(dict.fromkeys(name for line in self for name in line))

    def to_pandas(self) -> Any:
        """A DataFrame with a row a line; what a line lacks is NaN.

        Raises:
            PluginError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise PluginError("a DataFrame needs pandas; pip install 'plugrl[plot]'") from None
        return pandas.DataFrame(list(self), columns=self.columns)

    def __repr__(self) -> str:
        return f"Metrics({len(self)} lines, {len(self.columns)} columns)"


@dataclass(frozen=True, repr=False)
class RunResult(TrainedRun):
    """A run that was trained: its numbers, and what to do with it next.

    Methods are named as the commands that do the same.
    """

    #: The reward functions that it was trained with, where a program gave some.
    reward: Any = field(default=None, compare=False)

    @classmethod
    def of(cls, run: TrainedRun, reward: Any = None) -> Self:
        """The result of a run of the core."""
        return cls(run.folder, run.config, run.status, run.result, reward)

    @cached_property
    def metrics(self) -> Metrics:
        """The lines of ``metrics.jsonl``."""
        return Metrics(super().metrics)

    @property
    def headline(self) -> Headline | None:
        """The metric by which the run is judged, with first, last and best; None: there is none."""
        return headline_of(self.status, self.metrics)

    def summary(self) -> str:
        """How the run ended, its headline, and where its folder and its report are."""
        phases = self.config.trainer.get("phases") or ()
        return "\n".join(summary(self.folder, [phase.get("name", "") for phase in phases]))

    @cached_property
    def samples(self) -> dict[str, list[dict[str, Any]]]:
        """The records of each file in ``samples/`` by its name, such as ``rollouts``."""
        files = sorted((self.folder / "samples").glob("*.jsonl"))
        return {file.stem: read_jsonl(file) for file in files}

    def report(self, output: str | Path | None = None) -> Path:
        """Write the page of the run anew and give its path.

        Args:
            output: the file; None: ``report.html`` in the run folder.

        Raises:
            UsageError: it could not be written.
        """
        from plugrl.core.run.report.page import report_file

        try:
            return report_file([self.folder], None if output is None else Path(output))
        except (OSError, TypeError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UsageError(f"cannot write the report {output}: {reason}") from error

    def plot(self, *metrics: str, ax: Any = None) -> Any:
        """Draw metrics over the steps with matplotlib; give the axes.

        Args:
            metrics: names; none: the headline.
            ax: where they are drawn; None: on a new figure.

        Raises:
            UsageError: there is no such metric.
            PluginError: matplotlib is not installed.
        """
        try:
            from matplotlib import pyplot
        except ImportError:
            raise PluginError("plot needs matplotlib; pip install 'plugrl[plot]'") from None
        headline = self.headline
        names = tuple(map(str, metrics)) or (() if headline is None else (headline.metric,))
        if not names:
            raise UsageError(f"{self!r} has no metric to draw")
        lines = {name: [line for line in self.metrics if name in line] for name in names}
        for name, found in lines.items():
            if not found:
                from plugrl.core.wording import did_you_mean

                close = did_you_mean(name, self.metrics.columns, 3)
                raise UsageError(f"{self._shown} has no metric {name!r}{close}")
        if ax is None:
            ax = pyplot.figure().add_subplot()
        for name, found in lines.items():
            ax.plot([line["step"] for line in found], [line[name] for line in found], label=name)
        ax.set_xlabel("step")
        ax.set_title(str(self._shown))
        if len(names) > 1:
            ax.legend()
        else:
            ax.set_ylabel(names[0])
        return ax

    def sample(
        self,
        prompts: str | Sequence[str],
        *,
        samples: int = 1,
        temperature: float = 0.0,
        top_p: float = 1.0,
        max_tokens: int = 256,
        seed: int = 0,
        model: str = "policy",
        checkpoint: str | int = "newest",
    ) -> list[dict[str, Any]]:
        """Answers of a model to prompts, as ``plugrl sample --json`` prints them.

        Raises:
            UsageError: the run trains no language model, or has no such checkpoint.
            ConfigError: there is no such model, or a prompt cannot be encoded.
        """
        from plugrl.core.text.inference.sampling import SamplingParams
        from plugrl.core.text.loaded_models import sample_answers

        asked: Any = [prompts] if isinstance(prompts, str) else prompts
        is_list = isinstance(asked, (list, tuple))
        if not is_list or not all(isinstance(prompt, str) for prompt in asked):
            raise UsageError(f"prompts must be a text or a list of texts, not {prompts!r:.60}")
        _check_numbers(Integral, samples=samples, max_tokens=max_tokens, seed=seed)
        _check_numbers(Real, temperature=temperature, top_p=top_p)
        sampling = SamplingParams(temperature=temperature, top_p=top_p, max_new_tokens=max_tokens)
        with self._opened(checkpoint) as loaded:
            return sample_answers(loaded, model, list(asked), sampling, samples=samples, seed=seed)

    def evaluate(
        self,
        evaluation: str | Path = "validation",
        overrides: Sequence[str] = (),
        *,
        checkpoint: str | int = "newest",
    ) -> dict[str, float]:
        """Held-out metrics, as of ``plugrl eval``; the run is not touched.

        Args:
            evaluation: a YAML file, a split of the run's scenario or data, or an evaluation of the
                trainer's own.
            overrides: ``key=value`` strings.
            checkpoint: ``newest``, ``best`` or a step.

        Raises:
            UsageError: there is no such evaluation or checkpoint.
            ConfigError: the evaluation does not fit the run.
        """
        with self._opened(checkpoint, str(evaluation), overrides) as loaded:
            return loaded.evaluate(str(evaluation))

    def resume(self, *, reward: Any = None, callbacks: Sequence[Any] = ()) -> RunResult:
        """Continue the run where it stopped; one that is done is left as it is.

        Args:
            reward: the functions that it was trained with; None: those of this result.
            callbacks: hooks of the rest of the run.

        Raises:
            RunError: the run failed again.
        """
        reward = self.reward if reward is None else reward
        return RunResult.of(resume_core(self.folder, reward=reward, callbacks=callbacks), reward)

    def export(
        self,
        folder: str | Path,
        *,
        model: str = "policy",
        adapter: bool = False,
        checkpoint: str | int = "newest",
    ) -> Path:
        """Write a language model as transformers' ``from_pretrained`` reads it.

        Raises:
            UsageError: the folder is not empty, or the run trains no language model.
        """
        from plugrl.core.text.loaded_models import export

        if not isinstance(folder, (str, os.PathLike)) or "\0" in str(folder):
            raise UsageError(f"folder must be text or a path, not {folder!r:.60}")
        with self._opened(checkpoint) as loaded:
            export(loaded, model, folder, adapter=adapter)
        return Path(folder)

    @contextmanager
    def serve(
        self, host: str = "127.0.0.1", port: int = 0, *, checkpoint: str | int = "newest"
    ) -> Iterator[Serving]:
        """Serve the models behind OpenAI's interface while a ``with`` block runs.

        Gives ``base_url``, ``api_key`` and the names of the models.

        Raises:
            PluginError: the extra ``serve`` is not installed.
        """
        from plugrl.core.text.agents.parsing import make_parser
        from plugrl.core.text.endpoint.server import MISSING, is_installed
        from plugrl.core.text.endpoint.serving import serving, token_of_environment

        _check_numbers(Integral, port=port)
        if not is_installed():
            raise PluginError(MISSING)
        calls = [make_parser({"type": "hermes"})]
        with (
            self._opened(checkpoint) as loaded,
            serving(loaded, host, port, token=token_of_environment(), call_parsers=calls) as served,
        ):
            yield served

    @cached_property
    def policies(self) -> Mapping[str, Policy]:
        """The policies of small networks at the newest checkpoint, by name.

        Raises:
            UsageError: the run trains no small networks.
        """
        with self._opened() as loaded:
            trained = getattr(loaded.trainer, "trained_policies", None)
            if trained is None:
                name = type(loaded.trainer).__name__
                raise UsageError(
                    f"{name} trains no policies of small networks; sample() asks a language model"
                )
            found: Mapping[str, Policy] = trained()
            return found

    @property
    def policy(self) -> Policy:
        """The only policy of :attr:`policies`.

        Raises:
            UsageError: there are none or several.
        """
        found = self.policies
        if len(found) != 1:
            names = ", ".join(found) or "none"
            raise UsageError(f"{self._shown} has not one policy, but {names}; take policies[NAME]")
        return next(iter(found.values()))

    @contextmanager
    def _opened(
        self,
        checkpoint: str | int = "newest",
        evaluation: str | None = None,
        words: Sequence[str] = (),
    ) -> Iterator[LoadedRun]:
        from plugrl.core.loaded_run import open_checkpoint

        with (
            self._functions(),
            open_checkpoint(
                str(self.folder), evaluation, words, checkpoint=str(checkpoint)
            ) as loaded,
        ):
            yield loaded

    @contextmanager
    def _functions(self) -> Iterator[None]:
        """Let the run find its reward functions again."""
        from plugrl.core.plugins.arguments import EVALUATOR, resumed_rewards
        from plugrl.core.plugins.registry import default_registry
        from plugrl.core.run.initialization import functions_of, read_config

        names = functions_of(self.folder, read_config(self.folder)) if self.reward else []
        functions = resumed_rewards(str(self._shown), names, self.reward) if names else {}
        with default_registry().arguments(EVALUATOR, functions):
            yield

    @property
    def _shown(self) -> Path:
        return Path(display_path(self.folder))

    def __repr__(self) -> str:
        """One line: where, how it ended, and the headline."""
        state = f"{self.status['state']}, step {self.status['step']}"
        found = self.headline
        numbers = "" if found is None else f", {found.metric} {found.first:.4g} -> {found.last:.4g}"
        return f"RunResult({self._shown}: {state}{numbers})"

    def _repr_html_(self) -> str:
        """What a notebook shows: a headline with its curve."""
        from plugrl.core.run.records.curve_svg import curve_svg
        from plugrl.core.run.records.web_page import text

        found = self.headline
        head = f"<b>{text(self._shown)}</b> {text(self.status['state'])}"
        if found is None:
            return f"<div>{head}, step {int(self.status['step'])}</div>"
        numbers = f"{found.first:.4g} &rarr; {found.last:.4g}, best {found.best:.4g}"
        curve = curve_svg([(float(step), value) for step, value in found.points])
        return f"<div>{head}<br>{text(found.metric)}: {numbers}<br>{curve}</div>"


def _check_numbers(kind: type, **values: object) -> None:
    """Refuse what is no number, or an integer that a tensor cannot hold.

    Raises:
        UsageError: it is.
    """
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, kind):
            what = "whole number" if kind is Integral else "number"
            raise UsageError(f"{name} must be a {what}, not {value!r:.60}")
        if isinstance(value, Integral) and not -(2**63) <= int(value) < 2**63:
            raise UsageError(f"{name} is {value}, which takes more than 64 bits")


def load_run(run: str | Path, runs_folder: str | Path = "runs") -> RunResult:
    """Read a run folder without taking its lock.

    Args:
        run: a path, an id or the beginning of one, an experiment (its newest run), or ``latest``.
        runs_folder: where a run is looked up unless a path is given.

    Raises:
        UsageError: no run, or more than one, matches.
        ConfigError: a file of the run is missing or damaged.
    """
    return RunResult.of(load_core(run, runs_folder))
