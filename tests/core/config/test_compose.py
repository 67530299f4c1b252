from __future__ import annotations

from pathlib import Path

import numpy
import pytest
from omegaconf import OmegaConf

from plugrl.core.config.sources import lookup
from plugrl.core.config.sources.compose import compose
from plugrl.core.config.sources.origins import fault_at
from plugrl.core.config.view import ConfigView
from plugrl.core.errors import ConfigError


def lines(composed):
    return [str(fault) for fault in composed.faults]


# Precedence, edge by edge: schema default < defaults in order < the file < overrides.


def test_a_file_beats_the_schema_default(files, check):
    files(a="trainer: {type: toy, lr: 0.25}")
    assert check("a.yaml").tree["trainer"]["lr"] == 0.25


def test_defaults_beat_the_schema_default(files, check):
    files(base="trainer: {type: toy, lr: 0.25}", a="defaults: [base]")
    assert check("a.yaml").tree["trainer"]["lr"] == 0.25


def test_a_later_entry_beats_an_earlier_one(files):
    files(one="x: 1\ny: 1", two="x: 2", a="defaults: [one, two]")
    assert compose("a.yaml").tree == {"x": 2, "y": 1}


def test_the_file_beats_its_defaults(files):
    files(base="x: {a: 1, b: 1}", a="defaults: [base]\nx: {a: 2}")
    assert compose("a.yaml").tree == {"x": {"a": 2, "b": 1}}


def test_self_says_where_the_file_stands(files):
    files(base="x: 1", a="defaults: [_self_, base]\nx: 2", b="defaults: [base, _self_]\nx: 2")
    assert compose("a.yaml").tree == {"x": 1}
    assert compose("b.yaml").tree == {"x": 2}


def test_overrides_beat_the_file_and_the_last_one_wins(files):
    files(a="x: 1")
    composed = compose("a.yaml", ["x=2", "x=3"])
    assert composed.tree == {"x": 3}
    assert str(composed.origins[("x",)]) == "command line"
    assert composed.overrides == ("x=2", "x=3")


TOY = "trainer: {type: toy}\n"


@pytest.mark.parametrize(
    ("base", "text"),
    [
        ("data: {batch_size: 4}", "data: null"),
        ("data: {batch_size: 4}", "data:"),
        ("notes: {x: 1}", "notes: null"),
        # Sections that the trainer does not read: of another one, and of nobody that is installed.
        ("rl: {gamma: 0.5}", "rl: null"),
        ("reinforce: {gamma: 0.5}", "reinforce: null"),
        ("of_a_plugin: {x: 1}", "of_a_plugin: null"),
        ("of_a_plugin: {x: 1}", "of_a_plugin: null\nrl: null"),
    ],
)
def test_null_removes_a_section_of_the_files_below(files, check, base, text):
    files(none=TOY, base=TOY + base, a=f"defaults: [base]\n{text}", b="defaults: [a]\n" + text)
    expected = {"notes": None, **check("none.yaml").tree}
    for source, overrides in (
        ("a.yaml", []),
        ("b.yaml", []),
        ("base.yaml", [f"{text.partition(':')[0]}=null"]),
    ):
        assert {"notes": None, **check(source, *overrides).tree} == expected


def test_what_comes_after_a_removal_begins_a_new_section(files, check):
    files(base=TOY + "data: {batch_size: 4, name: x}", a="defaults: [base]\ndata: null", b=TOY)
    files(c="defaults: [a]\ndata: {batch_size: 5}")
    default = check("b.yaml").tree["data"]
    assert check("c.yaml").tree["data"] == {**default, "batch_size": 5}


@pytest.mark.parametrize(
    ("base", "name", "says"),
    [
        ("trainer: {type: toy}", "trainer", "type is missing"),
        (TOY + "data: {batch_size: 4}", "dta", "did you mean data?"),
        (TOY + "seed: 4", "seed", "must be a whole number, not null"),
    ],
)
def test_what_cannot_be_removed_is_said(files, faults, base, name, says):
    files(base=base, a=f"defaults: [base]\n\n{name}: null")
    (fault,) = faults("a.yaml")
    assert fault.startswith(f"{name} (a.yaml:3): ")
    assert says in fault
    assert ("; null in a.yaml:3 removes" in fault) == (name != "dta")


# Where defaults are found.


def test_defaults_are_found_in_subfolders_beside_the_file(files):
    files(conf__common__base="x: 1", conf__a="defaults: [common/base]", x="y: 1")
    composed = compose("conf/a.yaml")
    assert composed.tree == {"x": 1}
    assert str(composed.origins[("x",)]) == "conf/common/base.yaml:1"


def test_defaults_of_defaults_are_beside_their_own_file(files):
    files(
        conf__common__base="defaults: [inner]",
        conf__common__inner="x: 7",
        conf__a="defaults: [common/base]",
    )
    assert compose("conf/a.yaml").tree == {"x": 7}


def test_defaults_are_found_on_the_config_path_after_the_folder_of_the_file(files):
    folder = files(
        shared__base="x: 1",
        shared__near="x: 2",
        near="x: 3",
        a="defaults: [base]",
        b="defaults: [near]",
    )
    path = [folder / "shared"]
    assert compose("a.yaml", config_path=path).tree == {"x": 1}
    assert compose("b.yaml", config_path=path).tree == {"x": 3}


@pytest.mark.parametrize("entry", ["shared", "[shared]", "[file://shared]"])
def test_hydra_searchpath_is_a_config_path(files, entry):
    files(shared__base="x: 1", a=f"hydra: {{searchpath: {entry}}}\ndefaults: [base]")
    assert compose("a.yaml").tree == {"x": 1}


def test_recipes_are_found_last_and_may_be_extended_under_their_name(files, tmp_path, monkeypatch):
    recipes = tmp_path / "packaged"
    monkeypatch.setattr(lookup, "RECIPES", recipes)
    files(packaged__quick="x: 1", quick="defaults: [quick]\ny: 2")
    assert compose("quick").tree == {"x": 1}
    assert compose("quick.yaml").tree == {"x": 1, "y": 2}
    assert compose({"defaults": ["packaged/quick"]}).tree == {"x": 1}


def test_a_missing_file_names_the_close_recipe(files, tmp_path, monkeypatch):
    monkeypatch.setattr(lookup, "RECIPES", tmp_path / "packaged")
    files(packaged__quickstart="x: 1")
    with pytest.raises(ConfigError) as caught:
        compose("quickstrat.yaml")
    assert str(caught.value) == (
        "quickstrat.yaml: no such file or recipe; did you mean quickstart?"
    )


def test_a_missing_default_is_a_fault_with_its_line(files):
    files(common="x: 1", a="y: 1\ndefaults:\n  - comon\n")
    assert lines(compose("a.yaml")) == [
        "defaults: comon (a.yaml:3): no file comon.yaml beside or above it, on the config path "
        "or in the recipes; did you mean common?"
    ]


def test_defaults_in_a_circle(files):
    files(a="defaults: [b]", b="defaults: [a]")
    with pytest.raises(ConfigError) as caught:
        compose("a.yaml")
    assert str(caught.value) == ("b.yaml:1: defaults go in a circle: a.yaml -> b.yaml -> a.yaml")


def test_one_file_twice_is_no_circle(files):
    files(base="x: 1", b="defaults: [base]", c="defaults: [base]\ny: 2", a="defaults: [b, c]")
    assert compose("a.yaml").tree == {"x": 1, "y": 2}


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("5", "defaults (a.yaml:1): must be a list of file names"),
        (
            "[{db: mysql}]",
            "defaults[0] (a.yaml:1): must be a file name such as common/base, not {'db': 'mysql'}",
        ),
        ("[null]", "defaults[0] (a.yaml:1): must be a file name such as common/base, not None"),
        ("[_self_, _self_]", "defaults (a.yaml:1): _self_ is there 2 times; keep one"),
    ],
)
def test_bad_defaults(files, written, message):
    files(a=f"defaults: {written}\nx: 1")
    composed = compose("a.yaml")
    assert lines(composed) == [message]
    assert composed.tree == {"x": 1}


# Merging.


def test_lists_are_replaced_and_null_replaces_a_section(files):
    files(base="x: [1, 2]\ny: {a: 1}", a="defaults: [base]\nx: [3]\ny:")
    composed = compose("a.yaml")
    assert composed.tree == {"x": [3], "y": None}
    assert ("y", "a") not in composed.origins
    assert ("x", 1) not in composed.origins


@pytest.mark.parametrize(
    ("base", "over", "merged"),
    [
        ("s: toy", "s: {a: 1}", {"type": "toy", "a": 1}),
        ("s: toy", "s: {type: other}", {"type": "other"}),
        ("s: {type: toy, a: 1}", "s: other", {"type": "other", "a": 1}),
        ("s: toy", "s: other", "other"),
    ],
)
def test_a_bare_name_is_its_type(files, base, over, merged):
    files(base=base, a=f"defaults: [base]\n{over}")
    assert compose("a.yaml").tree["s"] == merged


# Overrides.


def test_an_empty_text_takes_the_place_of_a_section(files):
    """It is no name of a type: what is wrong with it is said of the text itself."""
    files(base="x: {type: a, size: 3}", a="defaults: [base]\nx: ''")
    assert compose("a.yaml").tree == {"x": ""}


@pytest.mark.parametrize(
    ("override", "tree"),
    [
        ("a.b=2", {"a": {"b": 2, "l": [1, {"k": 1}]}}),
        ("a.c.d=1e-3", {"a": {"b": 1, "l": [1, {"k": 1}], "c": {"d": 0.001}}}),
        ("a.b=", {"a": {"b": None, "l": [1, {"k": 1}]}}),
        ("a.b=null", {"a": {"b": None, "l": [1, {"k": 1}]}}),
        ("a.b='1'", {"a": {"b": "1", "l": [1, {"k": 1}]}}),
        ("a.b=x=y", {"a": {"b": "x=y", "l": [1, {"k": 1}]}}),
        ("a.l=[3, 4]", {"a": {"b": 1, "l": [3, 4]}}),
        ("a.l[0]=9", {"a": {"b": 1, "l": [9, {"k": 1}]}}),
        ("a.l.1.k=9", {"a": {"b": 1, "l": [1, {"k": 9}]}}),
        ("a={z: 1}", {"a": {"b": 1, "l": [1, {"k": 1}], "z": 1}}),
        ("a.m.0=x", {"a": {"b": 1, "l": [1, {"k": 1}], "m": {"0": "x"}}}),
    ],
)
def test_overrides(files, override, tree):
    files(a="a: {b: 1, l: [1, {k: 1}]}")
    composed = compose("a.yaml", [override])
    assert lines(composed) == []
    assert composed.tree == tree


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("foo", "(command line): override 'foo' is not key=value"),
        ("=1", "(command line): override '=1': '' is not a key such as data.batch_size"),
        (
            "a..b=1",
            "(command line): override 'a..b=1': 'a..b' is not a key such as data.batch_size",
        ),
        ("a b=1", "(command line): override 'a b=1': 'a b' is not a key such as data.batch_size"),
        ("0.a=1", "(command line): override '0.a=1': '0.a' is not a key such as data.batch_size"),
        (
            "a.l[x]=1",
            "(command line): override 'a.l[x]=1': 'a.l[x]' is not a key such as data.batch_size",
        ),
        ("+a=1", "(command line): override '+a=1' starts with +; write a=1"),
        ("~a=1", "(command line): override '~a=1' starts with ~; write a=null"),
        ("~a.b", "(command line): override '~a.b' starts with ~; write a.b=null"),
        ("a.l[7]=1", "a.l[7] (command line): no such item; the list has 1 item, from 0"),
        ("defaults=[x]", "defaults (command line): belongs in a file, not in an override"),
        ("a.b={x: 1, x: 2}", "a.b.x (command line): written twice; keep one"),
    ],
)
def test_bad_overrides_are_faults(files, override, message):
    files(a="a: {l: [1]}")
    assert lines(compose("a.yaml", [override])) == [message]


def test_an_override_that_is_no_yaml(files):
    files(a="a: 1")
    (line,) = lines(compose("a.yaml", ["a=[1, 2"]))
    assert line.startswith("(command line): override 'a=[1, 2': not YAML at column ")


# Interpolation.


def test_interpolation(files, monkeypatch):
    monkeypatch.setenv("PLUGRL_TEST_NAME", "anna")
    files(
        a="a: {b: 5, l: [x, '${a.b}']}\nc: ${a.b}\nd: v${a.b}\ne: ${env.PLUGRL_TEST_NAME}\n"
        "f: ${oc.env:PLUGRL_TEST_NAME}\ng: ${oc.env:NOPE_, 3}\nh: ${a.l}\ni: \\${literal}\n"
        "j: ${env.NOPE_,x}\n"
    )
    composed = compose("a.yaml")
    assert lines(composed) == []
    assert composed.tree == {
        "a": {"b": 5, "l": ["x", 5]},
        "c": 5,
        "d": "v5",
        "e": "anna",
        "f": "anna",
        "g": "3",
        "h": ["x", 5],
        "i": "${literal}",
        "j": "x",
    }
    assert str(composed.origins[("h", 1)]) == "a.yaml:7"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("x: ${a.b}", "x (a.yaml:2, a.b): no"),
        ("c: ${a.b}\nx: ${c}", "x (a.yaml:2, a.b): no"),
        ("x: v${a.b}", "x (a.yaml:3): no"),
        ("x: ${y}\ny: ${x}", "x (a.yaml:3): no"),
        ("algorithm: {beta: 1}\nx: ${algorithm.beta}", "x (a.yaml:3, algorithm.beta): no"),
    ],
)
def test_what_refers_to_a_value_names_the_place_that_wrote_it(files, text, place):
    files(a=f"a:\n  b: 5\n{text}\n")
    composed = compose("a.yaml")
    assert str(fault_at(composed.origins, ("x",), "no")) == place
    # What counts over what is decided where the reference stands.
    files(low="a: {b: 5}\n", high="defaults: [low, _self_]\nx: ${a.b}\n")
    origins = compose("high.yaml").origins
    assert origins["x",].layer > origins["a", "b"].layer


REFERRING = "a: {b: {c: 1, d: 2}}\nx: ${a.b}\ny: {c: 5}\n"


@pytest.mark.parametrize(
    ("override", "key"), [("x.c=3", "x.c"), ("x.d.e=3", "x.d"), ("x.0=3", "x.0")]
)
def test_a_key_below_a_reference_is_refused(files, override, key):
    files(a=REFERRING)
    composed = compose("a.yaml", [override])
    assert lines(composed) == [
        f"{key} (command line): x refers to a.b, so that no key below it can be set; write "
        "x={...} with all of its keys, or set keys of a.b"
    ]
    assert composed.tree["x"] == {"c": 1, "d": 2}


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["x={c: 3}"], {"x": {"c": 3}}),
        (["a.b.c=3"], {"x": {"c": 3, "d": 2}}),
        (["y=${a.b}"], {"y": {"c": 1, "d": 2}}),
        (["x=null", "x.c=3"], {"x": {"c": 3}}),
        # What comes from the environment is the name of a type.
        (["y=${oc.env:NOPE_,toy}"], {"y": {"type": "toy", "c": 5}}),
    ],
    ids=lambda value: str(value)[:30],
)
def test_references_and_mappings_replace_each_other(files, overrides, expected):
    files(a=REFERRING)
    composed = compose("a.yaml", overrides)
    assert lines(composed) == []
    assert {key: composed.tree[key] for key in expected} == expected


def test_a_mapping_of_a_file_replaces_a_reference(files):
    files(low=REFERRING, a="defaults: [low]\nx: {c: 7}\ny: ${a.b}\n")
    composed = compose("a.yaml")
    assert lines(composed) == []
    assert composed.tree == {"a": {"b": {"c": 1, "d": 2}}, "x": {"c": 7}, "y": {"c": 1, "d": 2}}


def test_interpolation_sees_overrides(files):
    files(a="a: 1\nb: ${a}")
    assert compose("a.yaml", ["a=2"]).tree == {"a": 2, "b": 2}


def test_interpolation_finds_sections_under_their_second_spelling(files):
    files(a="algorithm: {beta: 0.5}\nx: ${algorithm.beta}\ny: ${trainer.algorithm.beta}")
    assert compose("a.yaml").tree == {"trainer": {"algorithm": {"beta": 0.5}}, "x": 0.5, "y": 0.5}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            "${env.NOPE_}",
            "environment variable NOPE_ is not set; set it, or write ${oc.env:NOPE_,default}",
        ),
        ("${a.x}", "${a.x} refers to a.x, which is not in the configuration; did you mean a.xx?"),
        ("${v}", "${v} refers to itself; break the circle"),
        ("${w}", "${w} refers to itself; break the circle"),
        ("${nope:1}", "${nope:1}: there is no resolver nope; use ${key} or ${env.NAME}"),
        ("'${a'", "not a valid interpolation; write ${key} or ${env.NAME}, or \\${ for a literal"),
        ("${m}", "${m} refers to a value that is still ???"),
    ],
)
def test_bad_interpolations_are_faults(files, value, message):
    files(a=f"a: {{xx: 1}}\nm: ???\nv: {value}\nw: ${{v}}\n")
    composed = compose("a.yaml")
    assert lines(composed)[0] == f"v (a.yaml:3): {message}"
    assert ("v",) in composed.unresolved
    assert composed.tree["v"] is None


# Python mappings.


@pytest.mark.parametrize(
    "source",
    [
        {"a": {"b": (1, 2), "p": Path("x")}},
        OmegaConf.create({"a": {"b": [1, 2], "p": "x"}}),
        ConfigView({"a": {"b": [1, 2], "p": "x"}}),
        {"a": {"b": [numpy.int64(1), numpy.int32(2)], "p": numpy.str_("x")}},
    ],
    ids=["plain", "omegaconf", "view", "numpy"],
)
def test_mappings(files, source):
    files()
    composed = compose(source)
    assert composed.tree == {"a": {"b": [1, 2], "p": "x"}}
    assert type(composed.tree["a"]["b"][0]) is int
    assert composed.source is None
    assert composed.input_text == "a:\n  b:\n  - 1\n  - 2\n  p: x\n"
    assert str(composed.origins[("a", "b")]) == "Python"


def test_a_mapping_is_not_changed(files):
    files(base="a: {c: 1}")
    source = {"defaults": ["base"], "a": {"b": 1}, "algorithm": {}}
    compose(source, ["a.b=2"])
    assert source == {"defaults": ["base"], "a": {"b": 1}, "algorithm": {}}


def test_what_no_file_can_hold_is_a_fault(files):
    files()
    assert lines(compose({"a": {"b": {1, 2}}, 3: 4})) == [
        "a.b (Python): a set cannot be written in a configuration; give plain values",
        "(Python): the key 3 is not text",
    ]


def test_the_text_of_the_main_file_is_kept(files):
    files(a="# mine\na: 1\n")
    composed = compose("a.yaml")
    assert composed.input_text == "# mine\na: 1\n"
    assert composed.source == Path("a.yaml")
