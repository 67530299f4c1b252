from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import forking
import pytest
import torch

from plugrl.cli import main
from plugrl.commands import bench

ROOT = Path(__file__).parents[2]
SCRIPT = '''"""Measures nothing.

More text.
"""
import sys

print(sys.argv[1:])
print("to stderr", file=sys.stderr)
sys.exit({code})
'''


@pytest.fixture
def command(tmp_path, monkeypatch, capfd):
    """Run ``plugrl bench`` in an empty folder; give exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PLUGRL_PEERS", raising=False)

    def run(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            main(("bench", *words))
        out, err = capfd.readouterr()
        return int(caught.value.code or 0), out, err

    return run


@pytest.fixture
def own(tmp_path):
    """A folder with one benchmark of our own, that ends with exit code 7."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "nothing.py").write_text(SCRIPT.format(code=7))
    (folder / "_shared.py").write_text("")
    return folder


def test_list_names_the_benchmarks_of_the_checkout(command):
    code, out, err = command("--list", "--json")
    assert (code, err) == (0, "")
    found = {row["name"]: Path(row["path"]) for row in json.loads(out)}
    assert found["grpo_cpu"] == ROOT / "benchmarks" / "grpo_cpu.py"
    assert "startup" in found
    assert command()[1] == command("--list")[1]


def test_list_of_another_folder_shows_first_lines(command, own):
    assert command("--list", "--folder", str(own)) == (
        0,
        "NAME     ABOUT\nnothing  Measures nothing\n",
        "",
    )


def test_an_unknown_name_gets_the_close_one(command):
    code, out, err = command("grpo_cp")
    assert (code, out) == (2, "")
    assert "there is no benchmark 'grpo_cp'; did you mean grpo_cpu, grpo_gpu, grpo_gpus?" in err
    assert err.count("\n") == 1


def test_arguments_and_exit_code_pass_through(command, own):
    code, out, err = command(
        "nothing", "--folder", str(own), "--rounds", "5", "--json", "--peer-python", "a b", "-x"
    )
    assert code == 7
    assert out == "['--json', '--rounds', '5', '-x', '--peer-python', 'a b']\n"
    assert err == "to stderr\n"


def test_words_after_two_dashes_belong_to_the_benchmark(command):
    code, out, _ = command("grpo_cpu", "--", "--help")
    assert code == 0
    assert "--make-peer" in out


def test_a_folder_without_benchmarks_is_refused(command, tmp_path):
    code, out, err = command("--folder", str(tmp_path))
    assert (code, out) == (2, "")
    assert err == f"error: --folder {tmp_path}: holds no benchmarks (Python files)\n"


def test_an_installed_package_says_where_the_benchmarks_are(command, tmp_path, monkeypatch):
    installed = tmp_path / "site-packages" / "plugrl" / "commands" / "bench.py"
    monkeypatch.setattr(bench, "__file__", str(installed))
    code, out, err = command("grpo_cpu")
    assert (code, out) == (2, "")
    assert "run this in the source checkout of plugrl" in err
    assert err.count("\n") == 1
    monkeypatch.chdir(ROOT)
    assert "grpo_cpu" in command("--list")[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give --peer-python PATH or set PLUGRL_PEERS, make one with --make-peer"),
        (["--peer-python", "/nowhere/python"], "/nowhere/python cannot be run: No such file"),
        (["--peer-python", "/bin/false"], "/bin/false has no usable TRL"),
    ],
)
def test_a_missing_peer_is_one_line_with_the_remedy(command, words, said):
    code, out, err = command("grpo_cpu", *words)
    assert (code, out) == (2, "")
    assert said in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def loaded(name: str):
    """The script of a benchmark as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def forked(tmp_path, monkeypatch):
    """Fork what is started with ``sys.executable``: importing takes longer than it does."""
    for name, value in forking.stand_ins(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))


@pytest.fixture
def measured(forked, monkeypatch, capsys):
    """Runs a benchmark, whose sides are forked."""
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(name: str, *words: str) -> dict:
        script = loaded(name)
        given = script.arguments([*words, "--no-peer", "--json"])
        assert script.run(script.measure, script.table, given) == 0
        return json.loads(capsys.readouterr().out)

    return run


def ppo_report(learn, *, cpu):
    seconds = {"imports": 1.0, "setup": 2.0, "learn": learn, "end": 1.0}
    return {
        "steps": 1000,
        "seconds": seconds,
        "cpu_seconds": {**seconds, "learn": cpu},
        "return": 20.0 * learn,
    }


def test_ratios_of_ppo_are_medians_of_those_of_a_round(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    rounds = [
        {"plugrl": ppo_report(own, cpu=own), "sb3": ppo_report(peer, cpu=4 * own)}
        for own, peer in ((4.0, 8.0), (6.0, 18.0), (6.0, 36.0))
    ]
    for each in rounds:
        each |= {"torchrl_loss": each["plugrl"], "compiled": each["plugrl"], "torchrl": each["sb3"]}
    found = loaded("ppo_cartpole").summary(rounds)
    assert found["ratio_by_round"] == pytest.approx([2.0, 3.0, 6.0])
    names = ("ratio", "cpu_ratio", "ratio_torchrl")
    assert [found[name] for name in names] == pytest.approx([3.0, 4.0, 1.0])
    # The whole time of a run has four seconds more.
    assert found["whole_ratio_by_round"] == pytest.approx([12 / 8, 22 / 10, 40 / 10])
    assert found["sides"]["plugrl"]["steps_per_second"] == pytest.approx(1000 / 6)
    assert found["sides"]["sb3"]["cpu_steps_per_second"] == pytest.approx(1000 / 24)
    assert found["sides"]["sb3"]["return_by_round"] == [160.0, 360.0, 720.0]
    alone = loaded("ppo_cartpole").summary([{"plugrl": each["plugrl"]} for each in rounds])
    assert (alone["ratio"], alone["whole_ratio_by_round"]) == (None, None)


def test_ratios_of_grpo_are_medians_of_those_of_a_round(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    script = loaded("grpo_cpu")

    def report(seconds):
        return {
            "seconds": [9.0, seconds, 0.0],
            "cpu_seconds": [2 * seconds],
            "versions": {"a": "1", "b": None},
        }

    reports = {
        "plugrl": [report(seconds) for seconds in (1.0, 2.0, 3.0)],
        "peer": [report(seconds) for seconds in (4.0, 4.0, 4.0)],
    }
    given = script.arguments(["--prompts", "2", "--samples", "3", "--tokens", "5"])
    found = script.summary(given, reports, 7)
    assert found["ratios"] == [0.25, 0.5, 0.75]
    assert (found["ratio"], found["cpu_ratio"]) == (0.5, 0.5)
    assert (found["plugrl_seconds"], found["peer_seconds"]) == (2.0, 4.0)
    assert found["plugrl_cpu_seconds"] == 4.0
    assert found["new_tokens_per_second"] == 30 / 2.0
    assert found["work"]["parameters"] == 7
    assert found["versions"] == {"plugrl": {"a": "1"}, "peer": {"a": "1"}}


def bench_process(*words: str) -> dict:
    done = subprocess.run(
        [sys.executable, "-m", "plugrl", "bench", *words, "--json"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.integration
def test_grpo_cpu_measures_plugrl_alone(measured):
    sizes = {"prompts": 2, "samples": 2, "tokens": 4, "steps": 3, "warm-up": 1, "rounds": 2}
    tiny = [word for name, size in sizes.items() for word in (f"--{name}", str(size))]
    result = measured("grpo_cpu", *tiny)
    assert result["benchmark"] == "grpo_cpu"
    assert result["work"] == {
        "prompts": 2,
        "samples": 2,
        "shortest": 4,
        "tokens": 4,
        "rounds": 2,
        "steps": 3,
        "warm_up": 1,
        "compile": "auto",
        "parameters": 330288,
    }
    assert result["peer_seconds"] is None
    assert result["ratio"] is None
    assert result["ratios"] is None
    assert result["threads"] == 1
    assert result["machine"]["cpus"] == os.cpu_count()
    assert set(result["versions"]) == {"plugrl"}
    first, second = result["seconds_by_round"]["plugrl"]
    assert result["plugrl_seconds"] == pytest.approx((first + second) / 2)
    # A clock that is read elsewhere than in the steps gives microseconds.
    assert 0.001 < result["plugrl_seconds"] < 10
    assert result["new_tokens_per_second"] == pytest.approx(16 / result["plugrl_seconds"])


@pytest.mark.integration
def test_answers_of_grpo_cpu_may_have_other_lengths(measured):
    sizes = {"prompts": 2, "samples": 2, "shortest": 2, "tokens": 6, "steps": 3, "warm-up": 1}
    tiny = [word for name, size in sizes.items() for word in (f"--{name}", str(size))]
    # The side ends the benchmark if the lengths are not those that were drawn.
    result = measured("grpo_cpu", *tiny, "--rounds", "1")
    assert (result["work"]["shortest"], result["work"]["tokens"]) == (2, 6)
    # 4 sequences of 4 tokens, in the middle.
    assert result["new_tokens_per_second"] == pytest.approx(16 / result["plugrl_seconds"])


@pytest.mark.timing
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("words", [[], ["--shortest", "8"]], ids=str)
def test_grpo_cpu_takes_at_most_three_fifths_of_the_peers_step(pytestconfig, words):
    folder = str(pytestconfig.cache.mkdir("bench-peer"))
    peer = [] if "PLUGRL_PEERS" in os.environ else ["--make-peer", folder]
    result = bench_process("grpo_cpu", *peer, *words)
    assert len(result["ratios"]) == 3
    assert result["versions"]["peer"]["trl"].startswith("1.16.")
    assert result["cpu_ratio"] <= 0.6, result


@pytest.mark.slow
def test_ppo_cartpole_measures_plugrl_alone(measured):
    result = measured("ppo_cartpole", "--settings", "small", "--steps", "1500", "--rounds", "1")
    assert result["benchmark"] == "ppo_cartpole"
    assert result["work"] == {"steps": 1500, "rounds": 1}
    assert result["ratio"] is None
    assert list(result["settings"]) == ["small"]
    sides = result["settings"]["small"]["sides"]
    assert set(sides) == {"plugrl", "compiled", "torchrl_loss"}
    for name, side in sides.items():
        # 1,500 steps are three iterations of 512; the first one of compiled code is apart.
        steps, apart = (1024, {"compile"}) if name == "compiled" else (1536, set())
        (seconds,) = side["seconds_by_round"]
        assert set(seconds) == {"imports", "setup", "learn", "end"} | apart
        assert side["steps_per_second"] == pytest.approx(steps / seconds["learn"])
        assert min(side["return_by_round"]) > 9


@pytest.mark.integration
def test_off_policy_measures_plugrl_alone(measured):
    result = measured("off_policy", "--algorithm", "dqn", "--steps", "500", "--rounds", "1")
    found = result["algorithms"]["dqn"]
    assert (result["ratio_dqn"], result["cpu_ratio_dqn"]) == (None, None)
    (seconds,) = found["sides"]["plugrl"]["seconds_by_round"]
    # The first 500 steps are a phase of their own.
    assert set(seconds) == {"imports", "setup", "begin", "learn"}
    assert found["sides"]["plugrl"]["steps_per_second"] == pytest.approx(500 / seconds["learn"])
    # Four passes over 128 rows through 6 x 256, 256 x 256 and 256 x 3.
    work = 4 * 2 * 128 * (6 * 256 + 256 * 256 + 256 * 3)
    assert found["floor_milliseconds"] == pytest.approx(work / result["gigaflops"] / 1e6)


@pytest.mark.slow
def test_off_policy_measures_compiled_updates_too(measured):
    result = measured(
        "off_policy", "--algorithm", "dqn", "--steps", "500", "--rounds", "1", "--compile"
    )
    sides = result["algorithms"]["dqn"]["sides"]
    assert set(sides) == {"plugrl", "compiled"}
    assert (result["ratio_compiled_dqn"], result["cpu_ratio_compiled_dqn"]) == (None, None)
    plain, compiled = (side["cpu_seconds_by_round"][0] for side in sides.values())
    # The first 500 steps, in which it compiles, are a phase of their own.
    assert set(plain) == set(compiled) == {"imports", "setup", "begin", "learn"}
    assert compiled["begin"] > plain["begin"]


@pytest.mark.integration
def test_off_policy_gives_no_figure_of_what_was_not_compiled(forked, monkeypatch, capfd):
    monkeypatch.setenv("CXX", "/nowhere/g++")
    monkeypatch.setattr(sys, "path", list(sys.path))
    script = loaded("off_policy")
    words = ["--algorithm", "dqn", "--steps", "500", "--rounds", "1", "--compile", "--no-peer"]
    assert script.run(script.measure, script.table, script.arguments(words)) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert "rl.compile: DqnLoss goes on uncompiled: there is no C++ compiler /nowhere/g++" in err
    assert err.splitlines()[-1].startswith("error: plugrl_side.py failed with exit code 1")


@pytest.mark.parametrize("words", [[], ["--peer-python", "/bin/false"]])
def test_ppo_cartpole_names_its_own_peers(command, words):
    code, out, err = command("ppo_cartpole", *words)
    assert (code, out) == (2, "")
    assert "Stable-Baselines3 and TorchRL" in err
    assert err.count("\n") == 1


_FEW = "--device cpu --copies 8 --steps 16 --minibatch 64 --iterations 3 --warm-up 1 --rounds 1"


@pytest.mark.integration
def test_ppo_gpu_measures_both_sides_on_the_cpu_too():
    result = bench_process("ppo_gpu", *_FEW.split())
    assert result["work"]["copies"] == 8
    sides = {side: report for side, (report,) in result["sides"].items()}
    assert set(sides) == {"plugrl", "torchrl"}
    for report in sides.values():
        # 8 copies of 16 steps, whose untrained episodes last some 20 steps.
        assert report["steps_per_second"] * report["seconds_per_iteration"] == pytest.approx(128)
        assert 9 < report["return"] < 70
    ours, theirs = (sides[side]["steps_per_second"] for side in ("plugrl", "torchrl"))
    assert result["ratio"] == pytest.approx(ours / theirs)


@pytest.mark.usefixtures("forked")
def test_grpo_gpu_says_where_there_is_no_gpu(command):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    code, out, err = command("grpo_gpu", "--no-peer")
    assert (code, out) == (1, "")
    assert err == "error: there is no GPU; grpo_cpu measures the CPU\n"


@pytest.mark.usefixtures("forked")
def test_ppo_gpu_says_where_there_is_no_gpu(command):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    code, out, err = command("ppo_gpu")
    assert (code, out) == (1, "")
    assert err == "error: there is no GPU; measure the CPU with --device cpu\n"


@pytest.mark.timing
@pytest.mark.timeout(7200)
def test_ppo_cartpole_is_as_much_faster_as_promised(pytestconfig):
    folder = str(pytestconfig.cache.mkdir("bench-ppo-peer"))
    peer = [] if "PLUGRL_PEERS" in os.environ else ["--make-peer", folder]
    result = bench_process("ppo_cartpole", *peer)
    small, wide = result["settings"]["small"], result["settings"]["wide"]
    assert small["ratio"] >= 2.4, small
    assert wide["ratio"] >= 2.8, wide
    assert min(small["ratio_compiled"], wide["ratio_compiled"]) >= 3.5, result
    assert small["ratio_torchrl_loss"] >= 1.8, small
    assert wide["ratio_torchrl_loss"] >= 2.4, wide
