from __future__ import annotations

import os

import pytest

from plugrl.core.config.sources.compose import compose
from plugrl.core.config.sources.origins import Fault
from plugrl.core.config.sources.reader import plain_scalar, read_file
from plugrl.core.config.sources.writer import dump_yaml
from plugrl.core.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1E5", 100000.0),
        ("2.5", 2.5),
        ("-.5", -0.5),
        ("12", 12),
        ("+7", 7),
        ("1_000", "1_000"),
        ("0x1F", 31),
        ("0o17", 15),
        ("true", True),
        ("True", True),
        ("TRUE", True),
        ("False", False),
        ("FALSE", False),
        ("Null", None),
        ("NULL", None),
        ("null", None),
        ("~", None),
        ("", None),
        ("no", "no"),
        ("on", "on"),
        ("017", "017"),
        ("12:30", "12:30"),
        ("2026-01-01", "2026-01-01"),
        ("1.2.3", "1.2.3"),
        ("e5", "e5"),
        ("-", "-"),
        ("9" * 200, "9" * 200),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text, value):
    read = plain_scalar(text)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(("text", "value"), [(".inf", "inf"), ("-.inf", "-inf"), (".NaN", "nan")])
def test_infinities_and_nan_are_floats(text, value):
    assert str(plain_scalar(text)) == value


def tree_of(files, text):
    files(a=text)
    return compose("a.yaml")


def test_quoted_scalars_are_text(files):
    assert tree_of(files, "a: '1'\nb: \"null\"\nc: |\n  1\n").tree == {
        "a": "1",
        "b": "null",
        "c": "1\n",
    }


def test_every_value_knows_its_line(files):
    composed = tree_of(files, "a:\n  b: 1\n  c:\n    - x\n    - y\n")
    places = {path: str(origin) for path, origin in composed.origins.items()}
    assert places[("a",)] == "a.yaml:1"
    assert places[("a", "b")] == "a.yaml:2"
    assert places[("a", "c", 1)] == "a.yaml:5"


def test_anchors_and_merge_keys(files):
    text = "base: &b {x: 1, y: {z: 2}}\none:\n  <<: *b\n  x: 5\nmany:\n  <<: [*b, {w: 3}]\n"
    composed = tree_of(files, text)
    assert composed.tree["one"] == {"x": 5, "y": {"z": 2}}
    assert composed.tree["many"] == {"x": 1, "y": {"z": 2}, "w": 3}
    assert str(composed.origins[("one", "x")]) == "a.yaml:4"
    assert str(composed.origins[("one", "y", "z")]) == "a.yaml:1"
    assert composed.faults == ()


def test_an_alias_is_a_copy(files):
    composed = compose(tree_of(files, "a: &x {k: 1}\nb: *x\n").source, ["b.k=2"])
    assert composed.tree == {"a": {"k": 1}, "b": {"k": 2}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2\n", "a (a.yaml:2): written twice (first in line 1); keep one"),
        ("a:\n  b: 1\n  b: 2\n", "a.b (a.yaml:3): written twice (first in line 2); keep one"),
        ("1: x\n", "(a.yaml:1): the key 1 is not text; quote it"),
        ("a:\n  null: x\n", "a (a.yaml:2): the key null is not text; quote it"),
        ("? [1, 2]\n: x\n", "(a.yaml:1): a key must be text, not a list or mapping"),
        (
            "a: !!python/name:os.system x\n",
            "a (a.yaml:1): tag !!python/name:os.system is not supported; write plain YAML",
        ),
        ("a: !mine {x: 1}\n", "a (a.yaml:1): tag !mine is not supported; write plain YAML"),
        (
            "a: {b:1, c: 2}\n",
            "a.b:1 (a.yaml:1): no space after the colon makes this one key; write b: 1",
        ),
        (
            "a: [{b.c:-1}]\n",
            "a[0].b.c:-1 (a.yaml:1): no space after the colon makes this one key; write b.c: -1",
        ),
        ("a:\n  <<: 5\n", "a (a.yaml:2): << merges mappings only; give it an alias to a mapping"),
    ],
)
def test_small_faults_are_kept_for_the_report(files, text, message):
    assert [str(fault) for fault in tree_of(files, text).faults] == [message]


def test_a_pair_without_a_space_is_read_as_it_is_meant(files):
    composed = tree_of(files, "a: {b:1, 'c:1': , d, http://x: 1, e:1: 2, f: g:1}\n")
    assert composed.tree["a"] == {
        "b": 1,
        "c:1": None,
        "d": None,
        "http://x": 1,
        "e:1": 2,
        "f": "g:1",
    }
    assert len(composed.faults) == 1


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("a: [1, 2\nb: 3\n", "a.yaml:2:2: not YAML: "),
        ("a: b: c\n", "a.yaml:1:5: not YAML: mapping values are not allowed"),
        ("\ta: 1\n", "a.yaml:1:1: not YAML: "),
        ("a: @x\n", "a.yaml:1:4: not YAML: "),
        ("a: *nope\n", "a.yaml:1:4: not YAML: found undefined alias"),
        ("a: 1\n---\nb: 2\n", "a.yaml:2:1: not YAML: expected a single document"),
        ("a: \x07\n", "a.yaml: not YAML: "),
        ("- 1\n- 2\n", "a.yaml: the root must be a mapping of sections, not a list"),
        (
            "a:1\n",
            "a.yaml: the root must be a mapping of sections, not a single value; write a: 1, ",
        ),
        ("just text\n", "a.yaml: the root must be a mapping of sections, not a single value"),
        ("a: &a [*a]\n", "a.yaml:1: a[0] contains itself through an alias"),
    ],
)
def test_what_is_no_configuration_is_one_line(files, text, start):
    with pytest.raises(ConfigError) as caught:
        tree_of(files, text)
    assert str(caught.value).startswith(start)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "# only a comment\n", "null\n"])
def test_an_empty_file_is_an_empty_configuration(files, text):
    assert tree_of(files, text).tree == {}


@pytest.mark.parametrize(
    "text", ["a: " + "[" * 40 + "]" * 40, "a: " + "{a: " * 40 + "1" + "}" * 40]
)
def test_deep_nesting_is_refused(files, text):
    with pytest.raises(ConfigError, match=r"a.yaml:1: nested deeper than 32 levels"):
        tree_of(files, text)


def test_nesting_without_end_is_one_line(files):
    with pytest.raises(ConfigError, match=r"^a.yaml:1.*nest[^\n]*$"):
        tree_of(files, "[" * 100_000)


def test_aliases_that_explode_are_refused(files):
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    with pytest.raises(ConfigError, match="more than 10,000 values"):
        tree_of(files, "\n".join(lines))


def large(folder):
    (folder / "a.yaml").write_text(f"trainer: {'x' * 1_000_000}\n")


def endless(folder):
    (folder / "a.yaml").symlink_to("/dev/zero")


def pipe(folder):
    os.mkfifo(folder / "a.yaml")


def many(folder):
    (folder / "a.yaml").write_text("".join(f"k{i}: {i}\n" for i in range(10_001)))


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (large, "larger than 1 MB, which no file written by hand is"),
        (endless, "not a regular file; name a file of text"),
        (pipe, "not a regular file; name a file of text"),
        (many, "more than 10,000 values"),
    ],
)
def test_reading_is_bounded(tmp_path, write, message):
    """In bytes, values and time: neither a pipe nor a device is waited for."""
    write(tmp_path)
    with pytest.raises(ConfigError, match=message):
        read_file(tmp_path / "a.yaml", [])


def test_as_much_as_is_allowed_is_read(tmp_path):
    (tmp_path / "a.yaml").write_text("".join(f"k{i}: {i}\n" for i in range(9_999)))
    faults: list[Fault] = []
    assert len(read_file(tmp_path / "a.yaml", faults)[0]) == 9_999
    assert not faults


def test_a_file_that_is_not_utf8(files):
    folder = files()
    (folder / "a.yaml").write_bytes(b"a: \xff\n")
    with pytest.raises(ConfigError, match=r"a.yaml: not UTF-8 text \(byte 3\)"):
        compose("a.yaml")


def test_a_byte_order_mark_is_ignored(files):
    folder = files()
    (folder / "a.yaml").write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert compose("a.yaml").tree == {"a": 1}


def test_a_folder_is_no_file(files):
    files(sub__x="a: 1")
    with pytest.raises(ConfigError, match="sub is a folder; name the YAML file in it"):
        compose("sub")


@pytest.mark.parametrize(
    "value",
    [
        "1e-3",
        "0o17",
        "no",
        "on",
        "null",
        "12:30",
        "2026-01-01",
        "",
        " x ",
        "${a}",
        "a: b",
        "1_0",
        "é",
        "\x85",
        "a\u2028b",
        "a\rb",
    ],
)
def test_written_text_reads_back_as_text(files, value):
    files(a=dump_yaml({"v": value, "n": [1e-3, 1e-06, 5, True, None, {}]}))
    assert compose("a.yaml").tree == {"v": value, "n": [1e-3, 1e-06, 5, True, None, {}]}
