"""Forms of rows: which columns data sets have to learn from, as TRL documents them.

A form is a set of columns. Its texts are plain (*standard*) or lists of messages
(*conversational*), the same in all of its columns; all rows of a data set have one form.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plugrl.core.errors import ConfigError
from plugrl.core.scenario import DataItem
from plugrl.core.text.data.files import FileItem, place_of_problem
from plugrl.core.text.inference.chat import as_messages, is_messages


@dataclass(frozen=True)
class Form:
    """A form of rows.

    Attributes:
        columns: that a row has, the prompt first where there is one.
        texts: those of them that hold texts, or all messages; empty: whatever reads them looks.
        only: the one sort that the texts may have, ``text`` or ``messages``; empty: either.
    """

    columns: tuple[str, ...]
    texts: tuple[str, ...] = ()
    only: str = ""

    def __str__(self) -> str:
        return " with ".join((self.columns[0], ", ".join(self.columns[1:]))).removesuffix(" with ")

    def fits(self, row: DataItem) -> bool:
        """Whether a row has the columns, with something in those that hold texts."""
        held = all(row.get(column) is not None for column in self.texts)
        return held and all(column in row for column in self.columns)

    def sort(self, row: DataItem, place: str) -> str:
        """Whether the texts of a row are ``text`` or ``messages``; empty: it has none of them.

        Raises:
            ConfigError: one is neither, or they differ.
        """
        sorts = {column: _sort(row[column], column, place) for column in self.texts}
        first = self.only or next(iter(sorts.values()), "")
        for column, sort in sorts.items():
            if sort != first:
                other = "must be text" if first == "text" else "must be a list of messages"
                beside = "" if self.only else f", as column {self.texts[0]!r} is"
                kind = "text" if sort == "text" else "a list"
                raise ConfigError(f"{place}: column {column!r} is {kind} and {other}{beside}")
        return first


def form_of(row: DataItem, forms: Sequence[Form]) -> Form | None:
    """The first of several forms that a row has; None: it has none."""
    return next((form for form in forms if form.fits(row)), None)


def check_forms(items: Sequence[DataItem], forms: Sequence[Form], setting: str) -> Form:
    """The form that all rows have.

    Args:
        items: the rows; at least one.
        forms: that are accepted.
        setting: where the data is named, for messages.

    Raises:
        ConfigError: a row has none of them or another than those before it, or a column holds
            what it must not.
    """
    first: tuple[Form, str, str] | None = None
    for number, item in enumerate(items):
        place, form = place_of_problem(item, number), form_of(item, forms)
        accepted = "; ".join(map(str, forms))
        if form is None:
            raise ConfigError(
                f"{setting}: {place} has {columns_of(item)}; the columns of one of these forms are "
                f"expected: {accepted}"
            )
        try:
            sort = form.sort(item, place)
        except ConfigError as error:
            raise ConfigError(
                f"{setting}: {error}; it has {columns_of(item)}, and the forms are: {accepted}"
            ) from None
        if first is None:
            first = form, sort, place
        elif (form, sort) != first[:2]:
            raise ConfigError(
                f"{setting}: {place} has {columns_of(item)} ({_told(form, sort)}), and {first[2]} "
                f"is {_told(*first[:2])}; give all rows one form"
            )
    if first is None:
        raise ConfigError(f"{setting}: there are no rows")
    return first[0]


def _told(form: Form, sort: str) -> str:
    return f"{form}, as {sort}" if sort else str(form)


def columns_of(item: DataItem) -> str:
    """How messages list the columns of a row that hold something."""
    has = ", ".join(str(column) for column, value in item.items() if value is not None)
    return f"columns {has}" if has else "no columns"


def _sort(value: Any, column: str, place: str) -> str:
    if isinstance(value, str):
        return "text"
    if not is_messages(value):
        kind = type(value).__name__
        raise ConfigError(
            f"{place}: column {column!r} holds {kind}; a text or a list of messages is expected"
        )
    as_messages(value, f"{place}: column {column!r}")
    return "messages"


def with_values(item: DataItem, **values: Any) -> DataItem:
    """A copy of a row with other values, which still knows its place in a file."""
    changed = {**item, **values}
    place = getattr(item, "place", "")
    return FileItem(changed, place) if place else changed


def tools_of(item: DataItem, place: str) -> Sequence[Mapping[str, Any]] | None:
    """What the chat template is shown of tools: column ``tools``, a list or its JSON.

    Raises:
        ConfigError: it holds something else, or the row wants other variables of the template.
    """
    if item.get("chat_template_kwargs"):
        raise ConfigError(
            f"{place}: column 'chat_template_kwargs' is not read; leave it out, and write what it "
            "says into source.tokenizer.chat_template of the model"
        )
    tools = item.get("tools")
    if isinstance(tools, str):
        try:
            tools = json.loads(tools)
        except ValueError:
            tools = ""
    if tools is None or isinstance(tools, (list, tuple)):
        return tools or None
    raise ConfigError(f"{place}: column 'tools' is no list of tools and no JSON of one")


def extract_prompt(chosen: Any, rejected: Any) -> tuple[Any, Any, Any]:
    """The prompt that two answers begin with, and what is left of each.

    It is the longest common beginning, of characters or messages; a text leaves a space before
    the first difference to the answers. The shorter answer keeps its last character or message.
    This is ``trl.extract_prompt``.
    """
    shorter = min(len(chosen), len(rejected))
    cut = next((i for i in range(shorter) if chosen[i] != rejected[i]), shorter - 1)
    if cut > 0 and chosen[cut] != rejected[cut] and chosen[cut - 1] == " ":
        cut -= 1
    cut = max(cut, 0)
    return chosen[:cut], chosen[cut:], rejected[cut:]


def rows_with(
    items: Sequence[DataItem], change: Callable[[DataItem, str], Mapping[str, Any]]
) -> list[DataItem]:
    """The rows with what ``change`` gives for each row and its place."""
    return [
        with_values(item, **change(item, place_of_problem(item, number)))
        for number, item in enumerate(items)
    ]
