"""What any journal promises: rollouts and dialogues have tests of their own."""

from __future__ import annotations

import json

import pytest

from plugrl.core.errors import RunError
from plugrl.core.run.records.journal import Journal


class Sums(Journal):
    """Numbers by name, of which the later counts."""

    action = "keep sums"

    def __init__(self, path, about="a"):
        self.found = {}
        self.rejected = []
        super().__init__(path, {"about": about})

    def accept(self, record):
        self.found[record["name"]] = record["value"] + 0

    def reject(self, found, content):
        self.rejected.append(found)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "deep" / "sums.jsonl"


def lines(path):
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_the_header_comes_with_the_first_records(path):
    journal = Sums(path)
    assert not path.exists()
    assert journal.append([{"name": "ä", "value": 1}, {"name": "b", "value": (2,)}]) == [
        {"name": "ä", "value": 1},
        {"name": "b", "value": [2]},
    ]
    journal.append([{"name": "ä", "value": 3}])
    assert lines(path)[0] == {"about": "a"}
    assert len(lines(path)) == 4
    assert path.read_bytes().isascii()


def test_of_two_records_the_later_counts_and_others_are_taken_out(path):
    journal = Sums(path)
    journal.append([{"name": "a", "value": 1}, {"name": "a", "value": 2}, {"name": "b"}])
    with path.open("ab") as file:
        file.write(b'\xff\n[]\n{"name": "c", "value": 5}\n{"name": "d", "val')
    again = Sums(path)
    assert again.found == {"a": 2, "c": 5}
    # Lines 4 to 6; the last one is what a kill has left, and no damage.
    assert again.damaged == [4, 5, 6]
    again.append([{"name": "d", "value": 6}])
    assert lines(path) == [
        {"about": "a"},
        *({"name": "a", "value": value} for value in (1, 2)),
        *({"name": name, "value": value} for name, value in (("c", 5), ("d", 6))),
    ]
    assert Sums(path).damaged == []


@pytest.mark.parametrize(
    ("content", "rejected"),
    [
        (b'{"about": "b"}\n', [{"about": "b"}]),
        (b'{"about": "a", "more": 1}\n{}\n', [{"about": "a", "more": 1}]),
        (b"hello\n", [None]),
        (b"hello", [None]),
        (b'{"abo', []),
        (b"", []),
    ],
)
def test_a_file_about_something_else_is_given_to_reject(path, content, rejected):
    path.parent.mkdir()
    path.write_bytes(content)
    journal = Sums(path)
    assert (journal.rejected, journal.found, path.read_bytes()) == (rejected, {}, content)
    if not rejected:
        journal.append([{"name": "a", "value": 1}])
        assert Sums(path).found == {"a": 1}


def test_a_file_that_cannot_be_read_is_one_line(path):
    path.mkdir(parents=True)
    with pytest.raises(RunError, match=r"^cannot keep sums: .*sums\.jsonl: Is a directory$"):
        Sums(path)
