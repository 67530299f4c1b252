"""The contract of hubs.

Run it with ``--plugrl-hub NAME``, or subclass :class:`HubContract` with an attribute
``plugrl_hub``. A hub gives as ``conformance``: ``config``, its section; ``model`` and ``data``,
names of a model and of a data set with a split ``train`` that it has; ``files``, an address of
files of rows, as ``hf://...``; and ``missing``, a name that nobody has. What is not named is not
tried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pytest

from plugrl.core.errors import ConfigError
from plugrl.core.hub.hub import DataSetName, Hub
from plugrl.testing.contract import ComponentContract, needed


class HubContract(ComponentContract):
    """The tests; they need the attribute ``plugrl_hub``."""

    kind = "hub"
    defaults: ClassVar[Mapping[str, Any]] = {
        "model": None,
        "data": None,
        "files": None,
        "missing": None,
    }

    def test_a_model_has_its_files_at_one_commit(
        self, make: Callable[[], Hub], example: Mapping[str, Any]
    ) -> None:
        needed(example, "model")
        hub = make()
        assert hub.model_fault(example["model"], None) is None
        whole = hub.model(example["model"], None, weights=True)
        assert (whole.folder / "config.json").is_file()
        again = make().model(example["model"], whole.commit, weights=True)
        assert again.commit == whole.commit
        assert sorted(p.name for p in again.folder.iterdir()) == sorted(
            p.name for p in whole.folder.iterdir()
        )

    def test_the_rows_of_a_data_set_are_in_order(
        self, make: Callable[[], Hub], example: Mapping[str, Any]
    ) -> None:
        needed(example, "data")
        hub, data = make(), DataSetName(example["data"])
        hub.fetch(data, "train")
        rows = hub.problems(data, "train")
        assert len(rows) > 0
        assert all(isinstance(row, Mapping) for row in rows)
        assert list(map(dict, make().problems(data, "train"))) == list(map(dict, rows))
        first = hub.first_problem(data, "train")
        assert first is None or dict(first) == dict(rows[0])

    def test_a_commit_never_means_other_files(
        self, make: Callable[[], Hub], example: Mapping[str, Any]
    ) -> None:
        needed(example, "data")
        hub = make()
        commit = hub.commit(DataSetName(example["data"]))
        pinned = DataSetName(example["data"], revision=commit)
        assert hub.commit(pinned) == commit
        rows = hub.problems(DataSetName(example["data"]), "train")
        assert list(map(dict, hub.problems(pinned, "train"))) == list(map(dict, rows))

    def test_an_address_is_pinned_to_its_commit(
        self, make: Callable[[], Hub], example: Mapping[str, Any]
    ) -> None:
        needed(example, "files")
        hub = make()
        pinned = hub.pinned(example["files"])
        assert hub.pinned(pinned) == pinned
        found = hub.files(pinned)
        assert found
        assert all(path.is_file() for path in found)
        assert [p.read_bytes() for p in hub.files(example["files"])] == [
            p.read_bytes() for p in found
        ]

    def test_what_is_missing_is_refused_in_one_line(
        self, make: Callable[[], Hub], example: Mapping[str, Any]
    ) -> None:
        needed(example, "missing")
        hub, name = make(), example["missing"]
        for ask in (
            lambda: hub.model(name, None, weights=False),
            lambda: hub.model_fault(name, None),
            lambda: hub.commit(DataSetName(name)),
            lambda: hub.problems(DataSetName(name), "train"),
        ):
            with pytest.raises(ConfigError) as caught:
                ask()
            assert "\n" not in str(caught.value)

    def test_an_unknown_split_is_refused(
        self, make: Callable[[], Hub], example: Mapping[str, Any]
    ) -> None:
        needed(example, "data")
        with pytest.raises(ConfigError):
            make().problems(DataSetName(example["data"]), "no_such_split")

    @pytest.mark.parametrize("name", ["", "no-owner", "a/b/c", "../up", "owner/"])
    def test_a_name_of_another_form_is_not_published(
        self, make: Callable[[], Hub], name: str
    ) -> None:
        with pytest.raises(ConfigError):
            make().check_push(name, token=False)


class TestHub(HubContract):
    """The contract for every ``--plugrl-hub``."""

    __test__ = True
