"""The documentation is complete, up to date, and does what it says."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location("doc_blocks", Path(__file__).with_name("blocks.py"))
blocks = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = blocks
_spec.loader.exec_module(blocks)

ROOT = blocks.ROOT
PLUGRL = str(Path(sys.executable).with_name("plugrl"))
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


@pytest.mark.integration
@pytest.mark.parametrize("name", RUNNING)
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
        blocks.run_page(page, tmp_path)


def test_output_that_is_not_printed_fails(tmp_path):
    page = "```bash\necho one; echo two\n```\n\n```text\n{}\n```\n"
    blocks.run_page(page.format("two"), tmp_path)
    with pytest.raises(AssertionError, match="line 5: not printed: .'three'"):
        blocks.run_page(page.format("three"), tmp_path)


def test_blocks_share_a_folder_and_files_are_written_first(tmp_path):
    page = (
        "<!-- file: a.txt -->\n```ini\nx = 1\n```\n\n```bash\ncp a.txt b.txt\n```\n\n"
        "```python\nassert open('b.txt').read() == 'x = 1\\n'\n```\n\n"
        "<!-- skip: never -->\n```bash\nfalse\n```\n\nSo:\n\n```text\nfalse\n```\n"
    )
    blocks.run_page(page, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.txt", "b.txt"]


def test_generated_pages_are_up_to_date():
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_changed_page_is_out_of_date(tmp_path):
    copy = tmp_path / "generate.py"
    copy.write_text((ROOT / "docs" / "generate.py").read_text("utf-8"), encoding="utf-8")
    shutil.copy(ROOT / "docs" / "guide_keys.py", tmp_path)
    reference = tmp_path / "reference"
    shutil.copytree(ROOT / "docs" / "reference", reference)
    page = reference / "hooks.md"
    page.write_text(page.read_text("utf-8").replace("## plugrl_run_end", "## gone"), "utf-8")
    command = [sys.executable, str(copy), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "hooks.md" in done.stderr
    assert "cli.md" not in done.stderr


def missing_hooks(page: str) -> list[str]:
    from plugrl.core import hookspecs

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
    from plugrl.core.config.sections import COMMON, TEXT

    api = (ROOT / "docs" / "reference" / "api.md").read_text("utf-8")
    sections = (ROOT / "docs" / "reference" / "sections.md").read_text("utf-8")
    assert [name for name in plugrl.__all__ if f"\n## `{name}`\n" not in api] == []
    assert [name for name in [*COMMON, *TEXT] if f"\n### {name}\n" not in sections] == []


def build_site(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(target)],
        cwd=source,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_site_builds_without_a_warning(tmp_path):
    done = build_site(ROOT, tmp_path / "site")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "tutorial" / "index.html").is_file()
    assert not list((tmp_path / "site").rglob("*.py"))


def test_a_broken_link_fails_the_build(tmp_path):
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    index = tmp_path / "docs" / "index.md"
    index.write_text(index.read_text("utf-8") + "\n[gone](gone.md)\n", encoding="utf-8")
    done = build_site(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    assert "gone.md" in done.stderr
