"""What a run says about errors in the code of its components: who, what, where; the rest in log."""

import inspect
import re
from pathlib import Path

import forking
import pytest
import yaml

from plugrl.core.errors import EXIT_RUN_FAILED, RunError, RunInterrupted
from plugrl.core.experiment import load_run, prepare, start

TRAINER = """
from plugrl import SelfHostedTrainer

class Mine(SelfHostedTrainer):
    def _prepare_batch(self, batch):
        {body}
"""

LOSS = """
import torch
from plugrl import register_advantage, register_loss

@register_{kind}("mine")
def mine({parameters}):
    {body}
"""
PARAMETERS = {
    "loss": "logp, batch, config",
    "advantage": "rewards, group, run, valid, batch, config",
}


def line_of(path, text):
    """Number of the line of a file that holds ``text``."""
    return next(n for n, line in enumerate(path.read_text().splitlines(), 1) if text in line)


def failed(tree):
    """Train, expect one line, and give it with the run folder."""
    with pytest.raises(RunError) as caught:
        start(prepare(tree))
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == EXIT_RUN_FAILED
    (folder,) = Path(tree["settings"]["runs_folder"]).glob("*/*")
    status = load_run(folder).status
    assert status["state"] == "failed"
    # Whatever ends a run: the line points at its traceback, and the log has it.
    line, pointer, log = str(caught.value).partition("; the full traceback is in ")
    assert pointer, line
    assert log == str(folder / "log.txt")
    assert "Traceback (most recent call last)" in Path(log).read_text(encoding="utf-8")
    assert status["error"].endswith(f": {line}")
    return line, folder


def own_trainer(config, tmp_path, body):
    file = tmp_path / "my_trainer.py"
    file.write_text(TRAINER.format(body=body))
    section = {
        "type": None,
        "custom_trainer_module_path": str(file),
        "custom_trainer_class_name": "Mine",
    }
    return config(trainer=section, validate={"enabled": False}), file


@pytest.mark.integration
@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("pass", ["Mine._prepare_batch", "returned NoneType", "return batch, metrics"]),
        ("return batch", ["Mine._prepare_batch", "returned Batch", "return batch, metrics"]),
        ("return {}, batch", ["Mine._prepare_batch", "dict and Batch"]),
        ("return batch, {'note': 'good'}", ["Mine._prepare_batch", "metric 'note' as str"]),
        (
            "batch.metadata['advantages'] = [0.0] * 3; return batch, {}",
            ["Mine._prepare_batch", "metadata['advantages'] of shape (3,)", "shape (8,)"],
        ),
        (
            "batch.metadata['advantages'] = 1.0; return batch, {}",
            ["Mine._prepare_batch", "metadata['advantages'] of shape ()", "one number a row"],
        ),
        (
            "batch.metadata['advantages'] = ['good'] * 8; return batch, {}",
            ["Mine._prepare_batch", "metadata['advantages'] as list", "one number a row"],
        ),
        (
            "batch.values['advantages'] = batch.metadata['rewards']; return batch, {}",
            ["Mine._prepare_batch", "values['advantages'] of shape (8,)", "is expected"],
        ),
        (
            "batch.values['loss_mask'] = None; return batch, {}",
            ["Mine._prepare_batch", "values['loss_mask'] as NoneType", "is expected"],
        ),
        (
            "del batch.values['input_ids']; return batch, {}",
            ["Mine._prepare_batch", "without the tensor values['input_ids']"],
        ),
        ("return batch, {}", ["loss clipped needs", "advantages", "_compute_advantage(batch)"]),
    ],
)
def test_a_wrong_answer_names_the_method_and_its_place(config, tmp_path, body, says):
    tree, file = own_trainer(config, tmp_path, body)
    line, _ = failed(tree)
    for fragment in says:
        assert fragment in line
    if "Mine" in says[0]:
        assert f"{file.name}:{line_of(file, '_prepare_batch')}" in line


@pytest.mark.integration
def test_an_error_in_a_trainer_names_it_and_keeps_the_traceback(config, tmp_path):
    tree, file = own_trainer(config, tmp_path, "return batch.values['x'], {}")
    line, folder = failed(tree)
    assert "trainer 'Mine' raised KeyError: 'x' at " in line
    assert f"{file.name}:{line_of(file, 'values')}" in line
    log = (folder / "log.txt").read_text()
    assert "KeyError: 'x'" in log
    assert f'"{file}", line {line_of(file, "values")}' in log


ODD = "type('Odd', (BaseException,), {})"


@pytest.mark.integration
@pytest.mark.parametrize("raised", ["KeyboardInterrupt", "SystemExit(0)", "GeneratorExit", ODD])
def test_an_exception_that_would_end_the_process_names_the_code_too(config, tmp_path, raised):
    tree, file = own_trainer(config, tmp_path, f"raise {raised}")
    line, _ = failed(tree)
    name = "Odd" if raised == ODD else raised.partition("(")[0]
    assert f"trainer 'Mine' raised {name}" in line
    assert f"{file.name}:{line_of(file, 'raise')}" in line


@pytest.mark.integration
def test_a_real_interrupt_still_interrupts(config, tmp_path):
    body = "import os, signal; os.kill(os.getpid(), signal.SIGINT); return batch, {}"
    tree, _ = own_trainer(config, tmp_path, body)
    tree["trainer"]["algorithm"] = {"loss": "cross_entropy"}
    with pytest.raises(RunInterrupted, match="interrupted after step 1"):
        start(prepare(tree))
    (folder,) = Path(tree["settings"]["runs_folder"]).glob("*/*")
    assert load_run(folder).status["state"] == "interrupted"


@pytest.mark.integration
@pytest.mark.parametrize("kind", ["loss", "advantage"])
@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("return [][1]", ["'mine'", "raised IndexError"]),
        ("return torch.zeros(3) @ torch.zeros(4)", ["'mine'", "raised RuntimeError"]),
        ("return 1.0", ["mine (", "returned float", "shape ("]),
    ],
)
def test_an_error_in_a_function_names_it(registry, config, tmp_path, kind, body, says):
    file = tmp_path / f"my_{kind}.py"
    file.write_text(LOSS.format(kind=kind, parameters=PARAMETERS[kind], body=body))
    from plugrl.core.plugins.loading import import_user_module

    import_user_module(str(file))
    line, _ = failed(config(trainer={"algorithm": {kind: "mine"}}, validate={"enabled": False}))
    for fragment in says:
        assert fragment in line
    assert line.startswith(kind)
    place = body if "raised" in says[1] else "def mine"
    # A decorated function begins at its decorator.
    assert f"{file.name}:{line_of(file, place) - (place != body)}" in line


@pytest.mark.integration
def test_a_loss_of_the_wrong_length_names_the_expected_shape(registry, config, tmp_path):
    def short(logp, batch, config):
        return logp[:, :-1], {}

    registry.register("loss", "short", short)
    line, _ = failed(config(trainer={"algorithm": {"loss": "short"}}, validate={"enabled": False}))
    assert "loss short (" in line
    assert "returned shape" in line
    assert "is expected" in line


JUDGES = """
from plugrl import Evaluator, EvaluationRunResult

class Judge(Evaluator):
    def evaluate(self, data, evaluation_target):
        if {condition}:
            return EvaluationRunResult(reward=float(data["truth"]))
        return EvaluationRunResult(reward=1.0)
"""


@pytest.mark.integration
def test_the_first_traceback_of_an_evaluator_is_kept(config, tmp_path, caplog):
    file = tmp_path / "judges.py"
    file.write_text(JUDGES.format(condition='data["prompt"][0] == "a"'))
    tree = config(
        rollout_worker={"evaluator": None, "evaluator_module_path": f"{file}:Judge"},
        trainer={"total_train_steps": 3},
    )
    run = start(prepare(tree))
    place = f"{file.name}:{line_of(file, 'truth')}"
    warnings = [r.message for r in caplog.records if "Judge" in r.message]
    assert len(warnings) == 1
    assert "KeyError: 'truth'" in warnings[0]
    assert "data has: prompt, answer" in warnings[0]
    assert place in warnings[0]
    log = (run.folder / "log.txt").read_text()
    assert log.count("Traceback (most recent call last)") == 2  # the cause and what it became
    assert f'"{file}", line {line_of(file, "truth")}' in log


@pytest.mark.integration
def test_the_first_traceback_of_a_worker_is_kept(registry, config, caplog):
    from plugrl import RolloutWorker

    class Clumsy(RolloutWorker):
        """Fails half of the time."""

        def rollout(self, task):
            if task.run_id % 2:
                raise LookupError("lost")
            raise OSError("gone")

    registry.register("rollout_worker", "clumsy", Clumsy)
    tree = config(
        rollout_worker={"type": "clumsy"},
        validate={"enabled": False, "every": 0, "data": None},
    )
    _, folder = failed(tree)
    assert sum("worker Clumsy.rollout raised" in r.message for r in caplog.records) == 2
    log = (folder / "log.txt").read_text()
    assert "LookupError: lost" in log
    assert "OSError: gone" in log


@pytest.mark.integration
def test_the_command_says_it_in_one_line(config, tmp_path):
    tree, file = own_trainer(config, tmp_path, "return batch.values['x'], {}")
    (tmp_path / "exp.yaml").write_text(yaml.safe_dump(tree))
    result = forking.run(["-m", "plugrl", "train", "exp.yaml"], cwd=tmp_path, timeout=240)
    assert result.returncode == EXIT_RUN_FAILED
    assert "Traceback" not in result.stderr
    (error,) = [line for line in result.stderr.splitlines() if line.startswith("error")]
    assert f"{file.name}:{line_of(file, 'values')}" in error
    assert "unexpected" not in error


@pytest.mark.integration
@pytest.mark.parametrize(
    ("validated", "says"),
    [
        (False, r"no reward was valid in any of \d steps, so nothing was learned"),
        (True, r"none of the \d+ attempts of validation is valid"),
    ],
)
def test_a_worker_that_always_raises_is_named(registry, config, validated, says):
    from plugrl import RolloutWorker

    class Broken(RolloutWorker):
        def rollout(self, task):
            raise ValueError("boom")

    registry.register("rollout_worker", "broken", Broken)
    off = {} if validated else {"validate": {"enabled": False, "every": 0, "data": None}}
    tree = config(rollout_worker={"type": "broken"}, trainer={"total_train_steps": 1}, **off)
    line, _ = failed(tree)
    number = inspect.getsourcelines(Broken.rollout)[1] + 1
    assert re.search(
        rf"^{says}; one of the failures: "
        r"Broken\.rollout raised ValueError: boom \(tests/trainers/"
        rf"test_plugin_errors.py:{number}\)",
        line,
    )
