"""What is said when something could not be compiled."""

import pytest

from plugrl.core.run.process.compiler import compiler_failure


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("\nno such operation\n  at line 3\n"), "RuntimeError: no such operation"),
        (RuntimeError(""), "RuntimeError"),
        (NotImplementedError(), "NotImplementedError"),
    ],
)
def test_the_first_line_is_enough(error, said):
    assert compiler_failure(error) == said
