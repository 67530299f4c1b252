"""The batch plan: from prompts to optimizer steps, so that a wrong size is seen before the run.

A trainer without optimizer steps says with a class method ``batch_plan(root)`` what it has instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plugrl.core.config.validated import ValidatedConfig
from plugrl.core.plugins.registry import default_registry

Rows = list[tuple[str, str]]


def batch_plan(validated: ValidatedConfig) -> Rows:
    """Give the plan as (what, how many) rows; empty for a trainer that has no batches of prompts.

    The rows of a phase begin with its name.
    """
    if validated.phases:
        return [
            (f"{name}: {what}", count)
            for name, phase in validated.phases
            for what, count in batch_plan(phase)
        ]
    own = getattr(validated.trainer, "batch_plan", None)
    if own is not None:
        rows: Rows = own(validated.hyper_params)
        return rows
    data = validated.tree.get("data")
    if not isinstance(data, Mapping) or "batch_size" not in data:
        return []
    trainer = validated.tree["trainer"]
    prompts, samples = data["batch_size"], data.get("rollout_repeat_n", 1)
    samples *= _trajectories(validated)
    sequences = prompts * samples
    pool = validated.tree.get("trajectory_pool") or {}
    if pool.get("check_batch_ready_function", "loaded_batch_finished") != "loaded_batch_finished":
        sequences = pool["batch_size"]
    algorithm = trainer.get("algorithm") or {}
    passes, splits = algorithm.get("epochs", 1), algorithm.get("minibatches", 1)
    rows = [
        *_loaded(prompts, samples, sequences),
        *_places(validated.tree, prompts, prompts * samples, sequences),
        *_lengths(validated.tree.get("rollout_worker")),
        ("sequences an optimizer step", _divided(sequences, splits)),
        *_micro_batches(validated.tree.get("models"), -(-sequences // splits)),
        ("optimizer steps a step", f"{passes} x {splits} = {passes * splits}"),
    ]
    steps = trainer.get("total_train_steps")
    if isinstance(steps, int):
        rows.append(("steps", str(steps)))
        rows.append(("sequences in all", str(steps * sequences)))
        rows.append(("optimizer steps in all", str(steps * passes * splits)))
    return rows


def device_plan(validated: ValidatedConfig, devices: int, machines: int) -> dict[str, Rows]:
    """Memory and communication of each of ``devices``, as rows, by the name of a trained model.

    A train service says them with a class method ``device_plan(model, devices, machines)``.
    """
    plans = {
        f"{name}: {model}": rows
        for name, phase in validated.phases
        for model, rows in device_plan(phase, devices, machines).items()
    }
    for name, model in (validated.hyper_params.get("models") or {}).items():
        record = validated.records.get(f"models.{name}.train")
        if record is not None and model.get("train") is not None:
            service = default_registry().load(record)
            plans[name] = list(service.device_plan(model, devices, machines))
    return plans


def _trajectories(validated: ValidatedConfig) -> int:
    """Sequences of one attempt, as the rollout worker says."""
    record, section = validated.records.get("rollout_worker"), validated.tree.get("rollout_worker")
    count = None
    if record is not None:
        worker = default_registry().load(record)
        count = getattr(worker, "trajectories_per_attempt", None)
    return 1 if count is None else int(count(section))


def _loaded(prompts: int, samples: int, sequences: int) -> Rows:
    product = f"{prompts} x {samples} = {prompts * samples}"
    if sequences == prompts * samples:
        return [
            ("prompts a step", str(prompts)),
            ("samples a prompt", str(samples)),
            ("sequences a step", product),
        ]
    return [
        ("prompts loaded at once", str(prompts)),
        ("samples a prompt", str(samples)),
        ("sequences loaded at once", product),
        ("sequences a step, at least", str(sequences)),
    ]


def _places(tree: Mapping[str, Any], prompts: int, attempts: int, sequences: int) -> Rows:
    """What lands where: in rollout workers, replicas and ranks that are processes elsewhere."""
    executor = (tree.get("rollout_worker") or {}).get("executor")
    #: What each has, who they are, how many there are, and what each takes of its machine.
    shares: list[tuple[str, str, int, int, Mapping[str, float]]] = []
    if isinstance(executor, Mapping) and "workers" in executor:
        takes = executor.get("resources") or {}
        who = f"process of {executor['type']}"
        shares.append(("attempts", who, attempts, executor["workers"], takes))
    for name, model in (tree.get("models") or {}).items():
        sections = (model.get(key) for key in ("inference", "train"))
        engine, ranks = (own if isinstance(own, Mapping) else {} for own in sections)
        if "replicas" in engine:
            takes = engine.get("resources") or {}
            shares.append(("prompts", f"replica of {name}", prompts, engine["replicas"], takes))
        if "workers" in ranks:
            # A GPU each where there are some, which the plan of devices tells.
            shares.append(
                ("sequences", f"rank of {name}", sequences, ranks["workers"], {"CPU": 1.0})
            )
    rows: Rows = []
    taken: dict[str, float] = {}
    for what, who, total, count, each in shares:
        rows.append((f"{what} a {who}", _divided(total, count)))
        if each:
            rows.append((f"taken by each {who}", _amounts(each)))
        for name, amount in each.items():
            taken[name] = taken.get(name, 0.0) + count * amount
    return rows + ([("taken of the cluster", _amounts(taken))] if taken else [])


def _amounts(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in resources.items())


def _lengths(worker: Any) -> Rows:
    if not isinstance(worker, Mapping):
        return []
    prompt, answer = worker.get("max_prompt_length"), worker.get("max_response_length")
    if not isinstance(prompt, int) or not isinstance(answer, int):
        return []
    return [("tokens a sequence, at most", f"{prompt} + {answer} = {prompt + answer}")]


#: Rows of a micro-batch, where neither a setting nor the memory of a GPU says how many.
MICRO_BATCH_ROWS = 64


def _micro_batches(models: Any, sequences: int) -> Rows:
    rows: Rows = []
    trained = {
        name: model["train"]
        for name, model in (models or {}).items()
        if isinstance(model, Mapping) and isinstance(model.get("train"), Mapping)
    }
    for name, service in trained.items():
        label = "micro-batches" if len(trained) == 1 else f"micro-batches of {name}"
        size, tokens = service.get("micro_batch_size"), service.get("micro_batch_tokens")
        if isinstance(tokens, int) and tokens > 0:
            rows.append((label, f"as many sequences each as fit into {tokens} tokens"))
        elif isinstance(size, int) and size > 0:
            rows.append((label, _divided(sequences, -(-sequences // size), of=size)))
        elif "micro_batch_size" in service:
            some = _divided(sequences, -(-sequences // MICRO_BATCH_ROWS), of=MICRO_BATCH_ROWS)
            rows.append((label, f"{some}; on a GPU, as many tokens each as it has memory for"))
    return rows


def _divided(total: int, parts: int, of: int | None = None) -> str:
    if of is not None:
        rest = total % of if total > of else 0
        tail = f", the last of {rest}" if rest else ""
        return f"{parts} of {min(of, total)}{tail}"
    size, rest = divmod(total, parts)
    if parts == 1:
        return str(total)
    return (
        f"{total} / {parts} = {size}" if not rest else f"{total} / {parts} = {size} or {size + 1}"
    )


def plan_text(rows: Rows) -> str:
    """Align the rows for a terminal."""
    width = max((len(what) for what, _ in rows), default=0)
    return "\n".join(f"{what.ljust(width)}  {count}" for what, count in rows)
