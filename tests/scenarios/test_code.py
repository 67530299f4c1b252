"""The evaluator ``code``: forms of tests, rewards, hostile programs, and a run with it."""

import json

import pytest

from plugrl.core.component import build
from plugrl.core.config.view import configure
from plugrl.core.errors import ConfigError
from plugrl.core.experiment import prepare, start
from plugrl.core.text.evaluation import BaseEvaluationTarget, EvaluationFailedError, evaluate
from plugrl.scenarios.evaluators.code import CodeEvaluator, extract_program
from plugrl.scenarios.evaluators.code_tests import Comparison, read_tests
from plugrl.testing import tiny

ADD = "a, b = map(int, input().split())\nprint(a + b)"
FUNCTION = "def add(a, b):\n    return a + b"


def judged(program, tests, **options):
    evaluator = build(CodeEvaluator, {"seconds": 0.5, "fence": "prefer", **options})
    return evaluate(evaluator, {"tests": tests}, BaseEvaluationTarget(program))


@pytest.mark.parametrize(
    ("program", "tests"),
    [
        (ADD, [{"input": "1 2\n", "output": "3"}]),
        (ADD, [{"stdin": "1 2", "stdout": "3\n"}, {"stdin": "2 2", "stdout": "4", "assert": None}]),
        (ADD, {"inputs": ["1 2", "3 4"], "outputs": ["3\n", "7\n"]}),
        (ADD, {"inputs": [["1 2"]], "outputs": [["3"]]}),
        (ADD, json.dumps([{"input": "1 2", "output": "3"}])),
        (FUNCTION, ["assert add(1, 2) == 3", "assert add('a', 'b') == 'ab'"]),
        (FUNCTION, "assert add(1, 2) == 3\nassert add(2, 2) == 4"),
        (FUNCTION, [{"assert": "assert add(1, 2) == 3"}]),
        (FUNCTION, [{"function": "add", "arguments": [1, 2], "expected": 3}]),
        (FUNCTION, [{"function": "add", "args": [[1], [2]], "expected": [1, 2]}]),
        (FUNCTION, {"fn_name": "add", "inputs": [[1, 2], [2, 2]], "outputs": [[3], 4]}),
    ],
)
def test_every_form_of_tests_passes_and_fails(program, tests):
    result = judged(program, tests)
    assert result.metrics == {"passed": 1.0, "correct": 1.0, "extracted": 1.0, "timeouts": 0.0}
    assert result.reward == 1.0
    assert judged(program.replace("+", "*"), tests).reward == 0.0


def test_a_share_of_tests_may_be_the_reward():
    tests = [{"input": "1 1", "output": "2"}, {"input": "2 2", "output": "4"}]
    tests += [{"input": "1 2", "output": "3"}, {"input": "3 3", "output": "6"}]
    program = ADD.replace("+", "*")  # right for 2 2 alone
    result = judged(program, tests, reward="fraction")
    assert (result.reward, result.metrics["correct"]) == (0.25, 0.0)
    assert judged(program, tests[1:], max_tests=1).reward == 1.0
    assert judged(program, tests).metrics["passed"] == 0.0


@pytest.mark.parametrize(
    "program",
    [
        "while True: pass",
        "x = bytearray(1 << 34)",
        "while True: print('x' * 1000)",
        "import os\nwhile True: os.fork()",
        "import os; os._exit(0)",
        "class Yes:\n def __eq__(self, other): return True\ndef add(a, b): return Yes()",
        "def add(a, b): raise SystemExit(0)",
        "not python",
        "",
    ],
)
def test_hostile_and_broken_programs_get_nothing(program):
    tests = [{"function": "add", "arguments": [1, 2], "expected": 3}]
    assert judged(program, tests).reward == 0.0


def test_timeouts_are_counted():
    tests = [{"input": "", "output": ""}, {"input": "x", "output": "x"}]
    program = "import sys\nif sys.stdin.read():\n  while True: pass"
    result = judged(program, tests, reward="fraction")
    assert result.metrics == {"passed": 0.5, "correct": 0.0, "extracted": 1.0, "timeouts": 0.5}


@pytest.mark.parametrize(
    ("tests", "says"),
    [
        ([], "no tests"),
        (None, "NoneType"),
        ([3], "a test of type int"),
        ([{"in": 1}], "a test with in"),
        ({"inputs": ["1"], "outputs": []}, "as many outputs as inputs"),
        ({"inputs": ["1"], "outputs": [None]}, "no output where null stands"),
        ([{"input": "1", "output": None}], "a test with input, output"),
        ([{"function": "f", "arguments": []}], "a test with function, arguments"),
    ],
)
def test_tests_that_cannot_be_read_are_a_failure_and_no_wrong_answer(tests, says):
    with pytest.raises(EvaluationFailedError, match=says):
        judged(ADD, tests)


@pytest.mark.parametrize(
    ("mode", "tolerance", "found", "expected", "equal"),
    [
        ("lines", 0.0, "1 \n2\n\n", "1\n2", True),
        ("lines", 0.0, "1 2", "1\n2", False),
        ("lines", 0.0, " 1", "1", False),
        ("exact", 0.0, "1\n", "1", False),
        ("words", 0.0, " 1  2\n", "1\n2", True),
        ("words", 0.0, "1.0", "1", False),
        ("words", 1e-6, "1.0 x", "1 x", True),
        ("words", 1e-6, "1.1", "1", False),
        ("words", 1e-6, "nan", "1", False),
    ],
)
def test_what_is_printed_is_compared(mode, tolerance, found, expected, equal):
    assert Comparison(mode, tolerance).equal(found, expected) is equal


@pytest.mark.parametrize(
    ("value", "expected", "passes"),
    [
        (1, True, False),
        (1.0, 1, True),
        (0.3, 0.1 + 0.2, True),
        ([1, [2]], [1, [2]], True),
        (10**400, 1.5, False),
        (1.5, 10**400, False),
        (10**400, 10**400, True),
        (None, None, True),
        (0, None, False),
        (False, None, False),
        (None, 0, False),
        ([None], [None], True),
    ],
)
def test_results_are_compared(value, expected, passes):
    tests = [{"function": "f", "arguments": [], "expected": expected}]
    assert judged(f"def f(): return {value!r}", tests, tolerance=1e-9).reward == passes


def test_a_function_may_have_to_return_nothing():
    # As a Parquet file has it, whose columns are in every row.
    row = {"input": None, "output": None, "assert": None}
    tests = [{**row, "function": "f", "arguments": [3], "expected": None}]
    assert judged("def f(x): pass", tests).reward == 1.0
    assert judged("def f(x): return x", tests).reward == 0.0
    whole = {"fn_name": "f", "inputs": [[3], [4]], "outputs": [None, [None]]}
    assert judged("def f(x): pass", whole).reward == 1.0
    nothing = "import sys\nprint(sys.stdin.read() == '')"
    assert judged(nothing, {"inputs": [None], "outputs": ["True"]}).reward == 1.0


@pytest.mark.parametrize(
    ("text", "fence", "program"),
    [
        ("a\n```python\nx\n```\nb\n```py\ny\n```", "prefer", "y\n"),
        ("```\nx\n```\n```json\n{}\n```", "prefer", "x\n"),
        ("text\n```python\nx = 1", "prefer", "x = 1"),
        ("x", "prefer", "x"),
        ("x", "require", None),
        ("```python\nx\n```", "ignore", "```python\nx\n```"),
        (" \n", "prefer", None),
    ],
)
def test_programs_are_extracted(text, fence, program):
    assert extract_program(text, fence) == program


def test_json_text_that_is_assert_code_stays_code():
    assert read_tests("[f(1)] == [2] or exit(1)")[0].code.startswith("[f(1)]")


def test_options_that_cannot_be_meant_are_refused():
    with pytest.raises(ConfigError, match="seconds: must be above 0"):
        configure(CodeEvaluator, {"seconds": 0})


def test_a_run_with_programs(tmp_path):
    """The tiny model writes ``a`` and ``b``: programs that read a name which is not there."""
    tree = tiny.config("self_hosted_grpo", tmp_path)
    problems = [{"prompt": "a", "tests": ["assert True"]}, {"prompt": "b", "tests": []}]
    path = tmp_path / "code.jsonl"
    path.write_text("".join(json.dumps(p) + "\n" for p in problems), "utf-8")
    tree["data"]["data_files"] = tree["validate"]["data"]["data_files"] = [str(path)]
    tree["rollout_worker"]["evaluator"] = {"type": "code"}
    tree["trainer"]["total_train_steps"] = 1
    run = start(prepare(tree))
    last = run.metrics[-1]
    assert last["rollout/invalid"] == last["validation/invalid"] == 0.5
    assert 0.0 <= last["rollout/passed"] <= 1.0
    tree["rollout_worker"]["evaluator"]["tests_key"] = "checks"
    with pytest.raises(ConfigError, match=r"tests_key.*no column 'checks'"):
        prepare(tree)
