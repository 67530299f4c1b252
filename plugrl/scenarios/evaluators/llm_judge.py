"""A language model as judge: it is shown the answer, and its reply is read for a score."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.text.evaluate.evaluator import (
    BaseEvaluationTarget,
    EvaluationFailedError,
    EvaluationRunResult,
    Evaluator,
)
from plugrl.core.text.inference.chat import as_messages, encode_question, is_messages
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.core.wording import misspelt_field
from plugrl.scenarios.evaluators.judge_replies import (
    SCORE_PATTERN,
    check_number_pattern,
    last_number,
)
from plugrl.scenarios.evaluators.numbers import parse_number
from plugrl.scenarios.evaluators.references import reference_in

TEMPLATE = """\
You grade answers. Compare the answer with the reference and give it a score from 0 (wrong) to 1
(right).

Question:
{question}

Reference:
{reference}

Answer:
{answer}

Think briefly, then end with a line such as "Score: 0.5"."""
_NAMES = ("question", "answer", "reference")
_FIELDS = re.compile(rf"\{{({'|'.join(_NAMES)})\}}")


@dataclass
class LlmJudgeConfig:
    """Options of the evaluator ``llm_judge``."""

    model: str = described("judge", "the model that judges, a key of `models`", names="model")
    template: str = described(
        TEMPLATE, "what it is asked; {question}, {answer} and {reference} are filled in"
    )
    chat: bool = described(True, "send it as a chat message, by the model's template, or as text")
    question_key: str | None = described(
        None, "column with the question; null: that of data.prompt_key"
    )
    answer_key: str | None = described(
        None, "column with the reference answer; null: that of data.answer_key"
    )
    parse: Literal["regex", "json"] = described("regex", "how a reply is read for its score")
    pattern: str = described(
        SCORE_PATTERN,
        "regex: its first group in the last match is the score; case does not matter",
    )
    json_key: str = described("score", "json: key of the score in the last object of the reply")
    minimum: float = described(
        0.0, "lowest score; a lower one is no score", at_least=-1e6, at_most=1e6
    )
    maximum: float = described(
        1.0, "highest score; a higher one is no score", at_least=-1e6, at_most=1e6
    )
    normalize: bool = described(False, "scale scores from minimum..maximum to 0..1")
    temperature: float = described(
        0.0, "sampling temperature of the judge; 0: greedy", at_least=0, at_most=100
    )
    max_response_length: int = described(512, "longest reply in tokens", at_least=1, at_most=10**8)

    def __post_init__(self) -> None:
        slip = misspelt_field(self.template, _NAMES)
        if slip is not None:
            raise ConfigError(f"template cannot fill in {slip}")
        named = set(_FIELDS.findall(self.template))
        if "answer" not in named:
            raise ConfigError("template has no {answer}, so the judge would not see it")
        check_number_pattern("pattern", self.pattern, "score")
        if not self.minimum < self.maximum:
            raise ConfigError("minimum must be below maximum")


class LlmJudgeEvaluator(Evaluator):
    """The score that a model of ``models`` gives an answer.

    Metrics: ``judge_score`` and ``judge_tokens``, the length of the reply. A reply without a score
    makes the attempt invalid.
    """

    Config: ClassVar[type] = LlmJudgeConfig
    metric_names: ClassVar[Collection[str]] = ("judge_score", "judge_tokens")
    conformance: ClassVar[dict[str, Any]] = {
        "config": {"chat": False, "template": "{question}{reference}|{answer}"},
        # What the model replies to a prompt.
        "reply": lambda prompt: f"Score: {float(prompt.endswith('|2'))}",
    }

    compares_answers: ClassVar[bool] = True

    @classmethod
    def columns(
        cls, section: Mapping[str, Any], data: Mapping[str, Any], path: str, *, is_val: bool
    ) -> Mapping[str, str]:
        """The columns that the template shows."""
        found = {}
        named = set(_FIELDS.findall(section["template"]))
        for field, key, general in (
            ("question", "question_key", "prompt_key"),
            ("reference", "answer_key", "answer_key"),
        ):
            if field in named:
                own = section[key]
                setting = f"data.{general}" if own is None else f"{path}.{key}"
                found[setting] = data[general] if own is None else own
        return found

    async def evaluate(
        self, data: Mapping[str, Any], evaluation_target: BaseEvaluationTarget
    ) -> EvaluationRunResult:
        """Ask the judge and read its reply.

        Raises:
            KeyError: the problem has no such column.
            EvaluationFailedError: the reply holds no score between ``minimum`` and ``maximum``.
        """
        config = self.config
        values = {"answer": evaluation_target.final_answer}
        named = set(_FIELDS.findall(config.template))
        if "question" in named:
            values["question"] = _text(data[config.question_key or self.prompt_key])
        if "reference" in named:
            values["reference"] = reference_in(data, config.answer_key or self.reference_key)
        # Once over the template: what an answer holds in braces stays as it is.
        prompt = _FIELDS.sub(lambda match: values[match[1]], config.template)
        sampling = SamplingParams(
            temperature=config.temperature, max_new_tokens=config.max_response_length
        )
        tokenizer = self.tokenizer(config.model)
        tokens = encode_question(tokenizer, prompt, config.model, chat=config.chat)
        completion = await self.ask(config.model, tokens, sampling)
        reply = tokenizer.decode(completion.tokens)
        score = self._score(reply)
        if config.normalize:
            score = (score - config.minimum) / (config.maximum - config.minimum)
        return EvaluationRunResult(
            reward=score,
            ground_truth=values.get("reference", ""),
            metrics={"judge_score": score, "judge_tokens": float(len(completion.tokens))},
            extra_info={"judge_reply": reply},
        )

    def _score(self, reply: str) -> float:
        config = self.config
        found = self._json_score(reply) if config.parse == "json" else self._pattern_score(reply)
        number = None if found is None else parse_number(found)
        if number is None or not config.minimum <= number <= config.maximum:
            raise EvaluationFailedError(
                f"LlmJudgeEvaluator: no score from {config.minimum:g} to {config.maximum:g} in the "
                f"reply {reply[-120:]!r} of model {config.model!r}"
            )
        return float(number)

    def _pattern_score(self, reply: str) -> str | None:
        return last_number(self.config.pattern, reply)[0]

    def _json_score(self, reply: str) -> str | None:
        """The score of the last JSON object in the reply that has one."""
        decoder, found, position = json.JSONDecoder(), None, reply.find("{")
        while position >= 0:
            end = position + 1
            try:
                value, end = decoder.raw_decode(reply, position)
            except (ValueError, RecursionError):
                value = {}
            score = value.get(self.config.json_key)
            if isinstance(score, (int, float, str)) and not isinstance(score, bool):
                found = str(score)
            position = reply.find("{", end)
        return found


def _text(value: Any) -> str:
    """A column as text; of messages, who says what."""
    if not is_messages(value):
        return str(value)
    messages = as_messages(value, "the question")
    return "\n".join(f"{message['role']}: {message.get('content') or ''}" for message in messages)
