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


def test_what_was_last_is_said_when_a_bar_ends_early(capsys):
    bar = Progress("plain").bar("Training", 2)
    time.sleep(0.6)
    bar.update(1)
    bar.close()
    bar.close()
    assert [line.split("  ")[0] for line in capsys.readouterr().err.splitlines()] == [
        "Training: 1/2"
    ]
