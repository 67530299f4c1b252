"""What is published of a run: a model folder, the run's records, and a card that explains both."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plugrl.__about__ import __version__
from plugrl.core.config.hidden import redacted_yaml, without_credentials
from plugrl.core.config.sources.writer import dump_yaml
from plugrl.core.errors import UsageError
from plugrl.core.hub.hub import is_hub_name
from plugrl.core.loaded_run import LoadedRun
from plugrl.core.run.folder import CONFIG_FILE
from plugrl.core.run.initialization import read_config
from plugrl.core.run.records.curve_svg import curve_svg
from plugrl.core.run.records.environment import ENVIRONMENT_FILE
from plugrl.core.run.records.headline import Headline, headline_of
from plugrl.core.run.records.records import METRICS_FILE, read_jsonl, read_status
from plugrl.core.text.loaded_models import export

#: The folder of the run's records within what is published.
RECORDS = "run"
VERSIONS_FILE = "versions.json"
CURVE_FILE = "curve.svg"
CARD_FILE = "README.md"
#: Of ``environment.json``: folders, variables and the command are the user's own.
_PUBLIC = ("plugrl", "python", "platform", "gpus", "git_commit", "packages")


def write_publication(
    saved: LoadedRun, model: str, name: str, folder: Path, *, adapter: bool = False
) -> list[Path]:
    """Fill a new folder with all that is published of a run, and list its files.

    Credentials are hidden, as in all that a run shares; ``config.private.json`` stays where it is.

    Args:
        saved: the opened run.
        model: a key of its ``models``.
        name: ``owner/name`` under which it is published.
        folder: a new or empty folder.
        adapter: publish the LoRA adapter alone.

    Raises:
        UsageError: what was opened is no run, or the folder cannot be written.
        ConfigError: there is no such model, or the run's files are damaged.
    """
    run = vars(saved.run).get("folder")
    if run is None:
        raise UsageError(f"{saved.origin} is a model folder; name a run, which has records too")
    export(saved, model, folder, adapter=adapter)
    records = folder / RECORDS
    records.mkdir()
    config = (run / CONFIG_FILE).read_text(encoding="utf-8")
    (records / CONFIG_FILE).write_text(redacted_yaml(config), encoding="utf-8")
    if (run / METRICS_FILE).is_file():
        text = (run / METRICS_FILE).read_text(encoding="utf-8")
        (records / METRICS_FILE).write_text(without_credentials(text), encoding="utf-8")
    environment = _environment(run)
    public = {key: environment[key] for key in _PUBLIC if key in environment}
    text = without_credentials(json.dumps(public, indent=2))
    (records / VERSIONS_FILE).write_text(f"{text}\n", encoding="utf-8")
    headline = headline_of(read_status(run), read_jsonl(run / METRICS_FILE))
    if headline is not None:
        curve = curve_svg([(float(step), value) for step, value in headline.points])
        picture = curve.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
        (records / CURVE_FILE).write_text(picture, encoding="utf-8")
    facts = CardFacts(
        name, model, saved.origin, read_config(run, "pushed", private=False), headline
    )
    card = without_credentials(card_of(facts, environment.get("command"), adapter=adapter))
    (folder / CARD_FILE).write_text(card, encoding="utf-8")
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _environment(run: Path) -> dict[str, Any]:
    try:
        found = json.loads((run / ENVIRONMENT_FILE).read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError):
        return {}


@dataclass(frozen=True)
class CardFacts:
    """What a card is about.

    Attributes:
        name: ``owner/name`` under which the model is published.
        model: a key of the run's ``models``.
        origin: the folder of the checkpoint.
        config: of the run.
        headline: the curve by which the run is judged; None: it has none.
    """

    name: str
    model: str
    origin: str
    config: Mapping[str, Any]
    headline: Headline | None

    @property
    def trainer(self) -> str:
        """The name of the run's trainer."""
        return str((self.config.get("trainer") or {}).get("type"))

    @property
    def phases(self) -> Sequence[Mapping[str, Any]]:
        """The phases of a trainer that runs several."""
        return (self.config.get("trainer") or {}).get("phases") or ()

    def sections(self, name: str) -> Iterator[Mapping[str, Any]]:
        """A section of the run and of its phases."""
        for tree in (self.config, *self.phases):
            if isinstance(tree.get(name), Mapping):
                yield tree[name]

    @property
    def source(self) -> tuple[str, str | None] | None:
        """Name and revision of the model on the hub that was trained; None: another one."""
        for models in self.sections("models"):
            source = (models.get(self.model) or {}).get("source") or {}
            path = source.get("path")
            if path and is_hub_name(str(path)):
                return str(path), source.get("revision")
        return None

    @property
    def data_sets(self) -> list[tuple[str, str | None]]:
        """Names and revisions of the data sets of the hub that were trained on."""
        found = [(data.get("name"), data.get("revision")) for data in self.sections("data")]
        return list(dict.fromkeys((str(name), rev) for name, rev in found if name))


def card_of(facts: CardFacts, command: Any, *, adapter: bool) -> str:
    """The card of a published model: metadata in YAML, then Markdown.

    Args:
        facts: what it is about.
        command: the words that started the run, credentials hidden; anything else is left out.
        adapter: whether the LoRA adapter alone is published.
    """
    metadata: dict[str, Any] = {"library_name": "peft" if adapter else "transformers"}
    if facts.source is not None:
        metadata["base_model"] = facts.source[0]
    if facts.data_sets:
        metadata["datasets"] = [name for name, _ in facts.data_sets]
    metadata["pipeline_tag"] = "text-generation"
    metadata["tags"] = ["plugrl", "reinforcement-learning", *sorted(_trainers(facts))]
    about = [f"Trained with plugrl {__version__} by {_training(facts)}."]
    if facts.source is not None:
        about.append(f"It began as {_linked(*facts.source, '')}.")
    for data in facts.data_sets:
        about.append(f"It learned from {_linked(*data, 'datasets/')}.")
    parts = [
        f"---\n{dump_yaml(metadata)}---",
        f"# {facts.name.rpartition('/')[2]}",
        " ".join(about),
        *_results(facts.headline),
        "## How it was made",
        f"`{RECORDS}/{CONFIG_FILE}` is the whole configuration, with the revisions of what was "
        f"downloaded; `{RECORDS}/{METRICS_FILE}` has the curves, `{RECORDS}/{VERSIONS_FILE}` the "
        "versions of all packages. To train it again:",
        f'```shell\npip install "plugrl[hub]=={__version__}"\n'
        f"plugrl train {RECORDS}/{CONFIG_FILE}\n```",
    ]
    if isinstance(command, list) and command:
        first = Path(str(command[0])).name
        words = ["plugrl" if first == "__main__.py" else first, *map(str, command[1:])]
        parts.append(f"It was started as:\n\n```shell\n{shlex.join(words)}\n```")
    return "\n\n".join(parts) + "\n"


def _trainers(facts: CardFacts) -> set[str]:
    own = {str((phase.get("trainer") or {}).get("type")) for phase in facts.phases}
    return own or {facts.trainer}


def _training(facts: CardFacts) -> str:
    step = Path(facts.origin).name
    at = f" ({step})" if step.startswith("step-") else ""
    if facts.phases:
        named = [
            f"{phase.get('name')} (`{(phase.get('trainer') or {}).get('type')}`)"
            for phase in facts.phases
        ]
        return f"trainer `{facts.trainer}` in the phases {', '.join(named)}{at}"
    return f"trainer `{facts.trainer}`{at}"


def _linked(name: str, revision: str | None, prefix: str) -> str:
    at = f" at `{revision}`" if revision else ""
    return f"[{name}](https://huggingface.co/{prefix}{name}){at}"


def _results(headline: Headline | None) -> Iterator[str]:
    if headline is None:
        return
    first, last = headline.points[0], headline.points[-1]
    yield "## Results"
    yield (
        f"`{headline.metric}` went from {first[1]:.4g} at step {first[0]} to {last[1]:.4g} at step "
        f"{last[0]}; the best was {headline.best:.4g}."
    )
    yield f"![{headline.metric} over the steps]({RECORDS}/{CURVE_FILE})"
