"""The documentation is complete, up to date, and does what it says."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
import sys
from pathlib import Path

import forking
import kills
import pytest
from markdown.extensions.toc import slugify, unique

_spec = importlib.util.spec_from_file_location("doc_blocks", Path(__file__).with_name("blocks.py"))
blocks = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = blocks
_spec.loader.exec_module(blocks)

ROOT = blocks.ROOT
NAMES = {str(page.relative_to(ROOT)): page for page in blocks.PAGES}
#: The README's two commands that make a new environment.
SKIPPED = 2


def blocks_by_page():
    return {name: blocks.blocks_of(page.read_text("utf-8")) for name, page in NAMES.items()}


RUNNING = [
    name
    for name, found in blocks_by_page().items()
    if any(b.language in blocks.RUN and not b.skip and not b.file for b in found)
]


#: Pages that are alike: each trains, evaluates and copies one algorithm. Others have code of their
#: own for one thing that the reader writes.
ALIKE = [n for n in RUNNING if n.startswith("docs/algorithms/") and "/custom_" not in n]


@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(n, marks=pytest.mark.integration) for n in RUNNING if n not in ALIKE),
        *kills.sampled(ALIKE, 5),
    ],
)
def test_every_block_of_a_page_runs(name, tmp_path):
    blocks.run_page(NAMES[name].read_text("utf-8"), tmp_path)


def test_only_the_two_install_lines_of_the_readme_are_skipped():
    skipped = [(name, b) for name, found in blocks_by_page().items() for b in found if b.skip]
    assert [name for name, _ in skipped] == ["README.md"] * SKIPPED
    assert all("pip install" in b.text and len(b.text.splitlines()) == 1 for _, b in skipped)


def test_every_block_is_run_written_to_a_file_or_output():
    strange = [
        f"{name}:{b.line} ({b.language or 'no language'})"
        for name, found in blocks_by_page().items()
        for b in found
        if b.language not in blocks.RUN | blocks.SHOWN_ONLY and not b.file and not b.skip
    ]
    assert strange == []


def test_a_page_with_a_failing_block_fails(tmp_path):
    page = "text\n\n```bash\ntrue\n```\n\n```bash\nfalse\ntrue\n```\n"
    with pytest.raises(AssertionError, match="line 7"):
        blocks.run_page(page, tmp_path, forked=False)


def test_output_that_is_not_printed_fails(tmp_path):
    page = "```bash\necho one; echo two\n```\n\n```text\n{}\n```\n"
    blocks.run_page(page.format("two"), tmp_path, forked=False)
    with pytest.raises(AssertionError, match="line 5: not printed: .'three'"):
        blocks.run_page(page.format("three"), tmp_path, forked=False)


def test_blocks_share_a_folder_and_files_are_written_first(tmp_path):
    page = (
        "<!-- file: a.txt -->\n```ini\nx = 1\n```\n\n```bash\ncp a.txt b.txt\n```\n\n"
        "```python\nassert open('b.txt').read() == 'x = 1\\n'\n```\n\n"
        "<!-- skip: never -->\n```bash\nfalse\n```\n\nSo:\n\n```text\nfalse\n```\n"
    )
    blocks.run_page(page, tmp_path, forked=False)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.txt", "b.txt"]


@pytest.fixture
def generate(monkeypatch):
    """The program that writes the reference, as in an environment without other packages."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    monkeypatch.setenv("PLUGRL_PLUGINS", "")
    monkeypatch.delitem(sys.modules, "generate", raising=False)
    yield importlib.import_module("generate")
    sys.modules.pop("generate")


# Its 137 keys are tried one by one; ``test_guide_keys`` tries some of them.
LONG = pytest.param("guides.md", marks=pytest.mark.integration)


@pytest.mark.parametrize("page", ["hooks.md", "cli.md", "api.md", "sections.md", LONG])
def test_a_generated_page_is_up_to_date(generate, page):
    expected = f"{generate.BUILDERS[page]().strip()}\n"
    assert (ROOT / "docs" / "reference" / page).read_text("utf-8") == expected


def test_every_page_of_the_reference_is_generated_and_compared(generate):
    pages = {page.name for page in (ROOT / "docs" / "reference").iterdir()}
    assert set(generate.BUILDERS) == pages
    assert {"hooks.md", "cli.md", "api.md", "sections.md", "guides.md"} == pages


def test_a_changed_page_is_out_of_date(generate, monkeypatch, tmp_path, capsys):
    reference = tmp_path / "reference"
    shutil.copytree(ROOT / "docs" / "reference", reference)
    page = reference / "hooks.md"
    right = page.read_text("utf-8")
    page.write_text(right.replace("## plugrl_run_end", "## gone"), "utf-8")
    monkeypatch.setattr(generate, "PAGES", reference)
    fast = {name: generate.BUILDERS[name] for name in ("hooks.md", "sections.md")}
    monkeypatch.setattr(generate, "BUILDERS", fast)
    monkeypatch.setattr(sys, "argv", ["generate.py", "--check"])
    assert generate.main() == 1
    assert capsys.readouterr().err == "out of date: hooks.md; run python docs/generate.py\n"
    assert page.read_text("utf-8") != right
    monkeypatch.setattr(sys, "argv", ["generate.py"])
    assert generate.main() == 0
    assert page.read_text("utf-8") == right


@pytest.mark.integration
def test_the_program_compares_all_pages():
    words = [str(ROOT / "docs" / "generate.py"), "--check"]
    forking.run(words, env={**os.environ, "PLUGRL_IMPORTS": ""}, check=True)


def missing_hooks(page: str) -> list[str]:
    from plugrl.core.plugins import hookspecs

    hooks = [name for name in vars(hookspecs) if name.startswith("plugrl_")]
    assert len(hooks) >= 9
    return [name for name in hooks if f"\n## {name}\n" not in page]


def missing_commands(page: str) -> list[str]:
    from plugrl.cli import COMMANDS

    assert len(COMMANDS) >= 9
    return [row.name for row in COMMANDS if f"\n## plugrl {row.name}\n" not in page]


def test_the_reference_has_every_hook_and_every_command():
    reference = ROOT / "docs" / "reference"
    assert missing_hooks((reference / "hooks.md").read_text("utf-8")) == []
    assert missing_commands((reference / "cli.md").read_text("utf-8")) == []


def test_a_hook_or_command_that_is_not_in_the_reference_is_noticed():
    reference = ROOT / "docs" / "reference"
    hooks = (reference / "hooks.md").read_text("utf-8").replace("## plugrl_step_end\n", "")
    assert missing_hooks(hooks) == ["plugrl_step_end"]
    commands = (reference / "cli.md").read_text("utf-8").replace("## plugrl resume\n", "")
    assert missing_commands(commands) == ["resume"]


def test_the_reference_has_every_public_name_and_section():
    import plugrl
    from plugrl.core.config.schemas.sections import COMMON, TEXT

    api = (ROOT / "docs" / "reference" / "api.md").read_text("utf-8")
    sections = (ROOT / "docs" / "reference" / "sections.md").read_text("utf-8")
    assert [name for name in plugrl.__all__ if f"\n## `{name}`\n" not in api] == []
    assert [name for name in [*COMMON, *TEXT] if f"\n### {name}\n" not in sections] == []


_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The places of a page that a link can name."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    found: set[str] = set()
    for heading in _HEADING.findall(text):
        unique(slugify(heading.replace("`", ""), "-"), found)
    return found


def broken_links(page: Path) -> list[str]:
    """Links of a page to files or headings that are not there."""
    links = _LINK.findall(_CODE.sub("", page.read_text("utf-8")))
    broken = []
    for link in links:
        if "://" in link or link.startswith("mailto:"):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("name", NAMES)
def test_every_link_leads_somewhere(name):
    assert broken_links(NAMES[name]) == []


def test_links_that_lead_nowhere_are_found(tmp_path):
    (tmp_path / "there.md").write_text("# A `b` c\n\n## Twice\n\n## Twice\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Own\n[a](gone.md) [b](there.md) [c](there.md#a-b-c) [d](there.md#gone) [e](#own)\n"
        "[f](there.md#twice_1) [g](#gone) `[h](gone)` [i](https://example.org/gone)\n"
    )
    assert broken_links(page) == ["gone.md", "there.md#gone", "#gone"]


@pytest.mark.integration
def test_the_site_builds_and_a_broken_link_is_its_only_warning(tmp_path):
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    index = tmp_path / "docs" / "index.md"
    index.write_text(index.read_text("utf-8") + "\n[gone](gone.md)\n", encoding="utf-8")
    words = ["-m", "mkdocs", "build", "--strict", "-d", str(tmp_path / "site")]
    done = forking.run(words, cwd=tmp_path)
    assert done.returncode == 1
    warnings = [line for line in done.stderr.splitlines() if line.startswith("WARNING")]
    assert len(warnings) == 1, done.stderr
    assert "gone.md" in warnings[0]
    assert (tmp_path / "site" / "tutorial" / "index.html").is_file()
    assert not list((tmp_path / "site").rglob("*.py"))
