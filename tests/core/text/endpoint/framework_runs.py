"""One training step whose attempts are made by a program with an agent framework."""

import json
import math
import sys
from pathlib import Path

from small_models import small_source

from plugrl.core.experiment import prepare, start
from plugrl.testing import tiny

PROGRAMS = Path(__file__).parent / "frameworks"
CHARACTERS = "".join(map(chr, range(32, 127))) + "\n"
TEMPLATE = (
    "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def train_step(folder, command, algorithm=None, **worker):
    """The metrics of one training step over four attempts."""
    tree = tiny.config("self_hosted_grpo", folder)
    tree["models"]["policy"]["source"] = small_source(CHARACTERS, TEMPLATE, positions=8192)
    tree["rollout_worker"] = {
        "type": "external",
        "command": [sys.executable, *command],
        "workspace": str(PROGRAMS),
        "max_prompt_length": 7000,
        "max_response_length": 400,
        "reward": "program",
        **worker,
    }
    tree["data"] |= {"batch_size": 1, "rollout_repeat_n": 4}
    tree["validate"] = {"enabled": False}
    tree["trainer"] |= {"total_train_steps": 1, "algorithm": algorithm or {}}
    start(prepare(tree))
    (file,) = Path(folder).rglob("metrics.jsonl")
    (line,) = [
        json.loads(line) for line in file.read_text().splitlines() if "rollout/turns" in line
    ]
    return line


def assert_trained(line):
    """A step was made of attempts that all came to their end."""
    assert line["rollout/invalid"] == 0.0
    assert line["rollout/cut"] < 1.0
    assert line["rollout/reward_max"] > line["rollout/reward_min"]
    assert line["train/grad_norm"] > 0
    assert math.isfinite(line["train/grad_norm"])
