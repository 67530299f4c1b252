"""On numbers, every operation does what TensorDict does: results, types, and what is refused."""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tensordict import TensorDict, TensorDictBase

from plugrl import NestedArrayDict, UsageError

DTYPES = ("bool", "uint8", "int64", "float32", "float64")
#: Tests with as many examples as their author wanted, by name.
THOROUGH = {}


def examples(count, *strategies):
    """Test a function with a part of its ``count`` examples here, and with all in ``THOROUGH``."""

    def tested(function):
        settled = functools.partial(settings, deadline=None, database=None, derandomize=True)
        THOROUGH[function.__name__] = settled(max_examples=count)(given(*strategies)(function))
        return settled(max_examples=max(15, count // 5))(given(*strategies)(function))

    return tested


def array(shape, dtype="int64", start=0):
    values = np.arange(start, start + math.prod(shape)).reshape(shape)
    return (values % 2 == 1) if dtype == "bool" else values.astype(dtype)


@st.composite
def trees(draw, batch=None):
    """A nested dictionary of numbers and its tensors."""
    batch = draw(st.lists(st.integers(0, 3), max_size=3)) if batch is None else batch
    batch = tuple(batch)
    types = [draw(st.sampled_from(DTYPES)) for _ in range(3)]
    more = draw(st.sampled_from([(), (2,), (1, 2)]))
    deeper = draw(st.booleans())
    inner = NestedArrayDict(
        {"c": array((*batch, 2), types[2], 7)}, (*batch, 2) if deeper else batch
    )
    inner.set("none", {})
    tree = NestedArrayDict({"a": array((*batch, *more), types[0])}, batch)
    tree.set(("n", "b"), array(batch, types[1], 3)).set(("n", "m"), inner)
    return tree, tensors(tree)


def tensors(tree):
    """Built without the method under test."""
    source = {
        key: tensors(value)
        if isinstance(value, NestedArrayDict)
        else torch.from_numpy(value.copy())
        for key, value in tree.items()
    }
    return TensorDict(source, batch_size=tree.batch_size)


def check_same(tree, tensordict):
    assert type(tree) is NestedArrayDict
    assert tree.batch_size == tuple(tensordict.batch_size)
    assert set(tree.keys()) == set(tensordict.keys())
    for key, value in tensordict.items():
        mine = tree.get(key)
        if isinstance(value, TensorDictBase):
            check_same(mine, value)
        else:
            theirs = value.numpy()
            assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape), key
            np.testing.assert_array_equal(mine, theirs)


def check_refused(operation, tree):
    with pytest.raises(UsageError) as refused:
        operation(tree)
    message = str(refused.value)
    assert message
    assert "\n" not in message


def check_alike(pair, operation, torch_operation=None):
    """Both give the same, or both refuse."""
    tree, tensordict = pair
    try:
        expected = (torch_operation or operation)(tensordict)
    except Exception:
        check_refused(operation, tree)
        return
    found = operation(tree)
    several = isinstance(expected, (list, tuple))
    assert not several or len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True) if several else [(found, expected)]:
        check_same(mine, theirs)


def as_torch(index):
    if isinstance(index, tuple):
        return tuple(map(as_torch, index))
    return torch.from_numpy(index) if isinstance(index, np.ndarray) else index


@st.composite
def indices(draw, batch, repeats=True):
    """An index into a batch; some leave it or have parts too many."""
    parts, d = [], 0
    for _ in range(draw(st.integers(0, 4))):
        kinds = ["int", "slice", "mask", "array", "none", "ellipsis"]
        kind = draw(st.sampled_from(kinds))
        size = batch[d] if d < len(batch) else 1
        # Of an empty batch, PyTorch does not check the places in arrays.
        wide = draw(st.integers(0, 9)) == 0 and 0 not in batch
        inside = st.integers(-size - wide, max(size - 1, -size) + wide)
        if kind == "int":
            parts.append(draw(inside))
        elif kind == "slice":
            ends = [draw(st.none() | st.integers(-4, 4)) for _ in range(2)]
            parts.append(slice(*ends, draw(st.none() | st.integers(1, 2))))
        elif kind == "mask":
            dims = draw(st.integers(1, max(1, min(2, len(batch) - d))))
            shape = batch[d : d + dims] or (1,)
            flags = [draw(st.booleans()) for _ in range(math.prod(shape))]
            parts.append(np.array(flags, bool).reshape(shape))
            d += len(shape) - 1
        elif kind == "array":
            rows = draw(st.lists(inside, min_size=1, max_size=2, unique=not repeats))
            parts.append(np.array(rows).reshape(draw(st.sampled_from([(-1,), (-1, 1)]))))
        else:
            parts.append(None if kind == "none" else ...)
        d += kind not in ("none", "ellipsis")
    return parts[0] if len(parts) == 1 and draw(st.booleans()) else tuple(parts)


@examples(150, trees(), st.data())
def test_indexing(pair, data):
    index = data.draw(indices(pair[0].batch_size))
    theirs = as_torch(index)
    check_alike(pair, lambda tree: tree[index], lambda tensordict: tensordict[theirs])


@examples(100, trees(), st.data())
def test_assignment_by_index(pair, data):
    tree, tensordict = pair
    index = data.draw(indices(tree.batch_size, repeats=False))
    theirs = as_torch(index)
    try:
        found = tensordict[theirs].clone()
    except Exception:
        check_refused(lambda tree: tree.__setitem__(index, 0), tree)
        return
    how = data.draw(st.sampled_from(["scalar", "same", "part", "more", "dict", "larger"]))
    # TensorDict broadcasts what is written to the whole, or refuses it.
    parts = index if isinstance(index, tuple) else (index,)
    assume(
        not all(part is ... or isinstance(part, slice) for part in parts)
        or found.shape != tree.shape
    )
    # PyTorch writes numbers into other types, but not by arrays of places.
    assume(how != "scalar" or not any(isinstance(part, np.ndarray) for part in parts))
    value = NestedArrayDict(tree[index].apply(lambda x: (x + 1).astype(x.dtype)), found.shape)
    if how == "part":
        value = value.select(("n", "b"))
    elif how == "more":
        value.set(("n", "new"), array((*value.batch_size, 2), "int64", 5))
    elif how == "larger":
        value = value.expand(2, *value.batch_size).clone()
    mine = {"scalar": 1, "dict": value.to_dict()}.get(how, value)
    given = {"scalar": 1, "dict": tensors(value).to_dict()}.get(how, tensors(value))

    def assign(tree):
        tree[index if tree is pair[0] else theirs] = mine if tree is pair[0] else given
        return tree

    check_alike(pair, assign)


def dimensions():
    return st.integers(-4, 3)


SHAPE_OPERATIONS = ["reshape", "flatten", "unflatten", "expand", "squeeze", "squeeze_all"]
SHAPE_OPERATIONS += ["unsqueeze", "permute", "transpose", "split", "split_sizes", "chunk"]


@st.composite
def shape_operations(draw, batch):
    """The name of an operation with arguments, many of which are right."""
    count, known = math.prod(batch), len(batch)
    name = draw(st.sampled_from(SHAPE_OPERATIONS))
    dim = draw(dimensions())
    size = batch[dim] if -known <= dim < known else 1
    if name == "reshape":
        shapes = [
            (count,),
            (1, count),
            tuple(reversed(batch)),
            (2, 2),
            *([(-1,), (1, -1)] if count else []),
        ]
        shape = draw(st.sampled_from(shapes))
        return name, (shape,) if draw(st.booleans()) else shape
    if name in ("flatten", "transpose"):
        return name, (dim, draw(dimensions()))
    if name == "unflatten":
        return name, (dim, draw(st.sampled_from([(size,), (1, size), (size, 1), (2, 2), ()])))
    if name == "expand":
        shape = [draw(st.integers(1, 3)) if n == 1 else n for n in batch]
        shape = draw(st.lists(st.integers(0, 2), max_size=1)) + shape
        shape = shape[draw(st.integers(0, 1)) :] if draw(st.integers(0, 4)) == 0 else shape
        return name, tuple(shape) if shape and draw(st.booleans()) else (tuple(shape),)
    if name == "permute":
        order = draw(st.permutations(range(known)))
        wrong = draw(st.integers(0, 9)) == 0
        return name, (*order, 0) if wrong else tuple(
            n - known * draw(st.integers(0, 1)) for n in order
        )
    if name == "split_sizes":
        first = draw(st.integers(0, size))
        return "split", ([first, size - first + (draw(st.integers(0, 9)) == 0)], dim)
    if name in ("split", "chunk"):
        return name, (draw(st.integers(0, 4)), dim)
    return ("squeeze", ()) if name == "squeeze_all" else (name, (dim,))


@examples(250, trees(), st.data())
def test_shapes(pair, data):
    name, arguments = data.draw(shape_operations(pair[0].batch_size))
    # TensorDict gives nested ones of more dimensions another batch size than it says.
    assume(name != "flatten" or pair[0].batch_size)
    # It also takes dimensions before the first.
    assume(name != "flatten" or min(arguments) >= -pair[0].ndim)
    # PyTorch takes the dimension 0 of a number, TensorDict does not.
    assume(name not in ("squeeze", "transpose") or pair[0].batch_size or not arguments)
    # TensorDict cannot squeeze a tensor of the batch size to no dimensions.
    assume((name, arguments) != ("squeeze", ()) or set(pair[0].batch_size) != {1})
    # Tensors of size 0 are not split by TensorDict, though PyTorch does so.
    assume(not (name in ("split", "chunk") and 0 in pair[0].batch_size))
    check_alike(pair, lambda tree: getattr(tree, name)(*arguments))


@examples(50, trees(), dimensions())
def test_unbind_and_iteration(pair, dim):
    check_alike(pair, lambda tree: tree.unbind(dim))
    if pair[0].batch_size:
        check_alike(pair, list)
        assert len(pair[0]) == len(pair[1]) == pair[0].batch_size[0]


@examples(80, trees(batch=(3, 2)), dimensions(), st.data())
def test_gather(pair, dim, data):
    shapes = [(2,), (4, 2), (3, 4), (3, 2), (2, 3), (1, 2, 3)]
    shape = data.draw(st.sampled_from(shapes))
    most = 1 if dim in (1, -1) else 2
    places = st.integers(-1 if data.draw(st.integers(0, 9)) == 0 else 0, most)
    flat = [data.draw(places) for _ in range(math.prod(shape))]
    index = np.array(flat).reshape(shape)
    theirs = torch.from_numpy(index)
    # Of nested dictionaries with more dimensions, TensorDict's gather forgets the batch size.
    pair = [tree.exclude(("n", "m")) for tree in pair]
    check_alike(pair, lambda tree: tree.gather(dim, index), lambda tree: tree.gather(dim, theirs))


@examples(120, st.data(), dimensions())
def test_stack_and_concatenate(data, dim):
    batch = data.draw(st.lists(st.integers(1, 3), max_size=2))
    assume(-len(batch) - 1 <= dim <= len(batch))
    pairs = [data.draw(trees(batch)) for _ in range(data.draw(st.integers(1, 3)))]
    assume(len({p[0].get(("n", "m")).batch_dims for p in pairs}) == 1)
    if data.draw(st.integers(0, 5)) == 0:
        pairs = [(tree[:1], tensordict[:1]) for tree, tensordict in pairs[:1] if batch] + pairs
    if data.draw(st.integers(0, 9)) == 0:
        pairs[0] = [tree.exclude(("n", "b")) for tree in pairs[0]]
    pair = [list(several) for several in zip(*pairs, strict=True)]
    check_alike(
        pair, lambda several: np.stack(several, dim), lambda several: torch.stack(several, dim)
    )
    # TensorDict counts negative dimensions of torch.cat one too far.
    if -len(batch) <= dim < len(batch):
        check_alike(
            pair,
            lambda several: np.concatenate(several, dim),
            lambda several: torch.cat(several, dim),
        )


@pytest.mark.parametrize("dtypes", [*itertools.combinations_with_replacement(DTYPES, 2)])
def test_types_are_joined_as_tensors_are(dtypes):
    trees = [NestedArrayDict({"a": array((2,), dtype)}, 2) for dtype in dtypes]
    expected = torch.promote_types(*(torch.from_numpy(tree["a"]).dtype for tree in trees))
    for joined in (NestedArrayDict.stack(trees), NestedArrayDict.cat(trees)):
        assert torch.from_numpy(joined["a"]).dtype == expected


KEYS = ["a", "n", ("n",), ("n", "b"), ("n", "m"), ("n", "m", "c"), ("n", "m", "none")]
KEYS += [("n", ("m", "c")), "x", ("n", "x"), ("n", "x", "y"), ("x", "y")]


def some_keys():
    return st.lists(st.sampled_from(KEYS), min_size=1, max_size=3)


@examples(80, trees(), some_keys())
def test_choosing_keys(pair, keys):
    check_alike(pair, lambda tree: tree.select(*keys))
    check_alike(pair, lambda tree: tree.select(*keys, strict=False))
    check_alike(pair, lambda tree: tree.exclude(*keys))
    for key in keys:
        assert (key in pair[0]) == (key in pair[1])
        check_entry(pair[0].get(key), pair[1].get(key))
        check_entry(pair[0].get(key, 5), pair[1].get(key, 5))


def check_entry(mine, theirs):
    if isinstance(theirs, TensorDictBase):
        check_same(mine, theirs)
    elif isinstance(theirs, torch.Tensor):
        np.testing.assert_array_equal(mine, theirs.numpy())
    else:
        assert mine is theirs


@examples(
    60,
    trees(),
    some_keys(),
    st.sampled_from(["del_", "pop", "setdefault", "rename_key_"]),
    st.data(),
)
def test_changing_keys(pair, keys, name, data):
    new = data.draw(st.sampled_from([key for key in KEYS if key != ("n",)]))
    # A TensorDict lets an entry be renamed into itself, which loses it, and does not check shapes.
    inside = {str(keys[0]), str(new)} & {"n", "('n',)", "('n', 'm')"} or "m" in str(new)
    assume(name != "rename_key_" or not inside)

    def change(tree, make):
        value = make(array((*tree.batch_size, 3)))
        arguments = {"setdefault": (value,), "rename_key_": (new,)}.get(name, ())
        getattr(tree, name)(keys[0], *arguments)
        return tree

    check_alike(
        pair, lambda tree: change(tree, np.asarray), lambda tree: change(tree, torch.from_numpy)
    )


@examples(80, st.data())
def test_setting_and_updating(data):
    tree, tensordict = data.draw(trees())
    key = data.draw(st.sampled_from(KEYS))
    batch = tree.batch_size
    kind = data.draw(st.sampled_from(["array", "wrong", "nested", "shorter", "mapping"]))
    value = {
        "array": array((*batch, 2)),
        "wrong": array((*batch, 2)[1:]) if batch else array((4,)),
        "nested": NestedArrayDict({"c": array((*batch, 1)), "b": {"d": array(batch)}}, batch),
        "shorter": NestedArrayDict({"c": array((*batch, 1))}, batch[:-1]),
        "mapping": {"c": array((*batch, 1)), "m": {"c": array(batch)}},
    }[kind]
    # Where the batch is the same by chance, nothing is wrong.
    mine, theirs = value, as_tensors(value)
    if isinstance(tree.get(key, None) if key in tree else None, NestedArrayDict):
        batch = tree.get(key).batch_size
    pair = (tree, tensordict)
    pick = lambda tree: mine if isinstance(tree, NestedArrayDict) else theirs  # noqa: E731
    check_alike([x.copy() for x in pair], lambda tree: tree.set(key, pick(tree)))
    check_alike([x.copy() for x in pair], lambda tree: tree.update({"n": pick(tree)}))
    if kind != "array" and kind != "wrong":
        check_alike([x.copy() for x in pair], lambda tree: tree.update(pick(tree)))


def as_tensors(value):
    if isinstance(value, NestedArrayDict):
        return tensors(value)
    if isinstance(value, dict):
        return {key: as_tensors(inner) for key, inner in value.items()}
    return torch.from_numpy(value)


@examples(40, trees(), st.sampled_from([".", "/"]), st.booleans(), st.booleans())
def test_listing_and_flattening_keys(pair, separator, nested, leaves):
    tree, tensordict = pair
    assert tree.keys(nested, leaves) == list(tensordict.keys(nested, leaves))
    assert [key for key, _ in tree.items(nested, leaves)] == tree.keys(nested, leaves)
    assert len(tree.values(nested, leaves)) == len(tree.keys(nested, leaves))
    check_alike(pair, lambda tree: tree.flatten_keys(separator))
    check_alike(pair, lambda tree: tree.flatten_keys(separator).unflatten_keys(separator))
    check_alike(pair, lambda tree: tree.flatten_keys(separator).unflatten_keys("_"))


@pytest.mark.parametrize("operation", ["flatten_keys", "unflatten_keys"])
@pytest.mark.parametrize(
    "names",
    [
        ["a.b", ("a", "b")],
        ["a.b", "a"],
        ["a.b", ("a", "c")],
        ["a.b.c", ("a", "b")],
        ["a.b.c", "a.b"],
    ],
)
def test_keys_that_collide(operation, names):
    tree = NestedArrayDict(dict.fromkeys(names, array((2,))), 2)
    check_alike((tree, tensors(tree)), lambda tree: getattr(tree, operation)())


@examples(40, trees(), st.data())
def test_comparing(pair, data):
    tree, tensordict = pair
    other = tree.apply(
        lambda x: np.where(np.arange(x.size).reshape(x.shape) % 3, x, 0).astype(x.dtype)
    )
    dim = data.draw(dimensions())
    check_same(tree == other, tensordict == tensors(other))
    check_same(tree != other, tensordict != tensors(other))
    check_same(tree == 0, tensordict == 0)
    check_same(tree == tree.to_dict(), tensordict == tensordict.to_dict())
    for same in (tree == other, tree == tree):
        theirs = tensors(same)
        assert (same.all(), same.any()) == (bool(theirs.all()), bool(theirs.any()))
        if -len(tree.shape) <= dim < len(tree.shape):
            check_same(same.all(dim), theirs.all(dim))
            check_same(same.any(dim), theirs.any(dim))
    check_alike(pair, lambda tree: tree == tree.exclude("a"))


@examples(40, trees())
def test_applying(pair):
    check_alike(pair, lambda tree: tree.apply(lambda x: x * 2))
    check_alike(pair, lambda tree: tree.apply(lambda x, y: x * y, tree))
    check_alike(pair, lambda tree: tree.apply(lambda x, y: x * y, tree.exclude("a")))
    check_alike(pair, lambda tree: tree.apply(lambda x, y: x, tree.exclude("a"), default=None))
    if pair[0].shape and pair[0].shape[0]:
        check_alike(pair, lambda tree: tree.apply(lambda x: x[0], batch_size=tree.shape[1:]))
    check_alike(pair, lambda tree: tree.apply(lambda x: x[None], batch_size=(1, *tree.shape)))
    check_alike(pair, lambda tree: tree.apply(lambda x: None if x.ndim == tree.ndim else x))
    check_alike(pair, lambda tree: tree.apply(lambda x: x.sum() == 0))


@examples(40, trees(), st.none() | st.integers(1, 3))
def test_dictionaries_and_tensordicts(pair, dims):
    tree, tensordict = pair
    check_same(tree, tree.to_tensordict())
    check_same(NestedArrayDict.from_tensordict(tensordict), tensordict)
    back = NestedArrayDict.from_dict(tree.to_dict(), batch_size=tree.shape)
    check_same(back, TensorDict.from_dict(tensordict.to_dict(), batch_size=tree.shape))
    check_same(
        NestedArrayDict.from_dict(tree.to_dict()),
        TensorDict.from_dict(tensordict.to_dict(), auto_batch_size=False),
    )
    check_same(
        NestedArrayDict.from_dict(tree.to_dict(), auto_batch_size=True, batch_dims=dims),
        TensorDict.from_dict(tensordict.to_dict(), auto_batch_size=True, batch_dims=dims),
    )


@examples(40, trees(), st.data())
def test_another_batch_size(pair, data):
    size = data.draw(st.sampled_from([(), pair[0].shape[:1], (*pair[0].shape, 2), (5,)]))

    def resize(tree):
        tree.batch_size = size
        return tree

    check_alike(pair, resize)


@examples(25, trees())
def test_copies_and_views(pair):
    for tree in pair:
        before = tree.clone()
        shallow, deep = tree.copy(), tree.clone()
        shallow["n", "new"] = tree["a"]
        assert ("n", "new") not in tree
        assert ("n", "new") not in deep
        deep["n", "b"][...] = 1
        assert (tree == before).all()
        tree[...]["n", "b"][...] = 1
        assert bool((tree["n", "b"] == 1).all())
    check_same(*pair)
    assert pair[0].permute(*reversed(range(pair[0].ndim))).contiguous().is_contiguous()


@pytest.mark.integration
@pytest.mark.parametrize("name", THOROUGH)
def test_with_all_examples(name):
    THOROUGH[name]()
