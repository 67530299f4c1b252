"""What evaluators have in common that compare an answer with a reference answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from plugrl.core.text.evaluate.evaluator import EvaluationFailedError, Evaluator
from plugrl.core.text.inference.chat import answer_fault, answer_text


class ReferenceEvaluator(Evaluator):
    """An evaluator whose section says in ``answer_key`` which column has the reference answer."""

    compares_answers: ClassVar[bool] = True

    @classmethod
    def columns(
        cls, section: Mapping[str, Any], data: Mapping[str, Any], path: str, *, is_val: bool
    ) -> Mapping[str, str]:
        """The column of the reference answer."""
        if section["answer_key"] is None:
            return {"data.answer_key": data["answer_key"]}
        return {f"{path}.answer_key": section["answer_key"]}

    def reference(self, data: Mapping[str, Any]) -> str:
        """The reference answer of a problem.

        Raises:
            KeyError: the problem has no such column.
            EvaluationFailedError: what it holds is no reference.
        """
        return reference_in(data, self.config.answer_key or self.reference_key)


def reference_in(data: Mapping[str, Any], column: str) -> str:
    """The reference answer that ``column`` of a problem holds.

    Raises:
        KeyError: the problem has no such column.
        EvaluationFailedError: it holds what is no text; see
            :func:`~plugrl.core.text.inference.chat.answer_text`.
    """
    answer = answer_text(data[column])
    if answer is None:
        raise EvaluationFailedError(
            f"found no reference answer: column {column!r} holds {answer_fault(data[column])}"
        )
    return answer


def form(text: str, options: Mapping[str, Any]) -> str:
    """``text`` as the options ``strip`` and ``ignore_case`` compare it."""
    text = text.strip() if options["strip"] else text
    return text.casefold() if options["ignore_case"] else text
