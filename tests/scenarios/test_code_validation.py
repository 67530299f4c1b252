"""The scenario ``code_validation``: mutants, which programs are right, and what becomes data."""

import calendar
import json
import math
import os
import statistics
import sys
from pathlib import Path

import pytest

from plugrl.core.errors import ConfigError, RunError
from plugrl.scenarios.code_validation import scenario
from plugrl.scenarios.code_validation.bank import PROBLEMS
from plugrl.scenarios.code_validation.examination import examine_problems
from plugrl.scenarios.code_validation.mutants import mutants, normalise
from plugrl.scenarios.code_validation.problem import Problem
from plugrl.scenarios.code_validation.renaming import rename_variables
from plugrl.scenarios.code_validation.scenario import CodeValidationScenario, _built_in
from plugrl.scenarios.code_validation.truth import answers, share

#: The same functions, written by others.
KNOWN = {
    "greatest_common_divisor": math.gcd,
    "integer_root": math.isqrt,
    "to_binary": lambda n: f"{n:b}",
    "median": statistics.median_low,
    "common_prefix": lambda a, b: os.path.commonprefix([a, b]),
    "is_leap_year": calendar.isleap,
    "moved_zeros": lambda values: sorted(values, key=lambda value: value == 0),
    "transposed": lambda grid: [list(column) for column in zip(*grid, strict=True)],
    "count_matches": lambda text, part: sum(
        text.startswith(part, place) for place in range(len(text))
    ),
    "are_anagrams": lambda a, b: sorted(a) == sorted(b),
    "merged": lambda a, b: sorted(a + b),
}


#: Of the built-in problems, whose hundreds of programs all run only in the slower tests.
FEW = ["greatest_common_divisor", "integer_root", "is_leap_year", "merged", "are_anagrams"]


@pytest.fixture
def of_few(monkeypatch):
    """Makes tasks of few problems; their own time limit keeps them apart from those of all."""
    few = [problem for problem in PROBLEMS if problem.name in FEW]
    monkeypatch.setattr(scenario, "PROBLEMS", few)
    return lambda **options: CodeValidationScenario(
        {"validation": None, "truth_seconds": 599.0, **options}
    )


@pytest.fixture(scope="module")
def task():
    return CodeValidationScenario({})


def test_every_place_of_a_program_is_changed_in_every_way():
    found = mutants("def f(a, b):\n    if a < 3 and b:\n        a += b\n    return max(a, b)")
    assert [(mutant.line, mutant.change) for mutant in found] == [
        (2, "if a < 3 and b:  ->  if a < 2 and b:"),
        (2, "if a < 3 and b:  ->  if a < 3 or b:"),
        (2, "if a < 3 and b:  ->  if a < 4 and b:"),
        (2, "if a < 3 and b:  ->  if a <= 3 and b:"),
        (2, "if a < 3 and b:  ->  if a > 3 and b:"),
        (2, "if a < 3 and b:  ->  if not (a < 3 and b):"),
        (3, "a += b  ->  a -= b"),
        (4, "return max(a, b)  ->  return min(a, b)"),
    ]


def test_mutants_are_programs_that_people_would_write():
    found = {m.program for m in mutants("def f(n):\n    for i in range(n + 4):\n        g(i)")}
    loops = [
        f"def f(n):\n    for i in range({end}):\n        g(i)"
        for end in ("n + 5", "n + 3", "n - 4")
    ]
    assert found == set(loops)
    every = [m.program for p in PROBLEMS for s in p.solutions for m in mutants(s)]
    assert len(every) > 800
    odd = ("pass\n", "+ 1 - 1", "+ 0", "// 1\n", "% 1\n")
    assert not [text for text in every if any(sign in f"{text}\n" for sign in odd)]


def test_other_names_for_variables_leave_arguments_and_results_alone():
    source = normalise(
        "def f(k, text):\n    n = k\n    m = [n for _ in text]\n    return len(m) + n"
    )
    changed = rename_variables(source, (3,))
    assert changed != source
    assert changed.startswith("def f(k, text):")
    names = {}
    exec(changed, names)
    assert names["f"](2, "abc") == 5
    assert rename_variables(source, (3,)) == changed != rename_variables(source, (4,))


def test_programs_that_never_end_or_take_all_memory_do_not_spoil_the_others():
    good = "def f(n):\n    return n + 1"
    programs = [
        good,
        "def f(n):\n    while True:\n        pass",
        "def f(n):\n    return len([0] * (n + 1) * 10 ** 12)",
        "def f(n):\n    return [0] * 10 ** 5 if n else n.x",
        "def f(n:",
        "import os\nos._exit(0)",
    ]
    found = answers([*programs, good], "f", [[1], [0]])
    assert found[0] == found[-1] == "2\n1"
    assert found[1] == "late\nlate"
    assert found[2] == found[4] == found[5] == "raised\nraised"
    assert found[3].endswith("\nraised")
    assert [share(answer, "2\n1") for answer in found[:2]] == [1.0, 0.0]


@pytest.mark.parametrize("name", FEW)
def test_right_programs_do_what_is_asked_and_wrong_ones_do_not(name, of_few):
    check(name, of_few().build(0).datasets)


@pytest.mark.integration
@pytest.mark.parametrize("name", KNOWN)
def test_programs_of_all_problems_do_what_is_asked_or_not(name, task):
    check(name, task.build(0).datasets)


def check(name, datasets):
    problem = next(problem for problem in PROBLEMS if problem.name == name)
    items = [i for s in datasets.values() for i in s if i["problem"] == name]
    assert {item["label"] for item in items} == {0, 1}
    for item in items:
        names = {}
        exec(item["solution"], names)
        # Some wrong ones never end.
        same = [_agrees(names[name], KNOWN[name], case) for case in problem.cases()]
        assert all(same) == (item["label"] == 1)
        assert sum(same) / len(same) == pytest.approx(item["passed"])


def _agrees(function, known, case):
    lines = 0

    def count(frame, event, argument):
        nonlocal lines
        lines += 1
        if lines > 10_000:
            raise TimeoutError
        return count

    expected = known(*json.loads(json.dumps(case)))
    sys.settrace(count)
    try:
        return function(*json.loads(json.dumps(case))) == expected
    except (Exception, TimeoutError):
        return False
    finally:
        sys.settrace(None)


def test_half_of_the_programs_are_wrong_and_no_problem_is_on_both_sides(of_few):
    first, second = (of_few().build(seed).datasets for seed in (0, 1))
    balanced(first)
    assert second["validation"] == first["validation"]
    assert second["train"] != first["train"]


@pytest.mark.integration
def test_the_built_in_problems_give_enough_programs(task):
    datasets = task.build(0).datasets
    train, validation = datasets["train"], datasets["validation"]
    balanced(datasets)
    assert len({i["problem"] for i in train} | {i["problem"] for i in validation}) >= 40
    assert len({item["solution"] for item in [*train, *validation]}) == len(train) + 96
    other = task.build(1).datasets
    assert other["validation"] == validation
    assert other["train"] != train


def balanced(datasets):
    train, validation = datasets["train"], datasets["validation"]
    for items in (train, validation):
        problems = {item["problem"] for item in items}
        for problem in problems:
            labels = [item["label"] for item in items if item["problem"] == problem]
            assert sum(labels) * 2 == len(labels)
        assert all((item["passed"] == 1) == item["label"] for item in items)
        assert all(bool(item["change"]) != item["label"] for item in items)
        assert all(item["answer"] == ("reject", "accept")[item["label"]] for item in items)
    assert not {i["problem"] for i in train} & {i["problem"] for i in validation}


def test_the_sizes_are_those_that_are_asked_for(of_few):
    some = of_few(train=10, validation=4).build(0).datasets
    assert {name: sum(i["label"] for i in items) for name, items in some.items()} == {
        "train": 5, "validation": 2
    }  # fmt: skip
    with pytest.raises(ConfigError, match=r"train=100000 programs are more than the \d+ of its"):
        of_few(train=100_000).build(0)


def test_a_look_at_the_problems_runs_no_program():
    task = CodeValidationScenario({"truth_seconds": 1e-6})
    assert {split: len(items) for split, items in task.preview(0).items()} == {
        "train": 1, "validation": 1
    }  # fmt: skip
    with pytest.raises(ConfigError, match="took more than truth_seconds=1e-06; raise it"):
        task.build(0)


def test_solutions_that_do_not_agree_are_no_problem():
    def problem(second, result):
        return Problem(
            name="f", question="?", draws=("int 0 9",), examples=(((1,), result),),
            solutions=("def f(n):\n    return n + 1", second),
        )  # fmt: skip

    with pytest.raises(RunError, match="solutions of problem 'f' do not agree"):
        examine_problems([problem("def f(n):\n    return n + (n < 9)", 2)], 1, 0.0, 60.0)
    with pytest.raises(RunError, match="does not give what its examples say"):
        examine_problems([problem("def f(n):\n    return 1 + n", 3)], 1, 0.0, 60.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": 3}, "train: must be an even number"),
        ({"held_out": 1.0}, "held_out: must be below 1"),
        ({"min_passed": 1.0}, "min_passed: must be"),
        ({"renamings": 0}, "renamings: must be at least 1"),
        ({"truth_seconds": 0}, "truth_seconds: must be above 0"),
        ({"difficulty": "interview"}, "difficulty: needs data_files"),
        ({"max_problems": 1}, "max_problems: must be at least 2"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        CodeValidationScenario(options)


@pytest.mark.integration
def test_the_docs_have_the_figures_of_the_data():
    page = (Path(__file__).parents[2] / "docs" / "code-validation.md").read_text("utf-8")
    page = " ".join(page.split())
    found = _built_in(4, 0.05, 600.0)
    kept = [program.passed for each in found for program in each.wrong]
    tried = sum(len(mutants(s)) for problem in PROBLEMS for s in problem.solutions)
    most = max(len(problem.cases()) for problem in PROBLEMS)
    assert f"{len(PROBLEMS)} problems were written" in page
    assert f"up to {most} tests a problem" in page
    failed = round(100 * (1 - statistics.median(kept)))
    rare = round(100 * sum(share > 0.9 for share in kept) / len(kept))
    assert f"Of {tried} mutants {len(kept)} stay" in page
    assert f"half of them fail more than {failed} of 100 tests, and {rare} of 100" in page
    datasets = CodeValidationScenario({"validation": None}).build(0).datasets
    sizes = [(len(items), len({i["problem"] for i in items})) for items in datasets.values()]
    (train, of_train), (held, of_held) = sizes
    assert f"{train} programs of {of_train} problems are left to train with" in page
    assert f"{held} of {of_held} problems to validate" in page
