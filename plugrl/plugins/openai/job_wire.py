"""Fine-tuning jobs in the words of OpenAI's API: files, requests, and what a job says of itself.

The fields are those of the public documents of ``/files`` and ``/fine_tuning/jobs``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plugrl.core.chat_template import Message
from plugrl.core.errors import ContractError
from plugrl.core.text.jobs.fine_tuning import (
    ASSISTANT,
    Examples,
    JobState,
    JobStatus,
    PreferenceExample,
    SupervisedExample,
)
from plugrl.plugins.openai.transport import Content

#: Key of a job's metadata that holds the name that plugrl knows it by.
NAME = "plugrl_job"
PURPOSE = "fine-tune"
_STATES: dict[str, JobState] = {
    "validating_files": "queued",
    "queued": "queued",
    "running": "running",
    "paused": "running",
    "succeeded": "succeeded",
    "failed": "failed",
    "cancelled": "cancelled",
}
#: Letters of a suffix, of which the name of the model gets these at most.
_SUFFIX = 64


def as_lines(examples: Examples) -> bytes:
    """The training file of examples of one sort."""
    lines = (json.dumps(_line(example)) for example in examples)
    return "".join(f"{line}\n" for line in lines).encode()


def _line(example: SupervisedExample | PreferenceExample) -> dict[str, Any]:
    if isinstance(example, PreferenceExample):
        return {
            "input": {
                "messages": [_message(m) for m in example.messages],
                "tools": [],
                "parallel_tool_calls": True,
            },
            "preferred_output": [{"role": ASSISTANT, "content": example.preferred}],
            "non_preferred_output": [{"role": ASSISTANT, "content": example.other}],
        }
    learned = set(example.replies)
    messages = [_message(m) for m in example.messages]
    for place, message in enumerate(messages):
        if message["role"] == ASSISTANT and place not in learned:
            message["weight"] = 0
    return {"messages": messages}


def _message(message: Message) -> dict[str, Any]:
    return {"role": message["role"], "content": message.get("content") or ""}


def upload(name: str, lines: bytes) -> Content:
    """The form that uploads a training file."""
    import httpx

    form = httpx.Request(
        "POST",
        "http://unused",
        data={"purpose": PURPOSE},
        files={"file": (name, lines, "application/jsonl")},
    )
    return Content(form.read(), form.headers["content-type"])


@dataclass(frozen=True)
class Numbers:
    """The hyperparameters of a job; ``auto`` leaves one to the service."""

    epochs: int | str
    batch_size: int | str
    learning_rate_multiplier: float | str
    beta: float | str


def method(prefers: bool, numbers: Numbers) -> dict[str, Any]:
    """The method of a job, with its hyperparameters."""
    kind = "dpo" if prefers else "supervised"
    chosen: dict[str, Any] = {
        "n_epochs": numbers.epochs,
        "batch_size": numbers.batch_size,
        "learning_rate_multiplier": numbers.learning_rate_multiplier,
    }
    if prefers:
        chosen["beta"] = numbers.beta
    return {"type": kind, kind: {"hyperparameters": chosen}}


def request(
    name: str, model: str, file: str, how: Mapping[str, Any], seed: int, suffix: str | None
) -> dict[str, Any]:
    """The request that makes a job."""
    body = {
        "model": model,
        "training_file": file,
        "method": dict(how),
        "seed": seed & 0x7FFFFFFF,
        "metadata": {NAME: name},
    }
    return body | ({"suffix": suffix[:_SUFFIX]} if suffix else {})


def read_list(answer: Any, what: str) -> list[Mapping[str, Any]]:
    """The entries of a list.

    Raises:
        ContractError: it is none.
    """
    data = answer.get("data") if isinstance(answer, Mapping) else None
    if not isinstance(data, list):
        raise ContractError(f"the server's list of {what} has no data; check base_url")
    return [entry for entry in data if isinstance(entry, Mapping)]


def identity(answer: Any, what: str) -> str:
    """The id of what was made.

    Raises:
        ContractError: there is none.
    """
    found = answer.get("id") if isinstance(answer, Mapping) else None
    if not isinstance(found, str) or not found:
        raise ContractError(f"the server made {what} and gave no id; see its log")
    return found


def has_name(job: Mapping[str, Any], name: str) -> bool:
    """Whether a job is the one called ``name``."""
    about = job.get("metadata")
    return isinstance(about, Mapping) and about.get(NAME) == name


def status(job: Any, event: Mapping[str, Any] | None) -> JobStatus:
    """What a job says of itself.

    Args:
        job: as the server describes it.
        event: its newest one, if it is known.

    Raises:
        ContractError: it has no state that is known, or succeeded without a model.
    """
    said = job.get("status") if isinstance(job, Mapping) else None
    if said not in _STATES:
        known = ", ".join(_STATES)
        raise ContractError(f"a job has status {said!r}; one of {known} is expected")
    state = _STATES[said]
    model = job.get("fine_tuned_model")
    if state == "succeeded" and not isinstance(model, str):
        raise ContractError(f"job {job.get('id')} succeeded and names no fine_tuned_model")
    message = _fault(job) if state == "failed" else str((event or {}).get("message") or said)
    return JobStatus(
        state,
        " ".join(message.split())[:500],
        model if state == "succeeded" else None,
        metrics=_numbers((event or {}).get("data")),
    )


def _fault(job: Mapping[str, Any]) -> str:
    error = job.get("error")
    if not isinstance(error, Mapping) or not error.get("message"):
        return "the service gives no reason"
    about = [str(error[key]) for key in ("code", "param") if error.get(key)]
    return f"{error['message']}" + (f" [{', '.join(about)}]" if about else "")


def _numbers(data: Any) -> dict[str, float]:
    """The numbers of an event of metrics, such as ``train_loss``."""
    if not isinstance(data, Mapping):
        return {}
    return {
        str(key): float(value)
        for key, value in data.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }
