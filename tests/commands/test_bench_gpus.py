"""``plugrl bench grpo_gpus``: its order, its layouts, and a small one on CPUs."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "grpo_gpus.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("grpo_gpus", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(SCRIPT.parent))
    spec.loader.exec_module(module)
    sys.path.remove(str(SCRIPT.parent))
    return module


def test_layouts_put_no_two_ranks_on_one_gpu(script):
    given = script.arguments(["--devices", "4"])
    for layout, engines, ranks in (("one", 1, 1), ("colocated", 4, 4), ("separated", 2, 2)):
        policy = script.sections(layout, "sync", given)["models"]["policy"]
        assert (policy["inference"]["replicas"], policy["train"]["workers"]) == (engines, ranks)
        share = policy["inference"]["resources"]["GPU"]
        assert share > 0.5
        assert share + policy["train"]["gpus"] == (2.0 if layout == "separated" else 1.0)


def test_one_device_comes_first_in_each_work(script):
    cells = script.cells(script.arguments(["--devices", "2", "--works", "0.6B-weak"]))
    assert [cell[2] for cell in cells] == ["one", "colocated", "separated"] * 2
    alone = script.cells(script.arguments(["--devices", "1", "--works", "0.6B-weak"]))
    assert "separated" not in {cell[2] for cell in alone}


SMALL = (
    "--devices 2 --device cpu --works tiny --steps 2 --warm-up 1 --threads 1 --modes sync "
    "--limit 850"
)


def rows_of(*words):
    """The lines that a small work on CPUs prints, and its exit code."""
    pytest.importorskip("ray")
    command = [sys.executable, str(SCRIPT), *SMALL.split(), *words]
    done = subprocess.run(command, capture_output=True, encoding="utf-8")
    return [json.loads(line) for line in done.stdout.splitlines()], done.returncode


@pytest.mark.slow
def test_a_small_work_on_cpus():
    rows, code = rows_of("--checks")
    assert code == 0, rows
    assert [row["layout"] for row in rows] == ["one", "colocated", "separated"]
    for row in rows[1:]:
        assert row["ratio"] > 0
        assert row["broadcast_gb_per_second"] > 0
        assert row["sync_gb_per_second"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("check", ["weights", "resume", "killed_rank", "killed_engine"])
def test_a_check_of_two_ranks_passes_on_cpus(check):
    (row,), code = rows_of("--layouts", "--checks", check)
    assert code == 0, row
    assert row["check"] == check
    assert row["passed"] is True
