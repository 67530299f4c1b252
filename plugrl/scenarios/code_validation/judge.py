"""What a function gives in many programs: the source that runs in a box, with no import of plugrl.

Each program has names of its own. A call that runs too many lines is stopped, so that what comes of
it does not depend on the machine.
"""

import json
import sys
from typing import Any


class _Late(BaseException):
    """More lines were run than are allowed; no program of a problem catches it."""


def judge(programs: list[str], function: str, cases: list[str], lines: int) -> list[list[str]]:
    """What each program gives for each case, as JSON, or ``raised``, or ``late``.

    Args:
        programs: their sources.
        function: the function that is called.
        cases: its arguments, each a list in JSON.
        lines: how many lines of Python a call may run.
    """
    return [_answers(program, function, cases, lines) for program in programs]


def _answers(program: str, function: str, cases: list[str], lines: int) -> list[str]:
    names: dict[str, Any] = {"__name__": "program"}
    try:
        exec(compile(program, "program", "exec"), names)
        call = names[function]
    except Exception:
        return ["raised"] * len(cases)
    return [_answer(call, json.loads(case), lines) for case in cases]


def _answer(call: Any, arguments: list[Any], lines: int) -> str:
    left = lines

    def count(frame: Any, event: str, argument: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise _Late
        return count

    sys.settrace(count)
    try:
        result = call(*arguments)
    except _Late:
        return "late"
    except Exception:
        return "raised"
    finally:
        sys.settrace(None)
    try:
        return json.dumps(result, sort_keys=True)
    except (TypeError, ValueError):
        return "raised"
