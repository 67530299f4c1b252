"""What a person sees of a run in a terminal: while it goes on, at its end, and after Ctrl-C."""

import os
import re
import subprocess
import sys

import pytest
import yaml
from terminal import Terminal
from waiting import DEADLINE

from plugrl.testing import tiny

#: Two bars of a run with everything that prints meanwhile; it stops where Enter is awaited.
PROGRAM = """
import logging, os, sys, threading, warnings
from plugrl.core.run.progress import Progress

logging.basicConfig(format="%(message)s")
progress = Progress(sys.argv[1], lambda: {"validation/exact_match": 0.25})
progress.start()
bar = progress.bar("grpo", 60)
for step in range(1, 31):
    bar.update(step, **{"rollout/reward": 0.375, "train/loss": -0.0125})
    logging.getLogger("other").warning("logged %d", step)
    print("printed", step, "[red]")
    threading.Thread(target=lambda: sys.stderr.write("from a thread\\n")).start()
inner = progress.bar("Testing", 3)
inner.update(1)
inner.close()
sys.stdin.readline()
bar.update(60)
bar.close()
progress.close()
print("end")
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return str(path)


def show(program, columns, *, last, env=None):
    """Run the program to its end in a terminal; it ends when the line has come up to ``last``."""
    with Terminal([program, "auto"], columns=columns, echo=False, env=env) as terminal:
        terminal.until("30/60")
        # The line comes in pieces.
        while not re.search(f"30/60.*{last}", terminal.lines[-1]):
            terminal.read()
        terminal.press("\n")
        assert terminal.wait() == 0
    return terminal


@pytest.mark.integration
@pytest.mark.parametrize(
    ("columns", "numbers"),
    [
        (80, ["exact_match 0.25", "reward 0.375"]),
        (100, ["validation/exact_match 0.25", "rollout/reward 0.375"]),
        (120, ["validation/exact_match 0.25", "rollout/reward 0.375"]),
        (160, ["validation/exact_match 0.25", "rollout/reward 0.375", "train/loss -0.0125"]),
    ],
)
def test_one_line_with_bar_step_time_and_the_numbers_that_matter(program, columns, numbers):
    terminal = show(program, columns, last=numbers[-1])
    # The longest, since a frame may be of a piece that was read before the rest of its line.
    line = max((frame[-1] for frame in terminal.frames if "30/60" in frame[-1]), key=len)
    assert len(line) < columns
    assert line.startswith("grpo  30/60  ")
    assert "━━━━━━━━" in line
    assert " left" in line
    assert all(number in line for number in numbers)
    # Nothing is glued to the line, and of it nothing stays but how far it came.
    ends = [line for line in terminal.lines if "grpo" in line]
    assert len(ends) == 1
    assert ends[0].startswith("grpo: 60/60  validation/exact_match 0.25")
    for start in ("logged", "printed"):
        told = [line for line in terminal.lines if start in line]
        assert told == [f"{start} {n}" + " [red]" * (start == "printed") for n in range(1, 31)]
    assert terminal.lines.count("from a thread") == 30
    assert terminal.cursor == (0, True)
    assert terminal.raw.count(b"\x1b[?25l") == 0


@pytest.mark.integration
def test_what_twenty_columns_have_room_for(program):
    terminal = show(program, 20, last="0.25")
    assert any(frame[-1] == "30/60  0.25" for frame in terminal.frames if frame)


@pytest.mark.integration
def test_without_colours_the_line_moves_all_the_same(program):
    terminal = show(program, 100, env={"NO_COLOR": "1"}, last="0.375")
    assert b"\x1b[3" not in terminal.raw.replace(b"\x1b[2K", b"")
    assert any("━━━" in frame[-1] for frame in terminal.frames if frame)


@pytest.mark.integration
@pytest.mark.parametrize("style", ["auto", "rich"])
def test_a_terminal_that_cannot_move_its_cursor_gets_lines(program, style):
    with Terminal([program, style], env={"TERM": "dumb"}) as terminal:
        terminal.press("\n")
        assert terminal.wait() == 0
    assert b"\x1b" not in terminal.raw
    assert [line for line in terminal.lines if "/60" in line][-1].startswith("grpo: 60/60")


@pytest.mark.integration
@pytest.mark.parametrize("env", [{}, {"FORCE_COLOR": "1"}])
def test_a_file_gets_plain_lines(program, env):
    done = subprocess.run(
        [sys.executable, program, "auto"], input="\n", capture_output=True, text=True,
        check=True, timeout=DEADLINE, env={**os.environ, **env},
    )  # fmt: skip
    assert "\x1b" not in done.stdout + done.stderr
    assert "\r" not in done.stdout + done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "/60" in line]
    assert line.startswith("grpo: 60/60  validation/exact_match 0.25  ")


@pytest.mark.integration
def test_the_line_follows_the_width(program):
    with Terminal([program, "auto"], columns=120, echo=False) as terminal:
        terminal.until("30/60")
        terminal.resize(60)
        while not any("30/60" in line and len(line) < 60 for line in terminal.lines[-1:]):
            terminal.read()
        terminal.resize(100)
        while not any("30/60" in line and len(line) > 80 for line in terminal.lines[-1:]):
            terminal.read()
        terminal.press("\n")
        assert terminal.wait() == 0
    assert terminal.lines[-1] == "end"


#: A run that goes on until it is interrupted.
ENDLESS = """
import dataclasses, time
import plugrl

class Endless(plugrl.Trainer):
    Config = dataclasses.make_dataclass("Config", [])
    def train(self):
        bar = self.run.progress("Training", 10**6)
        for step in range(1, 10**6):
            time.sleep(0.05)
            self.run.end_step(step, {"train/loss": 1 / step})
            bar.update(step)
"""


@pytest.fixture
def endless(tmp_path):
    (tmp_path / "endless.py").write_text(ENDLESS)
    trainer = {"custom_trainer_module_path": "endless.py", "custom_trainer_class_name": "Endless"}
    tree = {"experiment_name": "endless", "trainer": trainer, "settings": {"device": "cpu"}}
    (tmp_path / "endless.yaml").write_text(yaml.safe_dump(tree))
    return tmp_path


@pytest.mark.integration
@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_leaves_a_clean_terminal(endless, times):
    words = ["-m", "plugrl", "train", "endless.yaml"]
    with Terminal(words, cwd=endless, forked=True) as terminal:
        terminal.until("loss 0.")
        for _ in range(times):
            terminal.press("\x03")
            terminal.until("SIGINT: stopping")
        assert terminal.wait() == 130
    assert terminal.cursor == (0, True)
    told = [line for line in terminal.lines if "SIGINT: stopping" in line]
    assert told[0].startswith("SIGINT: stopping at the end of this step")
    assert terminal.lines[-1].startswith("plugrl resume runs/endless/")
    assert not any("━" in line for line in terminal.lines), terminal.lines


@pytest.mark.integration
@pytest.mark.parametrize(
    ("option", "lines"), [("-v", slice(16, None)), (None, slice(6, 16)), ("-q", slice(1, 2))]
)
def test_how_much_a_command_prints(tmp_path, option, lines):
    tree = tiny.config("self_hosted_grpo", tmp_path, {"settings": {"progress": "auto"}})
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(tree))
    words = ["-m", "plugrl", "train", "tiny.yaml", *([option] if option else [])]
    # The one that prints least shows what imports print, too.
    with Terminal(words, cwd=tmp_path, columns=160, forked=option != "-q") as terminal:
        assert terminal.wait() == 0
    assert len(terminal.lines) in range(1000)[lines]
    (folder,) = (tmp_path / "runs").glob("*/*/")
    assert folder.name in "\n".join(terminal.lines)
