"""The contract of data maps.

Run it with ``--plugrl-data-map NAME``, or subclass :class:`DataMapContract` with an attribute
``plugrl_data_map``. A data map gives as ``conformance``: ``row``, a row that it takes, and
``prompt_key``, the column of what it gives that is the prompt; ``dropped``, a row for which it
gives nothing, if there are such rows.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from plugrl.core.plugins.kinds import Record
from plugrl.core.text.data.maps import load_map, map_rows
from plugrl.core.text.inference.chat import is_messages
from plugrl.testing.contract import ComponentContract, needed

Map = Callable[[Any], Any]


class DataMapContract(ComponentContract):
    """The tests; they need the attribute ``plugrl_data_map``."""

    kind = "data_map"
    defaults: ClassVar[Mapping[str, Any]] = {
        "row": {"prompt": "1+1=", "question": "1+1=", "answer": "2 #### 2"},
        "prompt_key": "prompt",
        "dropped": None,
    }

    def rows(self, answer: Any) -> list[dict[str, Any]]:
        """The rows that an answer stands for."""
        many = isinstance(answer, (list, tuple))
        found: list[Any] = [] if answer is None else list(answer) if many else [answer]
        assert all(isinstance(row, Mapping) for row in found), "rows are mappings"
        return [dict(row) for row in found]

    def test_an_unknown_key_is_refused(self, cls: Any, example: Mapping[str, Any]) -> None:
        """A data map is named alone and has no section."""
        assert not example["config"]

    def test_a_row_becomes_problems(self, cls: Map, example: Mapping[str, Any]) -> None:
        found = self.rows(cls(copy.deepcopy(example["row"])))
        assert found, "nothing is left of the row"
        for row in found:
            assert all(isinstance(name, str) for name in row), "columns have names"
            prompt = row.get(example["prompt_key"])
            assert prompt, f"a problem has no column {example['prompt_key']!r}"
            assert isinstance(prompt, str) or is_messages(prompt)

    def test_it_leaves_the_row_as_it_was(self, cls: Map, example: Mapping[str, Any]) -> None:
        row = copy.deepcopy(example["row"])
        cls(row)
        assert row == example["row"]

    def test_equal_rows_give_equal_problems(self, cls: Map, example: Mapping[str, Any]) -> None:
        first, second = (self.rows(cls(copy.deepcopy(example["row"]))) for _ in range(2))
        assert first == second

    def test_problems_share_nothing_that_can_be_changed(
        self, cls: Map, example: Mapping[str, Any]
    ) -> None:
        first, second = (self.rows(cls(copy.deepcopy(example["row"]))) for _ in range(2))
        pairs = [
            (held, other[name])
            for one, other in zip(first, second, strict=True)
            for name, held in one.items()
            if isinstance(held, (list, dict))
        ]
        assert not any(a is b for a, b in pairs), "two problems share a list or mapping"

    def test_what_it_drops_is_dropped(self, cls: Map, example: Mapping[str, Any]) -> None:
        needed(example, "dropped")
        assert self.rows(cls(copy.deepcopy(example["dropped"]))) == []

    def test_data_can_name_it(self, record: Record, example: Mapping[str, Any]) -> None:
        found = map_rows([example["row"]] * 2, load_map(record.reference), "the example")
        assert list(found)


class TestDataMap(DataMapContract):
    """The contract for every ``--plugrl-data-map``."""

    __test__ = True
