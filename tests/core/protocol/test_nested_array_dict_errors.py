"""What nested dictionaries refuse: one line, with the key, its shape and what was expected."""

from __future__ import annotations

import numpy as np
import pytest

from plugrl import NestedArrayDict, UsageError


def tree():
    entries = {"a": np.zeros((2, 3, 4)), "n": {"b": np.zeros((2, 3)), "s": [["x"] * 3] * 2}}
    return NestedArrayDict(entries, (2, 3))


def numbers():
    return tree().exclude(("n", "s"))


REFUSED = [
    (lambda: tree()["zz"], KeyError, "no key 'zz'; it has 'a', 'n'"),
    (lambda: tree()["n", "zz"], KeyError, "no key ('n', 'zz'); under 'n' has 'b', 's'"),
    (lambda: tree()["a", "zz"], KeyError, "no key ('a', 'zz'): 'a' is an array, not a nested"),
    (lambda: tree().get(0), KeyError, "0 is no key; give a string or a tuple"),
    (lambda: 0 in tree(), KeyError, "0 is no key"),
    (lambda: NestedArrayDict({(): 1}), KeyError, "() is no key"),
    (lambda: tree().set("c", np.zeros((3, 2))), ValueError, "'c' has shape (3, 2), but its first"),
    (lambda: tree().set(("n", "q", "c"), 1), ValueError, "('n', 'q', 'c') has shape (), but"),
    (lambda: tree().set(("a", "c"), np.zeros((2, 3))), KeyError, "no key ('a', 'c'): 'a' is an"),
    (lambda: tree().set("c", {"d": {"e": 1}}), ValueError, "('c', 'd', 'e') has shape ()"),
    (lambda: tree().update({"n": {"b": 1}}), ValueError, "('n', 'b') has shape (), but its first"),
    (
        lambda: tree().set("c", b"ab"),
        TypeError,
        "'c': bytes cannot be held (an entry is of type bytes); give num",
    ),
    (
        lambda: tree().set("c", [[1, "a", 2]] * 2),
        TypeError,
        "'c': list cannot be held (an entry is",
    ),
    (lambda: tree().set("c", object()), TypeError, "(an entry is of type object)"),
    (lambda: tree().set("c", [[1], [2, 3]]), TypeError, "'c': list cannot be held (setting an"),
    (lambda: tree().set("c", [["\ud800"] * 3] * 2), TypeError, "surrogates not allowed"),
    (
        lambda: tree().set("c", np.zeros((2, 3), "M8[s]")),
        TypeError,
        "(an entry is of type datetime)",
    ),
    (lambda: NestedArrayDict([1]), TypeError, "a list has no entries; give a mapping"),
    (lambda: setattr(tree(), "batch_size", (2, 4)), ValueError, "'a' has shape (2, 3, 4), but its"),
    (lambda: tree().set_("n", 1), KeyError, "'n' is a nested dictionary; name an array in it"),
    (
        lambda: tree().set_("a", np.zeros((2, 3))),
        ValueError,
        "'a' has shape (2, 3, 4), but the val",
    ),
    (lambda: tree().set_(("n", "b"), [["x"] * 3] * 2), TypeError, "strings and numbers do not mix"),
    (lambda: tree().del_(("n", "zz")), KeyError, "no key ('n', 'zz')"),
    (lambda: tree().pop("zz"), KeyError, "no key 'zz'"),
    (lambda: tree().rename_key_("n", ("a", "n")), KeyError, "no key ('a', 'n'): 'a' is an array"),
    (lambda: tree().select("a", ("n", "zz")), KeyError, "no key ('n', 'zz')"),
    (lambda: tree()[5], IndexError, "index 5 of batch size (2, 3): index 5 is out of"),
    (lambda: tree()[0, 0, 0], IndexError, "index (0, 0, 0) of batch size (2, 3): too many"),
    (
        lambda: tree()[1.0],
        IndexError,
        "index 1.0 of batch size (2, 3): give integers, slices, masks",
    ),
    (
        lambda: tree()[{1}],
        IndexError,
        "index {1} of batch size (2, 3): give integers, slices, masks",
    ),
    (lambda: tree()["n", 0], IndexError, "index ('n', 0) of batch size (2, 3): give integers"),
    (lambda: tree()[..., ...], IndexError, "can only have a single ellipsis"),
    (
        lambda: tree()[np.array([True] * 3)],
        IndexError,
        "of batch size (2, 3): The shape of the mask [3]",
    ),
    (lambda: tree().__setitem__(0, tree()), ValueError, "gives batch size (3,), but the value has"),
    (lambda: tree().__setitem__(0, 0), TypeError, "('n', 's'): strings and numbers do not mix"),
    (
        lambda: numbers().__setitem__(0, np.ones(5)),
        ValueError,
        "'a': operands could not be broadcast",
    ),
    (
        lambda: tree().__setitem__(0, tree()[0].apply(np.sum, batch_size=())),
        ValueError,
        "batch size",
    ),
    (
        lambda: tree().set_at_("a", [1, 2], (0, 0)),
        ValueError,
        "(2,) and requested shape (4,)",
    ),
    (
        lambda: tree().expand(9, 2, 3).set_at_("a", 0, 0),
        TypeError,
        "'a': a view that cannot be written",
    ),
    (lambda: tree().reshape(5), ValueError, "reshape of batch size (2, 3): shape '[5]' is invalid"),
    (
        lambda: tree().unflatten(1, (2, 2)),
        ValueError,
        "unflatten of batch size (2, 3): unflatten: Provided sizes [2, 2]",
    ),
    (lambda: tree().expand(4, 3), ValueError, "expand of batch size (2, 3): The expanded size"),
    (
        lambda: tree().squeeze(7),
        IndexError,
        "of batch size (2, 3): Dimension out of range (expected to be in range of [-2, 1]",
    ),
    (
        lambda: tree().permute(0, 0),
        IndexError,
        "permute of batch size (2, 3): permute(): duplicate dims",
    ),
    (
        lambda: tree().split([1, 1], 1),
        ValueError,
        "split of batch size (2, 3): split_with_sizes expects",
    ),
    (lambda: tree().split(0), ValueError, "split of batch size (2, 3): split_size can only be 0"),
    (lambda: tree().chunk(0), ValueError, "chunk of batch size (2, 3): chunk expects"),
    (
        lambda: tree().gather(0, [2]),
        IndexError,
        "gather of batch size (2, 3): index 2 is out of bounds",
    ),
    (
        lambda: tree().gather(0, [0.5]),
        IndexError,
        "gather of batch size (2, 3): gather(): Expected dtype int",
    ),
    (
        lambda: tree().gather(0, [[0, 1]]),
        IndexError,
        "gather of batch size (2, 3): The expanded size",
    ),
    (lambda: list(tree()[0, 0]), IndexError, "of batch size (): Dimension specified as 0"),
    (lambda: numbers()[0, 0].all(0), IndexError, "dimension 0 of batch size ()"),
    (lambda: numbers().any(2), IndexError, "dimension 2 of batch size (2, 3)"),
    (lambda: numbers()[0, 0].gather(0, [0]), IndexError, "gather of batch size ()"),
    (lambda: numbers()[0, 0].split(1), ValueError, "split of batch size (): split expects"),
    (lambda: numbers()[0, 0].chunk(1), ValueError, "chunk of batch size (): chunk expects"),
    (lambda: bool(tree()), TypeError, "neither true nor false"),
    (lambda: tree().all(), TypeError, "('n', 's') is of strings, neither true nor false"),
    (lambda: tree() == {"a": 1}, KeyError, "key 'n' is missing, or"),
    (lambda: tree() == tree()[0], ValueError, "batch sizes (2, 3) and (3,) differ"),
    (
        lambda: tree() == np.zeros(5),
        ValueError,
        "'a': shape mismatch",
    ),
    (
        lambda: numbers().apply(np.sum),
        ValueError,
        "'a' has shape (), but its first dimensions must",
    ),
    (lambda: np.stack([tree(), numbers()]), KeyError, "key ('n', 's') is missing, or"),
    (
        lambda: np.stack([tree(), tree()[:1]]),
        ValueError,
        "stack of batch sizes (2, 3), (1, 3): all input arrays",
    ),
    (
        lambda: np.stack([tree(), tree()], 4),
        IndexError,
        "axis 4 is out of bounds for array of dimension 3",
    ),
    (
        lambda: np.concatenate([tree(), tree()[:, :1]]),
        ValueError,
        "concatenate of batch sizes (2, 3), (2, 1): all the input",
    ),
    (lambda: np.concatenate([tree()[0, 0]] * 2), ValueError, "of batch sizes (), (): zero-dim"),
    (
        lambda: np.stack([numbers(), numbers().set("a", np.zeros((2, 3, 5)))]),
        ValueError,
        "'a': all input arrays must have the same shape",
    ),
    (
        lambda: np.concatenate([tree(), tree().set(("n", "s"), np.zeros((2, 3)))]),
        TypeError,
        "('n', 's'): strings and numbers do not mix",
    ),
    (
        lambda: np.stack([numbers(), numbers().set("a", {})]),
        KeyError,
        "key 'a' is missing, or an array and not nested, in one of 0 and 1",
    ),
    (
        lambda: NestedArrayDict.stack([]),
        ValueError,
        "stack of batch sizes of nothing: need at least one array",
    ),
    (
        lambda: NestedArrayDict.cat([tree(), {}]),
        TypeError,
        "concatenate got a dict; give NestedArr",
    ),
]


@pytest.mark.parametrize(
    ("operation", "kind", "message"), REFUSED, ids=[message for _, _, message in REFUSED]
)
def test_refusals_say_which_key_and_what_was_expected(operation, kind, message):
    with pytest.raises(UsageError) as refused:
        operation()
    assert isinstance(refused.value, kind)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_refused_change_changes_nothing():
    before = tree()
    after = tree()
    for change in (
        lambda: after.set(("new", "deep"), 1),
        lambda: after.rename_key_("n", ("a", "n")),
        lambda: setattr(after, "batch_size", (2, 3, 4)),
        lambda: after.pop("zz"),
    ):
        with pytest.raises(UsageError):
            change()
        assert sorted(after.keys()) == ["a", "n"]
        assert (after.batch_size, after["n"].batch_size) == ((2, 3), (2, 3))
        assert (after == before).apply(np.all, batch_size=()).all()
