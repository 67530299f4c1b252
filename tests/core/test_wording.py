"""Control characters of others do not reach the terminal."""

import pickle
from pathlib import Path

import forking
import pytest
import yaml

from plugrl.core.errors import PlugrlError
from plugrl.core.experiment import prepare
from plugrl.core.run.folder import find
from plugrl.core.sweep import parse_axis
from plugrl.core.wording import bounded, bounded_message, shown
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


KEY = "k" * 100_000


@pytest.mark.parametrize(
    "fail",
    [
        lambda: prepare("quickstart", [f"{KEY}=1"]),
        lambda: prepare("quickstart", [f"trainer.{KEY}=1"]),
        lambda: prepare("quickstart", [KEY]),
        lambda: prepare("quickstart", [f"trainer.type={KEY}"]),
        lambda: prepare("quickstart", [f"trainer.type={'k ' * 50_000}"]),
        lambda: prepare("quickstart", [f"data.data_files=[{KEY}]"]),
        lambda: prepare("quickstart", ["data.batch_size=" + "[" * 5000 + "]" * 5000]),
        lambda: prepare(KEY),
        lambda: find(KEY, Path("runs")),
        lambda: parse_axis(KEY),
    ],
    ids=map(str, range(10)),
)
def test_what_errors_quote_is_bounded(fail):
    with pytest.raises(PlugrlError) as caught:
        fail()
    error = caught.value
    for line in (str(error), *getattr(error, "faults", ())):
        assert len(line) < 2500
        assert "\n" not in line
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize("words", [["train", "quickstart", f"--{KEY}"], [KEY], ["ls", KEY]])
def test_what_a_command_quotes_is_bounded(call, words):
    code, _, err = call(*words)
    assert code == 2
    assert len(err) < 2500


def test_a_long_word_and_a_long_line_keep_both_ends():
    short = "data.batch_size: " + "x" * 500
    assert bounded_message(short) == short
    once = bounded_message(f"a{KEY}z y\n" + "word " * 10_000 + "end")
    assert once.startswith("akkk")
    assert "z y\nword" in once
    assert once.endswith(" end")
    assert len(once) < 2600
    assert bounded_message(once) == once


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
