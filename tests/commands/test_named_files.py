"""``plugrl -p FILE``: what a file does that is imported before a command."""

import yaml
from transformers.models.qwen3 import modeling_qwen3  # noqa: F401  (no test's time)

from plugrl.testing import tiny


def test_hooks_of_a_file_that_the_command_line_names_are_called(call, tmp_path):
    file = tmp_path / "steps.py"
    file.write_text("""
import plugrl

@plugrl.hookimpl
def plugrl_register_components(registry):
    registry.register("evaluator", "letters", lambda data, target: float(len(target.final_answer)))

@plugrl.hookimpl
def plugrl_step_end(step):
    print("step", step, "is over")
""")
    tree = tiny.config("self_hosted_grpo", tmp_path, {"validate": {"enabled": False}})
    tree["rollout_worker"]["evaluator"] = "letters"
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(tree))
    code, out, err = call("-p", str(file), "train", "run.yaml")
    assert code == 0, err
    assert [line for line in out.splitlines() if line.startswith("step ") and "over" in line] == [
        f"step {step} is over" for step in range(3)
    ]
