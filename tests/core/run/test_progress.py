"""Lines of progress come in the order of what they say."""

import time

from plugrl.core.run.progress import Progress


def test_nothing_older_follows_the_line_of_the_end(capsys):
    bar = Progress("plain").bar("Training", 2)
    time.sleep(0.6)
    bar.update(1)
    bar.update(2)
    bar.close()
    bar.close()
    assert [line.split("  ")[0] for line in capsys.readouterr().err.splitlines()] == [
        "Training: 2/2"
    ]


def test_times_of_a_line_are_written_in_one_form(capsys, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    bar = Progress("plain").bar("Training", 4)
    for step in (1, 2, 4):
        now[0] += 65 * (2 if step == 4 else 1)
        bar.update(step)
    bar.close()
    times = [line.split("  ")[-1] for line in capsys.readouterr().err.splitlines()]
    assert times == ["1:05, 3:15 left", "2:10, 2:10 left", "4:20"]


def test_what_was_last_is_said_when_a_bar_ends_early(capsys):
    bar = Progress("plain").bar("Training", 2)
    time.sleep(0.6)
    bar.update(1)
    bar.close()
    bar.close()
    assert [line.split("  ")[0] for line in capsys.readouterr().err.splitlines()] == [
        "Training: 1/2"
    ]
