"""Control characters of others do not reach the terminal."""

import forking
import pytest
import yaml

from plugrl.core.wording import bounded, shown
from plugrl.testing import tiny

EVIL = "\x1b[2J\x1b]0;owned\x07"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain\n\tText Ünïcode 漢字", "plain\n\tText Ünïcode 漢字"),
        (EVIL, r"\x1b[2J\x1b]0;owned\x07"),
        ("a\rb\x9b31m\x7f", r"a\rb\x9b31m\x7f"),
        ("user\u202etxt.exe\u2066", r"user\u202etxt.exe\u2066"),
    ],
)
def test_what_steers_a_terminal_is_written_as_its_escape(text, expected):
    assert shown(text) == expected


def test_the_middle_of_a_long_text_is_left_out():
    assert bounded("a" * 2000) == "a" * 2000
    # A quarter of the 20 that are kept stands at the end.
    text = "a" * 40 + "b" * 50 + "c" * 10
    assert bounded(text, 20) == "a" * 15 + " [... 80 characters ...] " + "c" * 5


def test_tables_remarks_and_bars_are_shown_so(capsys):
    from plugrl.commands._output import emit_table, note
    from plugrl.core.run.progress import Progress

    emit_table([{"name": EVIL}], ["name"])
    note(EVIL)
    bar = Progress("plain").bar(EVIL, 1)
    bar.update(1)
    bar.close()
    printed = capsys.readouterr()
    assert "\x1b" not in printed.out + printed.err
    assert printed.out.count(r"\x1b[2J") == 1
    assert printed.err.count(r"\x1b[2J") == 2


def test_errors_and_logs_of_a_command_are_shown_so(tmp_path):
    agent = tmp_path / "agent.py"
    agent.write_text(
        "import logging\nimport plugrl\n\n\n@plugrl.register_rollout_worker('evil')\n"
        f"def evil(task):\n    logging.getLogger('plugrl.x').warning({EVIL!r})\n"
        f"    raise OSError({EVIL!r})\n"
    )
    tree = tiny.config("self_hosted_grpo", tmp_path, {"rollout_worker": None})
    tree["rollout_worker"] = {"type": "evil", "max_response_length": 3}
    (tmp_path / "exp.yaml").write_text(yaml.safe_dump(tree))
    done = forking.run(["-m", "plugrl", "-p", str(agent), "train", str(tmp_path / "exp.yaml")])
    assert done.returncode == 1
    (log,) = (tmp_path / "runs").glob("*/*/log.txt")
    for written in (done.stderr, done.stdout, log.read_text()):
        assert "\x1b" not in written
    assert "error: " in done.stderr
    assert done.stderr.count(r"\x1b[2J") >= 3
