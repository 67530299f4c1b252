"""``plugrl report`` and ``plugrl runs compare``, on run folders written by hand."""

import json

import pytest


@pytest.fixture
def runs(call, tmp_path):
    """Two runs of the experiment ``e`` below ``runs``, which differ in their seed."""
    for seed in (1, 2):
        folder = tmp_path / "runs" / "e" / f"2026010{seed}-000000-abcdef"
        folder.mkdir(parents=True)
        lines = [{"step": step, "train/loss": seed / step} for step in (1, 2)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(n) + "\n" for n in lines))
        (folder / "config.yaml").write_text(f"seed: {seed}\nlr: 0.1\n")
        (folder / "status.json").write_text(
            json.dumps({"state": "done", "step": 2, "started": f"2026-01-0{seed}"})
        )
    return tmp_path / "runs" / "e"


def test_the_report_of_a_run_is_in_its_folder(call, runs):
    code, out, _ = call("report", "latest")
    assert (code, out) == (0, "runs/e/20260102-000000-abcdef/report.html\n")
    assert (runs / "20260102-000000-abcdef" / "report.html").exists()


def test_the_report_of_several_runs_is_here_or_where_one_says(call, runs, tmp_path):
    assert call("report", "20260101", "20260102")[:2] == (0, "report.html\n")
    assert "2 runs" in (tmp_path / "report.html").read_text("utf-8")
    assert call("report", "latest", "--output", "one.html")[:2] == (0, "one.html\n")
    assert (tmp_path / "one.html").exists()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("nosuch",), "error: no run 'nosuch' in runs; `plugrl runs list` shows what there is\n"),
        (
            ("latest", "--output", "no/folder.html"),
            "error: cannot write the report to no/folder.html: No such file or directory; "
            "choose another file with --output\n",
        ),
        ((), "error: missing argument 'RUN...' (see plugrl report --help)\n"),
    ],
)
def test_what_cannot_be_reported_is_one_line(call, runs, words, error):
    code, out, err = call("report", *words)
    assert (code, out, err) == (2, "", error)


def test_a_folder_is_no_file_to_write(call, runs):
    code, _, err = call("report", "latest", "--output", ".")
    assert code == 2
    assert err == "error: --output . is a folder; name a file in it, such as ./report.html\n"


def test_runs_are_compared(call, runs):
    code, out, err = call("runs", "compare", "20260101", "20260102")
    assert (code, err) == (0, "")
    table = [line.split() for line in out.splitlines()]
    assert table[0] == ["NAME", "e/20260101-000000-abcdef", "e/20260102-000000-abcdef"]
    assert ["first", "1", "2"] in table
    assert ["best", "0.5", "1"] in table
    assert ["train/loss", "0.5", "1"] in table
    assert table[-2] == ["seed", "1", "2"]
    assert not any(row[:1] == ["lr"] for row in table)
    code, out, _ = call("runs", "compare", "20260101", "20260102", "--json")
    found = json.loads(out)
    assert found["configuration"] == {"seed": ["1", "2"]}
    assert found["metrics"] == {"train/loss": [0.5, 1.0]}


def test_a_run_is_not_compared_with_itself(call, runs):
    for words in (["latest"], ["latest", "20260102"]):
        code, _, err = call("runs", "compare", *words)
        assert code == 2
        assert "one run; name another one to compare it with" in err
