"""Demonstrations: trajectories made of what was written: answers, conversations or plain text."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.text.data.columns import Form, check_forms, form_of, rows_with, tools_of
from plugrl.core.text.inference.chat import (
    answer_text,
    as_messages,
    encode_conversation,
    encode_reply,
    encode_text,
)
from plugrl.core.text.rollout.task import RolloutTask
from plugrl.core.text.rollout.worker import RolloutWorkerConfig, demonstration_of
from plugrl.core.text.trajectory import Trajectory
from plugrl.scenarios.rollout_workers.single_turn import SingleTurnRolloutWorker

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight
    from plugrl.core.scenario import DataItem
    from plugrl.core.text.inference.tokenizer import Tokenizer

_MESSAGES, _TEXT = (
    Form(("messages",), ("messages",), "messages"),
    Form(("text",), ("text",), "text"),
)


@dataclass
class DemonstrationConfig(RolloutWorkerConfig):
    """Options of the rollout worker ``demonstration``."""

    learned: Literal["replies", "all"] = described(
        "replies", "what is learned of prompts with answers and of messages; text is learned whole"
    )


class DemonstrationRolloutWorker(SingleTurnRolloutWorker):
    """Gives what is written as the trajectory to learn from; validation asks the model.

    A row is a prompt with its answer (``data.answer_key``) or ``completion``, a conversation in
    ``messages``, or ``text``.
    """

    Config: ClassVar[type] = DemonstrationConfig
    gives: ClassVar[Collection[str]] = ()

    asks_now = False
    trains_on_answers: ClassVar[bool] = True
    judges_training: ClassVar[bool] = False

    @classmethod
    def preflight(cls, check: Preflight) -> Iterable[Finding]:
        """Only validation needs an evaluator."""
        validate = check.root.get("validate") or {}
        return super().preflight(check) if validate.get("enabled") else ()

    @classmethod
    def read_rows(
        cls,
        items: Sequence[DataItem],
        section: Mapping[str, Any],
        data: Mapping[str, Any],
        place: str,
        *,
        is_val: bool,
    ) -> Sequence[DataItem]:
        """The rows; held-out ones get a prompt and an answer where they have messages.

        Raises:
            ConfigError: a row has no form that is known, or another than those before it.
        """
        keys = data["prompt_key"], data["answer_key"]
        if is_val and all(keys[0] in item and "completion" not in item for item in items):
            # They are asked about, and need no answer of their own.
            return items
        forms = _forms(*keys)
        form = check_forms(items, forms, place)
        if not is_val or form == forms[0]:
            return items
        return rows_with(items, lambda row, where: _problem(row, where, form, keys))

    def rollout(self, task: RolloutTask) -> Trajectory | Awaitable[Trajectory]:
        """The demonstration of ``task``, ended as its model ends answers.

        Raises:
            ConfigError: the prompt or the answer is over its limit, or there is nothing to learn.
        """
        if task.is_val:
            return super().rollout(task)
        tokens, mask, prompt = self._written(task, task.tokenizers[self.config.model])
        if self.config.learned == "all":
            mask = [0] + [1] * (len(tokens) - 1)
        if 1 not in mask:
            raise ConfigError(
                f"problem {task.item} has nothing to learn: no reply of the assistant, or a text "
                "of one token; leave the row out"
            )
        config = self.config
        limit, settings = config.max_response_length, "rollout_worker.max_response_length"
        if not prompt:
            limit += config.max_prompt_length
            settings = f"rollout_worker.max_prompt_length + {settings.partition('.')[2]}"
        if len(tokens) - prompt > limit:
            raise ConfigError(
                f"problem {task.item} has an answer of {len(tokens) - prompt} tokens, more than "
                f"{settings}={limit}"
            )
        return demonstration_of(task, config.model, tokens[:prompt], tokens[prompt:], mask=mask)

    def _written(self, task: RolloutTask, tokenizer: Tokenizer) -> tuple[list[int], list[int], int]:
        """Tokens of a row, which are learned, and how many are its prompt."""
        row, model = task.data, self.config.model
        form = form_of(row, _forms(task.prompt_key, task.answer_key))
        if form == _TEXT:
            tokens = encode_text(tokenizer, row["text"])
            return tokens, [0] + [1] * (len(tokens) - 1), 0
        place = f"problem {task.item}"
        if form == _MESSAGES:
            messages = as_messages(row["messages"], place)
            said = encode_conversation(tokenizer, messages, model, tools=tools_of(row, place))
            return said.tokens, said.mask, 0
        if form is not None and "completion" in form.columns and task.is_chat:
            before = task.messages
            messages = [*before, *as_messages(row["completion"], place)]
            said = encode_conversation(
                tokenizer, messages, model, prompt=len(before), tools=tools_of(row, place)
            )
            self._check_prompt(task, said.tokens[: said.prompt])
            return said.tokens, said.mask, said.prompt
        completed = form is not None and "completion" in form.columns
        prompt = self._encode(task)
        text = row["completion"] if completed else task.answer
        answer = encode_reply(tokenizer, text, chat=task.is_chat)
        return [*prompt, *answer], [0] * len(prompt) + [1] * len(answer), len(prompt)


def _forms(prompt_key: str, answer_key: str) -> tuple[Form, ...]:
    completion = Form((prompt_key, "completion"), (prompt_key, "completion"))
    return Form((prompt_key, answer_key)), completion, _MESSAGES, _TEXT


def _problem(row: DataItem, place: str, form: Form, keys: tuple[str, str]) -> dict[str, Any]:
    """Prompt and answer of a held-out row.

    Raises:
        ConfigError: it is plain text, or its messages do not end with a reply.
    """
    if form == _TEXT:
        raise ConfigError(f"{place}: text has no prompt to validate on; name data with prompts")
    if "completion" in form.columns:
        return {keys[1]: _reply(row["completion"], place)}
    messages = row["messages"]
    return {keys[0]: messages[:-1], keys[1]: _reply(messages, place)}


def _reply(said: Any, place: str) -> str:
    text = said if isinstance(said, str) else answer_text(said[-1:])
    if text is None or (not isinstance(said, str) and not said):
        raise ConfigError(f"{place}: the last message is no text of the assistant to compare with")
    return text
