"""Files, Python names and lines of code that pages name are there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import plugrl
from plugrl.trainers import a2c, dqn, reinforce, sac, solo_agent, spg, td3, vanilla_ppo

ROOT = Path(__file__).parents[2]
GENERATED = ROOT / "docs" / "reference"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if GENERATED not in page.parents),
]
NAMES = {str(page.relative_to(ROOT)): page for page in PAGES}
#: What stands at the top of the checkout, and what pages may therefore name a file below.
TOP = r"(?:plugrl|tests|docs|examples|benchmarks|\.ci)"

_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")
_PATH = re.compile(rf"{TOP}/[\w./*-]*")
_COMPONENT = re.compile(r"plugrl/\w+")
_FILE = re.compile(r"[\w-]+\.(?:cfg|toml|txt|md)")
_DOTTED = re.compile(r"plugrl(?:\.\w+)+")
#: Groups of entry points, such as ``plugrl.trainers``.
GROUPS = set(
    re.findall(r"^(plugrl\.\w+) =$", (ROOT / "setup.cfg").read_text("utf-8"), re.MULTILINE)
)


def code_in(page: str) -> Iterator[str]:
    """The code within the lines of a page, blocks left out."""
    for match in _CODE.finditer(_FENCED.sub("", page)):
        yield match[1]


def is_defined(dotted: str) -> bool:
    """Whether a dotted name is a module of this checkout, or is defined at the top of one."""
    parts = dotted.split(".")
    if len(parts) == 2 and parts[1] in plugrl.__all__:
        return True
    *parents, name = parts
    place = ROOT.joinpath(*parts)
    if place.is_dir() or place.with_suffix(".py").is_file():
        return True
    module = ROOT.joinpath(*parents)
    file = module / "__init__.py" if module.is_dir() else module.with_suffix(".py")
    if not file.is_file():
        return False
    defined: set[str] = set()
    for node in ast.parse(file.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            defined |= {target.id for target in targets if isinstance(target, ast.Name)}
    return name in defined


def missing_names(page: str) -> list[str]:
    """Paths and dotted names in the code of a page that are not there.

    A word in capitals stands for any name: ``plugrl/trainers/NAME.py``.
    """
    missing = []
    for code in code_in(page):
        for word in code.split():
            if _COMPONENT.fullmatch(word):
                # A component with its distribution, such as plugrl/clipped.
                continue
            if _PATH.fullmatch(word):
                pattern = re.sub(r"\b[A-Z]{3,}\b", "*", word).rstrip("/")
                found = any(ROOT.glob(pattern))
            elif _DOTTED.fullmatch(word) and not word.endswith((".yaml", ".toml")):
                found = word in GROUPS or is_defined(word)
            else:
                continue
            if not found:
                missing.append(word)
    return missing


@pytest.mark.parametrize("name", NAMES)
def test_files_and_names_of_a_page_are_there(name):
    assert missing_names(NAMES[name].read_text("utf-8")) == []


def test_files_at_the_top_that_the_readme_and_the_rules_name_are_there():
    for name in ("README.md", "CONTRIBUTING.md"):
        named = [code for code in code_in(NAMES[name].read_text("utf-8")) if _FILE.fullmatch(code)]
        assert [file for file in named if not (ROOT / file).is_file()] == []


def test_what_is_not_there_is_found():
    page = (
        "`plugrl/core/errors.py` `plugrl/core/gone.py` `python docs/generate.py` `docs/gone.md`\n"
        "`plugrl.Batch` `plugrl.Batches` `plugrl.core.errors.RunError` `plugrl.core.errors.Gone`\n"
        "`plugrl.core.text` `plugrl.core.gone` `plugrl/trainers/NAME.py` `plugrl/NAME/gone.py`\n"
        "```\n`plugrl.gone`\n```\n"
    )
    gone = ["plugrl/core/gone.py", "docs/gone.md", "plugrl.Batches", "plugrl.core.errors.Gone"]
    assert missing_names(page) == [*gone, "plugrl.core.gone", "plugrl/NAME/gone.py"]


# --------------------------------------------------------------------- formulas and their lines

ALGORITHMS = {name: page for name, page in NAMES.items() if name.startswith("docs/algorithms/")}
#: The head of a table that says where each formula of the page stands.
_HEAD = re.compile(r"^\| In the paper \| In `([^`]+)` \|$", re.MULTILINE)


def lines_of_formulas(page: str) -> Iterator[tuple[str, str]]:
    """Each piece of code in the tables of a page that map formulas to code, with its file.

    The head of a table names the file; a row whose cell begins with a path names another.
    """
    for head in _HEAD.finditer(page):
        for row in page[head.end() :].lstrip("\n").splitlines()[1:]:
            if not row.startswith("|"):
                break
            # A bar within code is written as an entity, or it would end the cell.
            codes = _CODE.findall(row.strip("| ").rsplit(" | ", 1)[1])
            file = codes.pop(0) if _PATH.fullmatch(codes[0]) else head[1]
            for code in codes:
                yield file, code


def missing_lines(page: str) -> list[str]:
    """Code of these tables that is not in its file; white space counts as one space."""
    missing = []
    for file, code in lines_of_formulas(page):
        text = " ".join((ROOT / file).read_text("utf-8").split())
        if " ".join(code.split()) not in text:
            missing.append(f"{file}: {code}")
    return missing


@pytest.mark.parametrize("name", ALGORITHMS)
def test_formulas_stand_in_the_code_as_the_page_says(name):
    assert missing_lines(ALGORITHMS[name].read_text("utf-8")) == []


def test_a_line_that_the_code_does_not_have_is_found():
    page = (
        "| In the paper | In `plugrl/trainers/a2c.py` |\n| --- | --- |\n"
        "| `L` | `pg_loss = -(log_prob * advantage).mean()` |\n"
        "| `V` | `v_loss = gone`, `self.critic_coef` |\n"
        "| `k` | `plugrl/core/estimators.py`, `return -logratio`, `return gone` |\n\n"
        "| Other | Table |\n| --- | --- |\n| a | `gone` |\n"
    )
    gone = ["plugrl/trainers/a2c.py: v_loss = gone", "plugrl/core/estimators.py: return gone"]
    assert missing_lines(page) == gone


# ------------------------------------------------------------------------------------- defaults

TRAINERS = (
    a2c.A2cTrainer,
    dqn.DqnTrainer,
    reinforce.ReinforceTrainer,
    sac.SacTrainer,
    solo_agent.SoloAgentTrainer,
    spg.SpgTrainer,
    td3.Td3Trainer,
    vanilla_ppo.VanillaPpoTrainer,
)
#: The sections of small networks' algorithms, with their defaults.
SECTIONS = {
    name: vars(trainer.sections[name]())
    for trainer in TRAINERS
    for name in trainer.sections
    if name not in ("scenario", "agents", "rl", "validate", "message_regression")
}
_KEYS = re.compile(r"^\| Key of `(\w+)` \| Default \|", re.MULTILINE)


def wrong_defaults(page: str) -> list[str]:
    """Keys in the tables of sections that are not there or have another default."""
    wrong = []
    for head in _KEYS.finditer(page):
        section = SECTIONS.get(head[1], {})
        rows = [] if head[1] not in SECTIONS else page[head.end() :].splitlines()[2:]
        for row in rows:
            if not row.startswith("|"):
                break
            keys, defaults = (_CODE.findall(cell) for cell in row.split(" | ")[:2])
            for key, default in zip(keys, defaults, strict=True):
                value = yaml.safe_load(default)
                if isinstance(value, str) and isinstance(section.get(key), float):
                    value = float(value)  # YAML reads 1e-4 as text.
                if key not in section or section[key] != value:
                    wrong.append(f"{head[1]}.{key}: {default}")
    return wrong


@pytest.mark.parametrize("name", ALGORITHMS)
def test_defaults_of_a_page_are_those_of_the_section(name):
    assert wrong_defaults(ALGORITHMS[name].read_text("utf-8")) == []


def test_the_page_of_each_algorithm_has_its_keys():
    pages = "".join(page.read_text("utf-8") for page in ALGORITHMS.values())
    assert set(SECTIONS) == set(_KEYS.findall(pages)) & set(SECTIONS)


def test_another_default_is_found():
    page = (
        "| Key of `ppo` | Default | Meaning |\n| --- | --- | --- |\n"
        "| `clip_epsilon` | `0.3` | a |\n| `kl_target`, `gone` | `1e-2`, `1` | b |\n"
    )
    assert wrong_defaults(page) == ["ppo.clip_epsilon: 0.3", "ppo.gone: 1"]
