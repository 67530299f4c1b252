"""A user's file that cannot be imported is one line, however the file is named."""

from __future__ import annotations

import sys

import pytest

from plugrl.core.errors import EXIT_PLUGIN, EXIT_USAGE

#: What the file holds, what is said of it, and in which line it fails.
FAULTS = {
    "syntax": (b"def f(:\n", "SyntaxError: invalid syntax", 1),
    "missing": (b"x = 1\nimport no_such_library\n", "no_such_library", 2),
    "name": (b"\nfrom json import no_such_name\n", "cannot import name 'no_such_name'", 2),
    "raised": (b"def f():\n    return 1 / 0\nf()\n", "ZeroDivisionError: division by zero", 2),
    "exit": (b"import sys\nsys.exit(3)\n", "SystemExit: 3", 2),
    "encoding": (b'x = "\xff"\n', "can't decode byte 0xff", 1),
    "binary": (b"x = 1\n\0", "cannot contain null bytes", 2),
}
AGENT = "type: agent\nname: a\nmax_iterations: 2\ntools: [{name: f, binding: 'broken:f'}]\n"
TORCHRL = "trainer: vanilla_ppo\nscenario: {type: torchrl, environment: 'broken.py:f'}\n"


def custom(path, kind):
    prefix = f"{path}.custom_{kind}"
    return f"{prefix}_module_path=broken.py", f"{prefix}_class_name=Mine"


def picked(recipe, path, kind):
    return ("validate", recipe, *custom(path, kind))


POLE = ("validate", "cartpole_ppo")
#: The words of a command line that name the file, each in its own way.
WAYS = {
    "-p file": ("-p", "broken.py", "ls", "trainers"),
    "-p module": ("-p", "broken", "ls", "trainers"),
    "validated trainer": picked("cartpole_ppo", "trainer", "trainer"),
    "shown trainer": ("config", "show", "cartpole_ppo", *custom("trainer", "trainer")),
    "trained trainer": ("train", "cartpole_ppo", *custom("trainer", "trainer")),
    "swept trainer": ("sweep", "cartpole_ppo", *custom("trainer", "trainer"), "seed=0,1"),
    "scenario": picked("cartpole_ppo", "scenario", "scenario"),
    "rollout worker": picked("dapo", "rollout_worker", "rollout_worker"),
    "evaluator": picked("dapo", "rollout_worker.evaluator", "evaluator"),
    "evaluator path": ("validate", "dapo", "rollout_worker.evaluator_module_path=broken.py:Mine"),
    "loss": picked("dapo", "trainer.phases.1.trainer.algorithm.loss", "loss"),
    "advantage": picked("dapo", "trainer.phases.1.trainer.algorithm.advantage", "advantage"),
    "inference service": picked("dapo", "models.policy.inference", "inference_service"),
    "train service": picked("dapo", "models.policy.train", "train_service"),
    "tracker": picked("cartpole_ppo", "trackers", "tracker"),
    "protocol": picked("graph_isomorphism_nip", "scenario.protocol", "protocol"),
    "environment by id": (*POLE, "scenario.id=broken:Mine-v0"),
    "wrapper": (*POLE, "scenario.wrappers=[broken:Mine]"),
    "environment": ("validate", "torchrl.yaml"),
    "several agents": ("validate", "two_cartpoles_ppo", "scenario.environment=broken.py:f"),
    "policy in a file": (*POLE, "agents.agent.scripted=broken.py:f"),
    "policy in a module": (*POLE, "agents.agent.scripted=broken:f"),
    "tool": ("validate", "calculator_agent", "rollout_worker.agent_config=agent.yaml"),
}
#: Fast is each way once, and each fault.
CASES = [(way, "raised") for way in WAYS]
CASES += [("-p file", fault) for fault in FAULTS if fault != "raised"]
CASES += [
    pytest.param(way, fault, marks=pytest.mark.integration)
    for way in WAYS
    for fault in FAULTS
    if fault == "missing" or way in ("validated trainer", "wrapper", "tool")
    if way != "-p file" and fault != "raised"
]


@pytest.mark.parametrize(("way", "fault"), CASES)
def test_a_file_that_cannot_be_imported_is_one_line(call, tmp_path, monkeypatch, way, fault):
    source, said, line = FAULTS[fault]
    (tmp_path / "broken.py").write_bytes(source)
    (tmp_path / "agent.yaml").write_text(AGENT)
    (tmp_path / "torchrl.yaml").write_text(TORCHRL)
    monkeypatch.setattr(sys, "path", list(sys.path))
    code, out, err = call(*WAYS[way])
    assert code in (EXIT_PLUGIN, EXIT_USAGE)
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1, err
    assert said in err
    assert f"broken.py:{line}" in err
    assert "plugrl_user_" not in err


@pytest.mark.parametrize("way", ["-p file", "validated trainer"])
def test_debug_has_the_traceback_that_the_line_leaves_out(call, tmp_path, way):
    (tmp_path / "broken.py").write_bytes(FAULTS["raised"][0])
    _, _, err = call(*WAYS[way])
    assert err.endswith("; re-run with plugrl --debug for its traceback\n")
    _, _, err = call("--debug", *WAYS[way])
    assert "return 1 / 0" in err
    assert err.splitlines()[-1].endswith("broken.py:2")


#: What a file says that must be imported once: the second time it says something else.
ONCE = """
import sys
if "{flag}" in sys.modules:
    raise RuntimeError("imported twice")
sys.modules["{flag}"] = sys
import no_such_library
"""


@pytest.mark.parametrize(
    "words",
    [
        ("validate", "own.yaml"),
        ("validate", "own.yaml", "data={batch_size: 2}", "my_section={x: 1}", "validate.mine=1"),
        ("validate", "own.yaml", "service={train_service: {type: local}}"),
        ("validate", "own.yaml", *custom("rollout_worker", "rollout_worker")),
        ("validate", "phases.yaml"),
    ],
)
def test_a_trainer_that_cannot_be_imported_is_the_only_fault(call, tmp_path, monkeypatch, words):
    flag = f"imported_{tmp_path.name}"
    (tmp_path / "broken.py").write_text(ONCE.format(flag=flag))
    own = "{custom_trainer_module_path: broken.py, custom_trainer_class_name: Mine, lr: 1}"
    (tmp_path / "own.yaml").write_text(f"trainer: {own}\n")
    phases = f"[{{name: a, trainer: {own}}}, {{name: b, trainer: {own}}}]"
    (tmp_path / "phases.yaml").write_text(f"trainer: {{type: sequence, phases: {phases}}}\n")
    code, _, err = call(*words)
    sys.modules.pop(flag, None)
    assert code == EXIT_PLUGIN
    assert err.count("\n") == 1, err
    assert "No module named 'no_such_library' at broken.py:6" in err
