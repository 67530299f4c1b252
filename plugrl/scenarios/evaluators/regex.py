"""Regular expression: a part of the answer is extracted, then compared with the reference."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import regex

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.text.evaluate.evaluator import BaseEvaluationTarget, EvaluationRunResult
from plugrl.scenarios.evaluators.numbers import close, parse_number
from plugrl.scenarios.evaluators.patterns import compiled_pattern, flags_of
from plugrl.scenarios.evaluators.references import ReferenceEvaluator, form


@dataclass
class RegexConfig:
    """Options of the evaluator ``regex``."""

    pattern: str = described(r"<answer>(.*?)</answer>", "what is looked for in an answer")
    group: int | str | None = described(
        None,
        "number or name of the group; null: the first, or the whole match",
        at_least=0,
        at_most=1000,
    )
    match: Literal["first", "last"] = described("last", "which of several matches counts")
    reference_pattern: str | None = described(
        None, "what is looked for in the reference; null: the reference is compared whole"
    )
    answer_key: str | None = described(
        None, "column with the reference answer; null: that of data.answer_key"
    )
    compare: Literal["text", "number"] = described("text", "compare letter by letter, or by value")
    tolerance: float = described(1e-6, "numbers: largest difference", at_least=0, at_most=1e9)
    relative_tolerance: float = described(
        0.0, "numbers: further difference, times the reference", at_least=0, at_most=1e9
    )
    strip: bool = described(True, "text: ignore white space around both")
    ignore_case: bool = described(False, "match and compare without regard to case")
    dotall: bool = described(True, "a dot in the pattern matches line breaks too")
    multiline: bool = described(False, "^ and $ match at the ends of lines too")
    correct_reward: float = described(1.0, "reward of a right answer", at_least=-1e6, at_most=1e6)
    format_reward: float = described(
        0.0, "reward of a wrong answer that the pattern matches", at_least=-1e6, at_most=1e6
    )
    wrong_reward: float = described(
        0.0, "reward of an answer that the pattern does not match", at_least=-1e6, at_most=1e6
    )
    time_limit: float = described(
        1.0, "seconds of processor time for matching one text", above=0, at_most=1e8
    )

    def __post_init__(self) -> None:
        for name in ("pattern", "reference_pattern"):
            written = getattr(self, name)
            compiled = compiled_pattern(name, written or "")
            if written is not None:
                self._check_group(name, compiled)

    def _check_group(self, name: str, compiled: Any) -> None:
        if name != "pattern" or self.group is None:
            return
        known = [*range(compiled.groups + 1), *compiled.groupindex]
        if self.group not in known:
            has = ", ".join(map(str, known))
            raise ConfigError(f"group {self.group!r} is none of the pattern's; it has: {has}")


class RegexEvaluator(ReferenceEvaluator):
    """Reward for an answer in which the pattern finds what equals the reference.

    Metrics: ``correct``, and ``extracted``: whether the pattern matches. A pattern that takes
    longer than its time on an answer makes the attempt invalid.
    """

    Config: ClassVar[type] = RegexConfig
    metric_names: ClassVar[Collection[str]] = ("correct", "extracted")
    conformance: ClassVar[dict[str, Any]] = {
        "right": "I think <answer>3</answer>, no: <answer> 2 </answer>",
        "wrong": "<answer>3</answer>",
    }

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        flags = flags_of(self.config)
        self._pattern = regex.compile(self.config.pattern, flags)
        written = self.config.reference_pattern
        self._reference = None if written is None else regex.compile(written, flags)

    def evaluate(
        self, data: Mapping[str, Any], evaluation_target: BaseEvaluationTarget
    ) -> EvaluationRunResult:
        """Extract, then compare.

        Raises:
            KeyError: the problem has no reference answer.
            ValueError: the reference does not match its pattern, or is no number.
            TimeoutError: matching took too long.
        """
        reference = self.reference(data)
        if self._reference is not None:
            found = self._extract(self._reference, None, reference)
            if found is None:
                raise ValueError(f"reference {reference!r:.80} does not match reference_pattern")
            reference = found
        extracted = self._extract(self._pattern, self.config.group, evaluation_target.final_answer)
        correct = extracted is not None and self._equal(extracted, reference)
        reward = self.config.correct_reward if correct else self.config.format_reward
        return EvaluationRunResult(
            reward=self.config.wrong_reward if extracted is None else reward,
            ground_truth=reference,
            metrics={"correct": float(correct), "extracted": float(extracted is not None)},
            extra_info={} if extracted is None else {"extracted": extracted},
        )

    def _extract(self, pattern: Any, group: int | str | None, text: str) -> str | None:
        chosen = min(1, pattern.groups) if group is None else group
        found = None
        try:
            for match in pattern.finditer(text, timeout=self.config.time_limit):
                found = match
                if self.config.match == "first":
                    break
        except TimeoutError:
            raise TimeoutError(
                f"pattern {pattern.pattern!r:.60} took more than {self.config.time_limit:g} "
                f"seconds on a text of {len(text)} characters"
            ) from None
        # A group that took no part in the match extracts nothing.
        taken: str | None = None if found is None else found.group(chosen)
        return taken.strip() if taken is not None and self.config.strip else taken

    def _equal(self, extracted: str, reference: str) -> bool:
        if self.config.compare == "number":
            expected = parse_number(reference)
            if expected is None:
                raise ValueError(f"reference {reference!r:.80} is no number")
            value = parse_number(extracted)
            limits = self.config.tolerance, self.config.relative_tolerance
            return value is not None and close(value, expected, *limits)
        return form(extracted, self.config) == form(reference, self.config)
