"""What a text run asks of its data, looked up in headers and first records."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from plugrl.core.config.names import OF_FILE, columns_in, model_fault, split_fault
from plugrl.core.config.preflight import section_at
from plugrl.core.errors import ConfigError, PlugrlError
from plugrl.core.hub.hub import DataSetName, find_hub
from plugrl.core.plugins.kinds import ARGUMENT
from plugrl.core.protocol.protocol import make_protocol
from plugrl.core.text.data.files import first_problem, read_files
from plugrl.core.text.data.loader import data_set_of, filter_items, map_of, require_answers
from plugrl.core.text.data.maps import load_map, map_rows
from plugrl.core.text.inference.chat import answer_fault, answer_text
from plugrl.core.text.inference.sampling import unfit_stop_token
from plugrl.core.text.rollout.worker import RolloutWorker, RolloutWorkerConfig
from plugrl.core.text.schedule.pool import REACHED, RULES
from plugrl.core.text.schedule.state_machine import FULLY_ASYNC
from plugrl.core.text.trajectory import Trajectory
from plugrl.core.wording import did_you_mean

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight

logger = logging.getLogger(__name__)
_ANSWER = "data.answer_key"


def text_findings(check: Preflight) -> Iterator[Finding]:
    """Faults of data, validation data and models of a trajectory trainer."""
    root = check.root
    models = check.models
    if not models:
        yield "models", "names no model; give one, such as models.policy, a source"
    if models and not any(models[name].get("train") is not None for name in models):
        yield (
            "models",
            ("no model is trained; give one a train service, such as models.policy.train: local"),
        )
    for name in models:
        if models[name].get("fine_tune") is not None:
            yield (
                f"models.{name}.fine_tune",
                "is for trainers that train by jobs, such as ei_pure_text; write "
                f"models.{name}.train, or leave it out",
            )
    worker = root.rollout_worker
    checked = getattr(check.component("rollout_worker"), "checks_models", False)
    if models and worker.get("model") is not None and not checked:
        yield from model_findings(check, "rollout_worker.model", worker.model)
        yield from stop_findings(check, "rollout_worker", [worker.model])
    yield from _argument_findings(check)
    data, validate = root.data, root.validate
    files = () if data.type == "scenario" else data.data_files
    yield from data_findings(check, "data", files, [data.split], "split")
    yield from _pool_findings(root, check.validated.trainer)
    yield from _context_findings(check)
    if validate.enabled:
        section = validate.data
        files = section.data_files
        yield from data_findings(check, "validate.data", files, section.splits, "splits")


def _argument_findings(check: Preflight) -> Iterator[Finding]:
    """Worker processes, which do not have the functions that a Python program gave the run."""
    worker = check.root.rollout_worker
    executor = worker.get("executor")
    key, value = "processes", worker.get("processes")
    remedy = "write 0"
    if executor is not None:
        key, value, remedy = "executor", executor.type, "leave it out"
    for path, record in check.validated.records.items():
        if record.source == ARGUMENT and value:
            yield (
                f"rollout_worker.{key}",
                f"is {value}, and {record.name} of {path} is a function of this program, which "
                f"other processes do not have; {remedy}, or give a file, "
                f"rollout_worker.evaluator_module_path=FILE.py:{record.name}",
            )
            return


def model_findings(
    check: Preflight, path: str, name: str, *, role: str | None = None
) -> Iterator[Finding]:
    """A model that the setting at ``path`` names and that is not there, or must not be trained.

    Args:
        check: the configuration.
        path: of the setting.
        name: what it says.
        role: what the model is, such as "a reference", where it must be frozen.
    """
    models = check.models
    fault = model_fault(models, name)
    if fault is not None:
        yield path, fault if role is None else f"{fault}; add it, without a train service"
    elif role is not None and models[name].get("train") is not None:
        remedy = f"name another, or leave models.{name}.train out"
        yield path, f"model {name!r} is trained; {role} must be frozen: {remedy}"


def agents_of_protocol(check: Preflight) -> Sequence[str] | None:
    """The agents of the protocol that the rollout worker plays; None: it plays none."""
    protocol = check.root.rollout_worker.get("protocol")
    try:
        return None if protocol is None else make_protocol(protocol).agent_names
    except PlugrlError:
        # It says itself what is wrong with it.
        return None


def stop_findings(check: Preflight, path: str, names: Iterable[str]) -> Iterator[Finding]:
    """Tokens of ``stop_token_ids`` that a model never says.

    Args:
        check: the configuration.
        path: of the section that has the setting.
        names: of the models that are asked so.
    """
    tokens = section_at(check.root, path).get("stop_token_ids") or ()
    for name in dict.fromkeys(names) if tokens else ():
        look = getattr(check.component(f"models.{name}.inference"), "known_vocabulary", None)
        known = None if look is None else look(check.root.models[name].source)
        fault = unfit_stop_token(tokens, name, known)
        if fault:
            yield f"{path}.stop_token_ids", fault


def _pool_findings(root: Any, trainer: Any) -> Iterator[Finding]:
    """Rules with which a batch would never be ready, or would wait over a sync."""
    pool, samples = root.trajectory_pool, root.data.rollout_repeat_n
    if pool.drop_equal_groups and not getattr(trainer, "uses_rewards", True):
        yield (
            "trajectory_pool.drop_equal_groups",
            f"drops groups whose rewards are equal, and {trainer.__name__} learns from no rewards; "
            "write false",
        )
    sequences = max(root.data.batch_size * samples, pool.batch_size or 1)
    minibatches = (root.trainer.get("algorithm") or {}).get("minibatches")
    if isinstance(minibatches, int) and minibatches > sequences:
        yield (
            "trainer.algorithm.minibatches",
            f"is {minibatches}, and a step has {sequences} sequences to divide; write at most "
            "as many",
        )
    if "group_id" in pool.key_list and (pool.group_size or 0) > samples:
        yield (
            "trajectory_pool.group_size",
            f"a prompt is attempted data.rollout_repeat_n={samples} times, so no group of "
            f"{pool.group_size} attempts can become complete",
        )
    if "run_id" in pool.key_list and "group_id" not in pool.key_list:
        yield (
            "trajectory_pool.key_list",
            "run_id numbers the attempts at a prompt, so that a group would hold different "
            "prompts; write group_id, which names the prompt",
        )
    loaded = root.data.batch_size * samples
    reached = RULES[pool.check_batch_ready_function] == REACHED
    if root.weight.sync_mode == FULLY_ASYNC:
        if not reached:
            yield (
                "weight.sync_mode",
                "fully-async trains as soon as enough attempts have ended, whatever was loaded; "
                "set trajectory_pool.check_batch_ready_function=batch_size_reached and "
                f"trajectory_pool.batch_size, such as {loaded}",
            )
        return
    if reached and pool.batch_size % loaded and root.weight.staleness_threshold < 1:
        yield (
            "trajectory_pool.batch_size",
            f"{loaded} trajectories are loaded at once, so that some wait over a weight sync and "
            f"are dropped; use a multiple of {loaded}, or set weight.staleness_threshold=1",
        )


def context_of(check: Preflight, name: str) -> int | None:
    """The longest sequence of a model, without loading it; None: unknown, or no such model."""
    look = getattr(check.component(f"models.{name}.inference"), "context_length", None)
    return None if look is None else look(check.root.models[name].source)


def _context_findings(check: Preflight) -> Iterator[Finding]:
    """Lengths that the context of the asked model does not have room for."""
    root, worker = check.root, check.root.rollout_worker
    name, answer = worker.get("model"), worker.get("max_response_length")
    context = context_of(check, name)
    if context is None or answer is None:
        return
    of = f"the context of model {name!r}, which is {context} tokens"
    defaults = RolloutWorkerConfig()
    if answer >= context and answer != defaults.max_response_length:
        yield (
            "rollout_worker.max_response_length",
            f"answers of {answer} tokens leave no room for a prompt in {of}; lower it",
        )
        return
    prompt = worker.get("max_prompt_length") or 0
    chosen = root.data.filter_prompts or prompt != defaults.max_prompt_length
    if chosen and prompt + answer > context:
        logger.warning(
            "rollout_worker.max_prompt_length=%d and max_response_length=%d are more than %s: "
            "answers to prompts of more than %d tokens are cut short",
            prompt, answer, of, max(0, context - answer),
        )  # fmt: skip


def _key_findings(check: Preflight, item: Mapping[str, Any], origin: str) -> Iterator[Finding]:
    """Keys of groups that are neither fields nor columns, where the worker gives no others."""
    worker = check.component("rollout_worker")
    gives = None if worker is None else vars(worker).get("gives")
    if gives is None:
        return
    known = {*(field.name for field in fields(Trajectory)), *gives, *item}
    pool = check.root.get("trajectory_pool")
    for number, key in enumerate(() if pool is None else pool.key_list):
        if key not in known:
            yield (
                f"trajectory_pool.key_list[{number}]",
                f"{key!r} is no field of a trajectory, and {origin} has no such column; it has: "
                f"{', '.join(map(str, item))}{did_you_mean(key, sorted(map(str, known)), 1)}",
            )


def data_findings(
    check: Preflight,
    path: str,
    files: Sequence[str],
    splits: Sequence[str],
    key: str,
    *,
    off: str = "validate.enabled=false",
) -> Iterator[Finding]:
    """Data that is missing or lacks columns.

    Args:
        check: the configuration.
        path: the section, `data` or `validate.data`.
        files: that it names; without any, the problems are those of a data set or of the scenario.
        splits: of the data set or of the scenario.
        key: of the section, which names the splits.
        off: the setting without which held-out data is not needed.
    """
    is_val = path != "data"
    section, general = section_at(check.root, path), check.root.data
    written, map_at = map_of(section, general, path)
    try:
        function = None if written is None else load_map(written, check.registry)
    except ConfigError as error:
        yield map_at, str(error)
        return

    def mapped(items: Iterable[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        return list(items if function is None else map_rows(items, function, map_at))

    def read(row: Mapping[str, Any], origin: str) -> Iterator[Finding]:
        try:
            made = mapped([row])
        except ConfigError as error:
            yield map_at, str(error).removeprefix(f"{map_at}: ")
            return
        # Where the map leaves the first row out, what it makes of others is not known yet.
        if made:
            yield from _row_findings(check, path, made[0], origin)

    worker = check.component("rollout_worker")
    trained = None
    if not is_val and getattr(worker, "trains_on_answers", False):
        trained = general.answer_key
    if files:
        found = list(_file_findings(path, files, read))
        yield from found
        if not found and not is_val and (trained is not None or _reads_forms(worker)):
            yield from _answer_findings(check, lambda: mapped(read_files(files)), trained)
        return
    wanted = {
        f"{path}.{key}[{number}]" if key == "splits" else f"{path}.{key}": split
        for number, split in enumerate(splits)
    }
    named = data_set_of(section, general)
    if named is not None:
        yield from _data_set_findings(named, wanted, read, path if section.get("name") else None)
        return
    off = f", or set {off}" if is_val else ""
    if check.root.get("scenario") is None:
        instead = f"set {path}.data_files, {path}.name or a scenario{off}"
        yield f"{path}.data_files", f"no data; {instead}"
        return
    yield from split_findings(check, wanted, read, holds="problems", remedy=off)
    if trained is not None:
        yield from _answer_findings(
            check, lambda: mapped((check.scenario or {}).get(splits[0], ())), trained
        )


def _file_findings(
    path: str,
    files: Sequence[str],
    read: Callable[[Mapping[str, Any], str], Iterable[Finding]],
) -> Iterator[Finding]:
    """Data files that cannot be read or are empty, and what is wrong with their first rows.

    Args:
        path: the section that names them.
        files: their paths.
        read: gives the findings about the first row and what messages call the file.
    """
    for number, file in enumerate(files):
        try:
            row = first_problem(file)
        except ConfigError as error:
            yield f"{path}.data_files[{number}]", str(error)
            continue
        if row is not None:
            yield from read(row, f"data file {file}")
        elif len(files) == 1:
            yield f"{path}.data_files[{number}]", f"data file {file} holds no problems"


def _row_findings(
    check: Preflight, path: str, row: Mapping[str, Any], origin: str
) -> Iterator[Finding]:
    """What the rollout worker, its evaluators and the trainer lack of a row.

    Args:
        check: the configuration.
        path: the section that the row belongs to, `data` or `validate.data`.
        row: as the map of the section has made it.
        origin: what messages call the file or split.
    """
    is_val, general = path != "data", check.root.data
    worker, columns = check.component("rollout_worker"), _columns(check, is_val)
    if _reads_forms(worker):
        if general.prompt_key == "prompt":
            # Some forms have no prompt, and the worker looks for it in those that have.
            del columns["data.prompt_key"]
        section = check.root.rollout_worker
        try:
            row = worker.read_rows([row], section, general, path, is_val=is_val)[0]
        except ConfigError as error:
            # A column that a setting names tells more than the forms that there are.
            lacking = list(missing_columns(row, columns, origin))
            yield from lacking or [(path, str(error).removeprefix(f"{path}: "))]
            return
    yield from missing_columns(row, columns, origin)
    for setting, column in _answers(check, is_val).items():
        if column in row and answer_text(row[column]) is None:
            yield setting, f"column {column!r} of {origin} holds {answer_fault(row[column])}"
    if not is_val:
        yield from _key_findings(check, row, origin)


def _data_set_findings(
    named: DataSetName,
    wanted: Mapping[str, str],
    read: Callable[[Mapping[str, Any], str], Iterable[Finding]],
    path: str | None,
) -> Iterator[Finding]:
    """A data set of the hub that cannot be had, its splits, and their first rows.

    Args:
        named: the data set.
        wanted: splits by the path of the setting that names them.
        read: gives the findings about the first row and what messages call the split.
        path: the section that names the data set; None: another does, and says what is wrong.
    """
    try:
        hub = find_hub()
        hub.commit(named)
    except ConfigError as error:
        if path is not None:
            yield f"{path}.name", str(error)
        return
    for where, split in wanted.items():
        try:
            item = hub.first_problem(named, split)
        except ConfigError as error:
            yield where, str(error)
            continue
        if item is not None:
            yield from read(item, f"split {split!r} of data set {named}")


def _reads_forms(worker: Any) -> bool:
    """Whether a rollout worker reads rows in other forms than with a prompt."""
    own = getattr(worker, "read_rows", None)
    return own is not None and own.__func__ is not vars(RolloutWorker)["read_rows"].__func__


def _answer_findings(
    check: Preflight, items: Callable[[], Sequence[Mapping[str, Any]]], column: str | None
) -> Iterator[Finding]:
    """The first of all rows whose answer, which is trained on, is none, or that has no form."""
    try:
        chosen = filter_items(items(), check.root.data.keep)
    except ConfigError:
        # Said elsewhere, or when the run loads them.
        return
    try:
        if column is not None:
            require_answers(chosen, column)
    except ConfigError as error:
        yield _ANSWER, str(error)
        return
    worker = check.component("rollout_worker")
    if _reads_forms(worker):
        try:
            worker.read_rows(
                chosen, check.root.rollout_worker, check.root.data, "data", is_val=False
            )
        except ConfigError as error:
            yield "data", str(error).removeprefix("data: ")


def split_findings(
    check: Preflight,
    wanted: Mapping[str, str],
    read: Callable[[Mapping[str, Any], str], Iterable[Finding]],
    *,
    holds: str,
    remedy: str = "",
) -> Iterator[Finding]:
    """Splits that the scenario lacks, or that are empty, and what is wrong with the others.

    Args:
        check: the configuration, which has a scenario.
        wanted: splits by the path of the setting that names them.
        read: gives the findings about a split from its first item and what messages call the split.
        holds: what a split consists of, such as "problems".
        remedy: what to do without a split, at the end of messages.
    """
    try:
        datasets = check.scenario
    except ConfigError as error:
        yield "scenario", str(error)
        return
    if datasets is None:
        return
    name = check.root.scenario.get("type") or OF_FILE
    for where, split in wanted.items():
        fault = split_fault(split, datasets, name, remedy)
        if fault is not None:
            yield where, fault
        elif not datasets[split]:
            yield where, f"split {split!r} of scenario {name!r} holds no {holds}{remedy}"
        else:
            yield from read(datasets[split][0], f"split {split!r} of scenario {name!r}")


def _columns(check: Preflight, is_val: bool) -> dict[str, str]:
    """The columns that are read, by the path of the setting that names them."""
    data = check.root.data
    columns = {"data.prompt_key": data.prompt_key}
    if data.answer_key != "answer":
        # Somebody chose it, so somebody wants it.
        columns[_ANSWER] = data.answer_key
    if not is_val:
        columns |= {f"data.keep.{column}": column for column in data.keep}
        if data.curriculum is not None and data.curriculum.column is not None:
            columns["data.curriculum.column"] = data.curriculum.column
    source = check.root.validate.get("data_source_key", "data_source")
    if is_val and source != "data_source":
        columns["validate.data_source_key"] = source
    for _, own_columns in _read_by(check, is_val):
        columns |= own_columns
    return columns if is_val else columns | other_columns(check)


def other_columns(check: Preflight) -> dict[str, str]:
    """The columns that components name besides the worker and what is within it."""
    found: dict[str, str] = {}
    for path in check.validated.records:
        if path.partition(".")[0] != "rollout_worker":
            found |= columns_in(check.component(path), section_at(check.root, path), path)
    return found


def _read_by(check: Preflight, is_val: bool) -> Iterator[tuple[Any, Mapping[str, str]]]:
    """The worker, its evaluator and those that this one is made of, each with what it reads."""
    judges = getattr(check.component("rollout_worker"), "judges_training", True)
    for path in check.validated.records:
        component = check.component(path)
        reads = getattr(component, "columns", None)
        if path.startswith("rollout_worker.") and not (is_val or judges):
            continue
        if reads is not None and path.partition(".")[0] == "rollout_worker":
            section = section_at(check.root, path)
            yield component, reads(section, check.root.data, path, is_val=is_val)


def _answers(check: Preflight, is_val: bool) -> dict[str, str]:
    """The columns that must hold answers as text, by the path of the setting that names them."""
    return {
        setting: column
        for component, own in _read_by(check, is_val)
        for setting, column in own.items()
        if setting.endswith("answer_key") and getattr(component, "compares_answers", False)
    }


def missing_columns(
    item: Mapping[str, Any], columns: Mapping[str, str], origin: str
) -> Iterator[Finding]:
    """Columns that a problem lacks, by the setting that names each."""
    for setting, column in columns.items():
        if column not in item:
            has = ", ".join(map(str, item)) or "nothing"
            close = did_you_mean(column, map(str, item), 1)
            yield setting, f"{origin} has no column {column!r}; it has: {has}{close}"
