"""The texts that ``plugrl new`` writes, as files of this folder, and the table of templates.

``components``, ``tests`` and ``data`` have what belongs to one template, under its name;
``recipes``, ``package`` and ``experiment`` what several share. ``$NAME`` is filled in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_FOLDER = Path(__file__).parent
#: Overrides that keep a run of a recipe short, by what its trainer counts.
STEPS = ("trainer.total_train_steps=2",)
ITERATIONS = ("rl.num_iterations=2",)
TRAINING_STEPS = ("trainer.training_steps=2",)
#: What a recipe has where a template says nothing of it.
PARTS: Mapping[str, str] = {
    "algorithm": "",
    "characters": "0123456789+=",
    "context": "16",
    "data": "",
    "environment": "",
    "evaluator": "exact_match",
    "learning": "grpo",
    "purpose": "by $component",
    "response": "3",
    "rest": "",
    "scorer": "{type: lexicon, words: [a, e, i, o, u], match: substring}",
    "section": "",
    "task": "\nscenario:\n  type: arithmetic\n  digits: 1\n  validation: 10\n  development: 0\n"
    "  demonstrations: 0\n",
    "template": "",
    "train": "",
    "trainer": "self_hosted_grpo",
    "worker": "",
}
_NO_VALIDATION = "\n\nvalidate: {enabled: false}"
_TWO_TURNS = (
    "\n        chat_template: >-\n          {% for m in messages %}{{ m.content }}"
    "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
)


def text(name: str) -> str:
    """A file of this folder."""
    return (_FOLDER / name).read_text(encoding="utf-8")


@dataclass(frozen=True, kw_only=True)
class Template:
    """What a package has of one component.

    Attributes:
        name: that ``--kind`` and ``--add`` take.
        kind: of the component; None: hooks, which are no component.
        recipe: the file of ``recipes``, with ``parts`` filled in.
        short: overrides that keep its run short.
        function: whether the component is a function, with a ``Config`` beside it or without.
        names: what its tests import from its module besides the component.
        imports: what they import besides, and ``standard`` from the standard library.
        conformance: a statement in the class of its contract that speaks for the component.
        sampler: whether the inference service of letters stands beside it.
        in_run: whether a run uses the component; else it is used around a run.
        variables: of the environment, without which its recipe finds another component.
    """

    name: str
    kind: str | None
    recipe: str = "text"
    parts: Mapping[str, str] = field(default_factory=dict)
    short: tuple[str, ...] = STEPS
    function: bool = False
    names: str = ""
    imports: str = ""
    standard: str = ""
    conformance: str = ""
    sampler: bool = False
    in_run: bool = True
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def body(self) -> str:
        """The module."""
        return text(f"components/{self.name}.py.txt")

    @property
    def check(self) -> str:
        """What is tested besides the contract of the kind and a run; empty: the contract trains."""
        name = f"tests/{self.name}.py.txt"
        return text(name) if (_FOLDER / name).is_file() else ""

    @property
    def data(self) -> dict[str, str]:
        """Further files of the package, by path."""
        folder = _FOLDER / "data" / self.name
        return {
            path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
            for path in sorted(folder.rglob("*"))
            if path.is_file() and "__pycache__" not in path.parts
        }


_ROWS = (
    Template(name="trainer", kind="trainer", parts={"trainer": "$component"}),
    Template(
        name="network_trainer",
        kind="trainer",
        recipe="network",
        parts={"trainer": "$component", "section": "\n\n$component: {temperature: 0.5}"},
        short=ITERATIONS,
    ),
    Template(name="evaluator", kind="evaluator", parts={"evaluator": "$component"}),
    Template(
        name="rollout_worker", kind="rollout_worker", parts={"worker": "\n  type: $component"}
    ),
    Template(
        name="two_turn_worker",
        kind="rollout_worker",
        parts={"worker": "\n  type: $component", "template": _TWO_TURNS},
    ),
    Template(
        name="scenario",
        kind="scenario",
        parts={"task": "\nscenario:\n  type: $component\n  digits: 2\n"},
    ),
    Template(
        name="data_map",
        kind="data_map",
        function=True,
        conformance="""\
    conformance = {
        "row": {"question": "1+2?", "solution": "3"},
        "dropped": {"question": "", "solution": ""},
    }
""",
        parts={
            "task": "",
            "data": "\n  data_files: [questions.jsonl]\n  map: $component",
            "rest": _NO_VALIDATION,
        },
    ),
    Template(
        name="hub",
        kind="hub",
        parts={"task": "", "data": "\n  name: own/sums", "rest": _NO_VALIDATION},
        variables={"PLUGRL_HUB": "$component"},
    ),
    Template(name="launcher", kind="launcher", in_run=False),
    Template(
        name="advantage",
        kind="advantage",
        function=True,
        imports="import torch\n",
        parts={"algorithm": "\n  algorithm:\n    advantage: $component"},
    ),
    Template(
        name="loss",
        kind="loss",
        function=True,
        imports="import torch\n",
        parts={"algorithm": "\n  algorithm:\n    loss: $component"},
    ),
    Template(
        name="body",
        kind="body",
        recipe="network",
        parts={
            "trainer": "vanilla_ppo",
            "section": "\n\nagents: {agent: {body: {type: $component, width: 32}}}",
        },
        short=ITERATIONS,
    ),
    Template(name="protocol", kind="protocol", recipe="protocol"),
    Template(
        name="parser",
        kind="parser",
        parts={
            "characters": "0123456789+=!?",
            "context": "48",
            "response": "12",
            "worker": "\n  type: agent\n  agent_config: agent/agent_config.yaml"
            '\n  tool_parser: $component\n  error_message: "?"',
        },
    ),
    Template(
        name="sandbox",
        kind="sandbox",
        parts={
            "task": "",
            "data": "\n  data_files: [expressions.jsonl]",
            "evaluator": "{type: code, fence: ignore, sandbox: $component}",
            "rest": _NO_VALIDATION,
        },
    ),
    Template(
        name="scorer",
        kind="scorer",
        recipe="red_team",
        parts={"scorer": "$component", "purpose": "so that $component finds fault with the answer"},
        short=TRAINING_STEPS,
    ),
    Template(
        name="dialogue_environment",
        kind="dialogue_environment",
        recipe="red_team",
        parts={"environment": "\n  type: $component"},
        short=TRAINING_STEPS,
    ),
    Template(
        name="harness_algorithm",
        kind="harness_algorithm",
        recipe="red_team",
        parts={"learning": "$component"},
        short=TRAINING_STEPS,
    ),
    Template(
        name="inference_service",
        kind="inference_service",
        recipe="letters",
        parts={"trainer": "\ntrainer: evaluation"},
        short=(),
        names="Letters",
        imports="import torch\n",
    ),
    Template(
        name="train_service",
        kind="train_service",
        recipe="letters",
        parts={
            "train": "\n    train: $component",
            "trainer": "\ntrainer: {type: self_hosted_grpo, total_train_steps: 50}",
        },
        sampler=True,
    ),
    Template(
        name="fine_tune_service",
        kind="fine_tune_service",
        recipe="fine_tune",
        short=("text_rl.num_iterations=2",),
        sampler=True,
    ),
    Template(
        name="tracker",
        kind="tracker",
        standard="import csv\n",
        parts={"rest": "\n\ntrackers:\n  - $component"},
    ),
    Template(name="hook", kind=None, names="FILE"),
)
#: All templates, by the name that ``--kind`` and ``--add`` take.
TEMPLATES = {row.name: row for row in _ROWS}
