"""The evaluator ``code``: forms of tests, rewards, hostile programs, and a run with it."""

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path

import hostile
import kills
import pytest

from plugrl.core.component import build
from plugrl.core.config.check import configure
from plugrl.core.errors import ConfigError, PlugrlDeprecationWarning
from plugrl.core.experiment import prepare, start
from plugrl.core.plugins.registry import register_sandbox, register_scenario
from plugrl.core.sandbox.jobs import ProgramOutcome
from plugrl.core.sandboxes import Sandbox
from plugrl.core.scenario import Scenario, ScenarioInstance
from plugrl.core.text.evaluate.evaluator import (
    BaseEvaluationTarget,
    EvaluationFailedError,
    evaluate,
)
from plugrl.scenarios.evaluators.code import CodeEvaluator, extract_program
from plugrl.scenarios.evaluators.code_tests import Comparison, read_tests
from plugrl.testing import tiny

#: Programs that write to every descriptor, or read what there is, before they end.
SPOILERS = [
    "import os\nfor f in range(3, 20):\n try: os.read(f, 1)\n except OSError: pass",
    "import os\nfor f in range(3, 20):\n try: os.write(f, bytes(range(256)) * 999)\n"
    " except OSError: pass",
    "import sys\nsys.stdout.write('\\ud800\\x00')",
    "import os\nos.write(1, b'\\xff\\xfe')\nos.write(2, b'\\xff' * 99)\nos.abort()",
    "raise BaseException('\\ud800')",
]
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


FORMS = [
    [{"function": "add", "arguments": [1, 2], "expected": 3}],
    ["assert add(1, 2) == 3"],
    [{"input": "", "output": "3"}],
]


@pytest.mark.parametrize("tests", FORMS)
@pytest.mark.parametrize("text", [*hostile.FORGERS[::6], *SPOILERS])
def test_whatever_a_program_does_it_is_wrong_and_never_invalid(text, tests):
    """A failure of the evaluator would leave a wrong answer out of the means and of training."""
    # Some wait for what never comes.
    result = judged(text, tests, wall_seconds=1)
    assert (result.reward, result.metrics["correct"]) == (0.0, 0.0)


@pytest.mark.integration
@pytest.mark.parametrize("text", hostile.FORGERS)
def test_no_forger_is_right_or_invalid(text):
    for tests in FORMS[:2]:
        assert judged(text, tests).reward == 0.0


def test_what_programs_were_refused_is_told():
    result = judged("import os\nos.fork()", FORMS[2])
    assert result.extra_info["refused"] == ["clone"]


def test_results_may_be_as_deep_as_what_is_expected():
    tests = [{"function": "f", "arguments": [], "expected": nested(300, 1)}]
    program = "def f():\n x = 1\n for _ in range(300): x = [x]\n return x"
    assert judged(program, tests).reward == 1.0
    assert judged(program.replace("x = 1", "x = 2"), tests).reward == 0.0


def nested(depth, value):
    for _ in range(depth):
        value = [value]
    return value


STACK = "class Stack(list):\n push = list.append"
USES_STACK = "s = Stack()\ns.push(1)\nassert s.pop() == 1"


def test_tests_that_need_objects_of_the_program_are_refused_unless_they_are_trusted():
    says = "makes objects of Stack, a class of the program.* or set assertions=trusted"
    with pytest.raises(EvaluationFailedError, match=says):
        judged(STACK, [USES_STACK])
    assert judged(STACK, [USES_STACK], assertions="trusted").reward == 1.0
    assert judged("Stack = 1", [USES_STACK], assertions="trusted").reward == 0.0


@pytest.mark.parametrize("in_file", [True, False])
def test_tests_that_cannot_be_judged_are_found_before_the_run(tmp_path, in_file, registry):
    tree = tiny.config("self_hosted_grpo", tmp_path)
    problem = {"prompt": "a", "tests": [USES_STACK]}
    if in_file:
        path = tmp_path / "code.jsonl"
        path.write_text(json.dumps(problem) + "\n", "utf-8")
        tree["data"]["data_files"] = tree["validate"]["data"]["data_files"] = [str(path)]
    else:
        register_scenario("stacks")(Stacks)
        tree["scenario"] = "stacks"
        tree["data"].pop("data_files", None)
        tree["validate"] = {"enabled": False}
    tree["rollout_worker"]["evaluator"] = {"type": "code"}
    where = "of .*code.jsonl" if in_file else "of split 'train'"
    with pytest.raises(ConfigError, match=f"the first problem {where}: assert code makes objects"):
        prepare(tree)
    tree["rollout_worker"]["evaluator"]["assertions"] = "trusted"
    prepare(tree)


class Stacks(Scenario):
    def build(self, seed):
        items = [{"prompt": "a", "answer": "", "tests": [USES_STACK]}]
        return ScenarioInstance(name="stacks", datasets={"train": items})


def test_assert_code_that_is_no_python_is_a_fault_of_the_data():
    with pytest.raises(EvaluationFailedError, match="assert code in line 2 is no Python"):
        judged(FUNCTION, ["x = 1\nassert add(1, 2 == 3"])


@pytest.mark.parametrize(
    ("test", "setting"),
    [
        (USES_STACK, "assertions"),
        ("assert add(1, 2", "tests_key"),
        ("add(1, 2) == 3", "tests_key"),
        ({"in": "1"}, "tests_key"),
    ],
)
@pytest.mark.parametrize("assertions", ["separate", "trusted"])
def test_tests_are_a_fault_of_the_option_that_does_not_suit_them(
    tmp_path, test, setting, assertions
):
    tree = tiny.config("self_hosted_grpo", tmp_path)
    path = tmp_path / "code.jsonl"
    path.write_text(json.dumps({"prompt": "a", "tests": [test]}) + "\n", "utf-8")
    tree["data"]["data_files"] = tree["validate"]["data"]["data_files"] = [str(path)]
    tree["rollout_worker"]["evaluator"] = {"type": "code", "assertions": assertions}
    suits = (setting, assertions) == ("assertions", "trusted")
    refused = pytest.raises(ConfigError, match=rf"evaluator\.{setting}\b")
    with contextlib.nullcontext() if suits else refused:
        prepare(tree)


@pytest.mark.parametrize("assertions", ["separate", "trusted"])
def test_a_comparison_is_no_assertion(assertions):
    """Every program that has the function would pass."""
    with pytest.raises(EvaluationFailedError, match="compares in line 2 and asserts nothing"):
        judged("def add(a, b): return 0", ["x = 3\nadd(1, 2) == x"], assertions=assertions)


@pytest.mark.parametrize(
    "code", ["x = 3\nx == 3\nassert add(1, 2) == x", "if add(1, 2) != 3: raise ValueError"]
)
def test_code_that_may_fail_is_a_test(code):
    assert judged("def add(a, b): return a + b", [code]).reward == 1.0
    assert judged("def add(a, b): return 0", [code]).reward == 0.0


@pytest.mark.parametrize(("old", "new"), [("any", "unsafe: true"), ("kernel", "nothing")])
def test_the_old_option_is_taken_with_a_warning(old, new):
    with pytest.warns(PlugrlDeprecationWarning, match=f"isolation={old}.*write {new}"):
        assert judged(ADD, [{"input": "1 2", "output": "3"}], isolation=old).reward == 1.0


class Elsewhere(Sandbox):
    """Runs nothing, and says so."""

    answer = None

    def run(self, job, limits):
        return self.answer or ProgramOutcome("done", output=f"{job.stdin}{limits.files}")

    def fault(self):
        return "here is nothing"


def test_a_sandbox_of_ones_own_is_used(registry):
    tests = [{"input": "4", "output": "47"}]
    register_sandbox("elsewhere")(Elsewhere)
    with pytest.raises(ConfigError, match="^here is nothing; to let programs .* unsafe: true$"):
        judged("x", tests, sandbox="elsewhere")
    assert judged("x", tests, sandbox="elsewhere", unsafe=True, files=7).reward == 1.0


def test_a_sandbox_that_answers_something_else_is_named(registry, monkeypatch):
    register_sandbox("elsewhere")(Elsewhere)
    monkeypatch.setattr(Elsewhere, "answer", ProgramOutcome("fine"))
    with pytest.raises(EvaluationFailedError, match="sandbox Elsewhere answered 'fine'; a Program"):
        judged("x", [{"input": "", "output": ""}], sandbox="elsewhere", unsafe=True)


LACKING = """
import sys
from plugrl.core.sandboxes import make_confined_sandbox
for unsafe in (False, True):
    try:
        print(type(make_confined_sandbox({"type": "local"}, unsafe=unsafe)).__name__)
    except Exception as error:
        print(type(error).__name__, error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="filters of calls are Linux's")
@pytest.mark.parametrize(
    ("lacks", "says"),
    [
        (["landlock_create_ruleset"], "which files programs open (Landlock, Linux 5.13 or later)"),
        (["seccomp", "prctl_seccomp"], "which system calls programs make (seccomp)"),
    ],
)
def test_a_system_that_cannot_confine_programs_is_refused(lacks, says):
    support = Path(hostile.__file__).with_name("lacking.py")
    command = [sys.executable, str(support), *lacks, "--", sys.executable, "-c", LACKING]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert first.startswith(f"ConfigError here nothing limits {says}; run where the kernel")
    assert first.endswith("set unsafe: true")
    assert second == "LocalSandbox"


@pytest.mark.parametrize("unsafe", kills.tiers([False], [False, True]))
def test_validate_finds_that_programs_cannot_be_confined(tmp_path, unsafe):
    tree = tiny.config("self_hosted_grpo", tmp_path)
    file = tmp_path / "code.jsonl"
    file.write_text(json.dumps({"prompt": "a", "tests": FORMS[1]}) + "\n", "utf-8")
    tree["data"]["data_files"] = tree["validate"]["data"]["data_files"] = [str(file)]
    tree["rollout_worker"]["evaluator"] = {"type": "code", "unsafe": unsafe}
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps(tree), "utf-8")
    support = Path(hostile.__file__).with_name("lacking.py")
    command = [sys.executable, str(support), "landlock_create_ruleset", "--"]
    start = "from plugrl.cli import main; main()"
    command += [sys.executable, "-c", start, "validate", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == unsafe, done.stderr
    assert ("; to let programs do what they want, set unsafe: true" in done.stderr) != unsafe


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
        ([{"in": 1}], "a test with the keys 'in';"),
        ([{}], "a test with no keys;"),
        ({"inputs": ["1"], "outputs": []}, "as many outputs as inputs"),
        ({"inputs": ["1"], "outputs": [None]}, "no output where null stands"),
        ([{"input": "1", "output": None}], "a test with the keys 'input', 'output';"),
        ([{"function": "f", "arguments": []}], "a test with the keys 'function', 'arguments';"),
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


@pytest.mark.parametrize("text", ["a", " ", "a ", "`", "``` ", " \n", "```\n"])
def test_programs_are_looked_for_in_time_that_grows_as_the_answer_does(text):
    """Answers of models that do not find an end are long lines of one kind."""
    before = time.process_time()
    extract_program("```" + text * (1 << 17))
    assert time.process_time() - before < 1


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
