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
    (lambda: tree()["a", "zz"], KeyError, "'a' is an array of shape (2, 3, 4), not a nested"),
    (lambda: tree().get(0), KeyError, "0 is no key; give a string or a tuple"),
    (lambda: 0 in tree(), KeyError, "0 is no key"),
    (lambda: NestedArrayDict({(): 1}), KeyError, "() is no key"),
    (lambda: tree().set("c", np.zeros((3, 2))), ValueError, "'c' has shape (3, 2), but its first"),
    (lambda: tree().set(("n", "q", "c"), 1), ValueError, "('n', 'q', 'c') has shape (), but"),
    (lambda: tree().set(("a", "c"), np.zeros((2, 3))), KeyError, "no key ('a', 'c'): 'a' is an"),
    (lambda: tree().set("c", {"d": {"e": 1}}), ValueError, "('c', 'd', 'e') has shape ()"),
    (lambda: tree().update({"n": {"b": 1}}), ValueError, "('n', 'b') has shape (), but its first"),
    (lambda: tree().set("c", b"ab"), TypeError, "'c': bytes cannot be held (dtype |S2); give num"),
    (
        lambda: tree().set("c", [[1, "a", 2]] * 2),
        TypeError,
        "'c': list cannot be held (an entry is",
    ),
    (lambda: tree().set("c", object()), TypeError, "(an entry is of type object)"),
    (lambda: tree().set("c", [[1], [2, 3]]), TypeError, "'c': list cannot be held (setting an"),
    (lambda: tree().set("c", [["\ud800"] * 3] * 2), TypeError, "surrogates not allowed"),
    (lambda: tree().set("c", np.zeros((2, 3), "M8[s]")), TypeError, "dtype datetime64[s]"),
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
    (lambda: tree()[5], IndexError, "index does not fit batch size (2, 3): index 5 is out of"),
    (lambda: tree()[0, 0, 0], IndexError, "index takes 3 dimensions, but batch size (2, 3) has 2"),
    (lambda: tree()[1.0], IndexError, "index 1.0 is a float; give integers, slices, masks"),
    (lambda: tree()[{1}], IndexError, "an index is a set; give integers, slices, masks"),
    (lambda: tree()["n", 0], IndexError, "index ('n', 0) mixes keys and places"),
    (lambda: tree()[::-1], IndexError, "goes backwards"),
    (lambda: tree()[..., ...], IndexError, "more than one ..."),
    (lambda: tree()[np.array([True] * 3)], IndexError, "a mask of shape (3,) is for dimensions of"),
    (lambda: tree().__setitem__(0, tree()), ValueError, "gives batch size (3,), but the value has"),
    (lambda: tree().__setitem__(0, 0), TypeError, "('n', 's'): strings and numbers do not mix"),
    (lambda: numbers().__setitem__(0, np.ones(5)), ValueError, "'a': the index gives shape (3, 4)"),
    (
        lambda: tree().__setitem__(0, tree()[0].apply(np.sum, batch_size=())),
        ValueError,
        "batch size",
    ),
    (
        lambda: tree().set_at_("a", [1, 2], (0, 0)),
        ValueError,
        "gives shape (4,), but the value has",
    ),
    (lambda: tree().expand(9, 2, 3).set_at_("a", 0, 0), TypeError, "'a' is a view that cannot be"),
    (lambda: tree().reshape(5), ValueError, "batch size (2, 3) cannot become (5,): it has 6"),
    (lambda: tree().unflatten(1, (2, 2)), ValueError, "(2, 3) at dimension 1 cannot become (2, 2)"),
    (lambda: tree().expand(4, 3), ValueError, "(2, 3) cannot be expanded to (4, 3)"),
    (
        lambda: tree().squeeze(7),
        IndexError,
        "dimension 7 is not of batch size (2, 3); give -2 to 1",
    ),
    (lambda: tree()[0, 0].squeeze(0), IndexError, "dimension 0 is not of batch size (), which has"),
    (lambda: tree().permute(0, 0), IndexError, "(0, 0) is no order of the dimensions"),
    (lambda: tree().split([1, 1], 1), ValueError, "sizes (1, 1) do not add up to 3, dimension 1"),
    (lambda: tree().split(0), ValueError, "split size 0 is not positive"),
    (lambda: tree().chunk(0), ValueError, "number of chunks 0 is not positive"),
    (lambda: tree().gather(0, [2]), IndexError, "gather leaves dimension 0; give 0 to 1"),
    (lambda: tree().gather(0, [0.5]), IndexError, "index of float64; give integers"),
    (
        lambda: tree().gather(0, [[0, 1]]),
        ValueError,
        "index of shape (1, 2), which does not go with",
    ),
    (lambda: list(tree()[0, 0]), IndexError, "batch size () has no dimension to go through"),
    (lambda: bool(tree()), TypeError, "neither true nor false"),
    (lambda: tree().all(), TypeError, "('n', 's') is of strings, neither true nor false"),
    (lambda: tree() == {"a": 1}, KeyError, "key 'n' is on one side only"),
    (lambda: tree() == tree()[0], ValueError, "batch sizes (2, 3) and (3,) differ"),
    (
        lambda: tree() == np.zeros(5),
        ValueError,
        "'a': shapes (2, 3, 4) and (5,) cannot be compared",
    ),
    (
        lambda: numbers().apply(np.sum),
        ValueError,
        "'a' has shape (), but its first dimensions must",
    ),
    (lambda: np.stack([tree(), numbers()]), KeyError, "('n', 's') is in 0 but not in 1"),
    (lambda: np.stack([tree(), tree()[:1]]), ValueError, "0 has (2, 3) and 1 has (1, 3)"),
    (lambda: np.stack([tree(), tree()], 4), IndexError, "dimension 4 is not of batch size (2, 3)"),
    (lambda: np.concatenate([tree(), tree()[:, :1]]), ValueError, "but for dimension 0; 0 has"),
    (lambda: np.concatenate([tree()[0, 0]] * 2), IndexError, "dimension 0 is not of batch size ()"),
    (
        lambda: np.stack([numbers(), numbers().set("a", np.zeros((2, 3, 5)))]),
        ValueError,
        "'a' has shape (2, 3, 4) in 0, (2, 3, 5) in 1",
    ),
    (
        lambda: np.concatenate([tree(), tree().set(("n", "s"), np.zeros((2, 3)))]),
        TypeError,
        "('n', 's'): strings and numbers do not mix",
    ),
    (
        lambda: np.stack([numbers(), numbers().set("a", {})]),
        KeyError,
        "'a' is an array in one and nested in another",
    ),
    (
        lambda: NestedArrayDict.stack([]),
        ValueError,
        "stack got nothing; give one nested dictionary",
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


def test_a_tree_cannot_hold_itself():
    outer = tree()
    for key, value in (("self", outer), (("n", "above"), outer), (("n", "n"), outer["n"])):
        with pytest.raises(UsageError, match="it would hold itself; copy it"):
            outer.set(key, value)
    assert outer.set("twin", outer["n"])["twin"] is outer["n"]


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
