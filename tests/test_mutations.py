"""Mutation testing itself: what is changed, which tests are a module's own, and the list."""

import ast
import subprocess
import sys
from pathlib import Path

import mutants
import pytest

SOURCE = '''
"""Says nothing."""
import os

class Pair:
    size: int = 3

    def put(self, key, value, *, old=None):
        self.held = min(abs(key), 0.5) + value
        if not key and value < 2:
            raise ValueError(f"{key + 1} is wrong")
        return {"a": self.held, "b": [value, -key]}
'''


@pytest.fixture
def changed(tmp_path, monkeypatch):
    """The mutants of a source, by the line that they have in the place of another."""
    monkeypatch.setattr(mutants, "ROOT", tmp_path)

    def make(source=SOURCE):
        (tmp_path / "pair.py").write_text(source)
        return mutants.mutants_of("pair.py")

    return make


def test_each_kind_of_change_is_made_once_and_alone(changed):
    found = changed()
    news = {m.new.strip() for m in found}
    assert {
        "size: int = (4)",
        "self.held = min(abs(key), 0.5) - value",
        "self.held = (max(abs(key), 0.5)) + value",
        "self.held = (min(0.5, abs(key))) + value",
        "self.held = min((key), 0.5) + value",
        "self.held = min(abs(key), (1.0)) + value",
        "if (not key or value < 2):",
        "if (not key):",
        "if (key) and value < 2:",
        "if not key and (value <= 2):",
        "if (not (not key and value < 2)):",
        "return None",
        "return ({'b': [value, -key]})",
        'return {"a": self.held, "b": [value, (key)]}',
        "pass",
    } <= {new.replace("(min(abs(key), 0.5) - value)", "min(abs(key), 0.5) - value") for new in news}
    # Messages, imports and docstrings are no behaviour.
    assert not any("wrong" in m.new or "import" in m.new or "nothing" in m.new for m in found)
    for mutant in found:
        lines = mutant.applied(SOURCE).splitlines()
        ast.parse("\n".join(lines))
        before = SOURCE.splitlines()
        assert lines[: mutant.line - 1] == before[: mutant.line - 1]
        assert lines[mutant.line :] == before[mutant.line :]
    assert len({m.key for m in found}) == len(found)


def test_columns_count_letters_and_a_statement_may_have_several_lines(changed):
    source = 'held = "ä" * (1 + 2)\nsum = (\n    3 *\n    held\n)\n'
    for mutant in changed(source):
        ast.parse(mutant.applied(source))
    assert any(m.new == 'held = "ä" * ((1 - 2))' for m in changed(source))


def test_own_tests_are_the_mirror_then_those_that_import_or_name_it():
    sys.path.insert(0, str(Path(__file__).parent))
    from mutations import own_tests

    of_pool = own_tests("plugrl/core/text/schedule/pool.py")
    assert of_pool[0] == "tests/core/text/schedule/test_pool.py"
    assert "tests/trainers/test_advantages.py" in of_pool
    # By way of a helper, by name, and by the modules that import it.
    assert "tests/core/text/endpoint/test_sessions.py" in own_tests(
        "plugrl/core/text/endpoint/session.py"
    )
    assert "tests/trainers/test_preference_losses.py" in own_tests("plugrl/trainers/losses/kto.py")
    assert "tests/trainers/test_preference_losses.py" in own_tests(
        "plugrl/core/text/learn/reference.py"
    )


def test_the_list_can_be_read():
    """That each of its lines is still there is told by the run: code moves."""
    found, _ = mutants.named()
    for mutant in found:
        assert mutant.old != mutant.new
        ast.parse(mutant.applied(Path(mutants.ROOT, mutant.file).read_text("utf-8")))
    assert len({m.key for m in found}) == len(found) > 100
    assert not {(m.file, m.old, m.new) for m in found} & mutants.equivalents()


def test_the_tests_that_caught_them_are_there_and_fast():
    found, _ = mutants.named()
    for test in {test for mutant in found for test in mutant.caught_by}:
        file, *_, name = test.partition("[")[0].split("::")
        functions = {
            node.name: {ast.unparse(mark) for mark in node.decorator_list}
            for node in ast.walk(ast.parse(Path(mutants.ROOT, file).read_text("utf-8")))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        assert name in functions, test
        assert not functions[name] & {"pytest.mark.integration", "pytest.mark.slow"}, test


def test_a_listing_runs_nothing(tmp_path):
    words = ["plugrl/core/text/inference/sampling.py", "--number", "3", "--seed", "1", "--list"]
    script = str(Path(__file__).with_name("mutations.py"))
    outputs = [
        subprocess.run([sys.executable, script, *words], capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    assert outputs[0].stdout == outputs[1].stdout
    assert outputs[0].stdout.count("plugrl/core/text/inference/sampling.py:") == 3
