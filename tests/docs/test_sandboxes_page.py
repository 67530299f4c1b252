"""What the page about sandboxes says of kernels and containers, line by line."""

import importlib.util
import platform
import re
import subprocess
import sys
from pathlib import Path

import hostile
import pytest

from plugrl.core.sandbox.box import Box
from plugrl.core.sandbox.inside.system_calls import call_numbers
from plugrl.core.sandbox.jobs import ProgramLimits
from plugrl.core.sandboxes import Programs

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "sandboxes.md").read_text("utf-8")
LIMITS = ProgramLimits(seconds=2, wall_seconds=60, file_kb=64, files=8)
OUTSIDE = "import os\nfor f in (lambda: os.chmod(os.__file__, 0o777), lambda: os.utime('/usr')):\n"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the page is about Linux")


def table(head):
    """The rows of the table that begins with a cell."""
    rows = PAGE.partition(f"| {head} |")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


#: By the first cell of a line: a program, and what it prints where the line holds.
HOLDS = {
    "no call but those of the list": ("import os\ntry: os.fork()\nexcept OSError: print(1)", "1"),
    "no file but Python's and its own": (
        "try: open('/etc/passwd')\nexcept OSError: print(1)", "1"
    ),
    "refused calls are named, threads are counted": (
        "import threading\nthreading.stack_size(32768)\ne = threading.Event()\n"
        "made = 0\ntry:\n while made < 999:\n"
        "  threading.Thread(target=e.wait, daemon=True).start(); made += 1\n"
        "except RuntimeError: print(made)", "256"
    ),
    "modes, times and attributes of others' files stay": (
        f"{OUTSIDE} try: f()\n except OSError: print(1)", "1\n1"
    ),
    "files of others cannot be emptied by path": (
        "import os\ntry: os.truncate(os.__file__, 0)\nexcept OSError: print(1)", "1"
    ),
    "a root, processes and a network of its own": (
        "import os\nprint(os.getcwd(), os.path.exists('/proc'), os.path.exists('/home'))",
        "/box False False"
    ),
    "bytes and inodes are counted, and vanish": (
        "import os\nmade = 0\ntry:\n while True: os.mkdir(str(made)); made += 1\n"
        "except OSError as e: print(e.strerror); [os.rmdir(str(n)) for n in range(made)]",
        "No space left on device"
    ),
    "what it reads stays as it is": (
        "import os\ntry: os.write(0, b'x')\nexcept OSError: print(1)", "1"
    ),
    "no signal to others": (
        "import os\ntry: os.kill(os.getppid(), 0)\nexcept OSError: print(1)", "1"
    ),
}  # fmt: skip
NEEDS_ROOT = {
    "a root, processes and a network of its own",
    "bytes and inodes are counted, and vanish",
}


def version(text):
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


@pytest.mark.parametrize("row", table("What holds"), ids=lambda row: row[0])
def test_each_line_holds_from_its_kernel_on(row):
    name, _, since, _ = row
    if version(platform.release()) < max(version(part) for part in since.split(",")):
        pytest.skip(f"this kernel is older than {since}")
    box = Box(LIMITS)
    if len(box.kernel_protections()) < 2 or (name in NEEDS_ROOT and not box.has_own_root()):
        pytest.skip("what the line is about is not allowed here")
    program, printed = HOLDS[name]
    outcome = box.script(program)
    assert outcome.output == f"{printed}\n", outcome


def test_every_line_has_a_program():
    assert [row[0] for row in table("What holds")] == list(HOLDS)


#: Calls that each container's profile lacks, or fails; of a missing Landlock nothing is run.
CONTAINERS = {
    "Docker's": "unshare setns mount umount2 mount_setattr pidfd_getfd mbind get_mempolicy clone3",
    "an older": "unshare setns mount umount2 mount_setattr landlock_create_ruleset",
    "Kubernetes without": "",
    "Kubernetes, `RuntimeDefault`": "unshare setns mount umount2 mount_setattr pidfd_getfd clone3",
}
RUN = """
from plugrl.core.sandboxes import LocalSandbox
from plugrl.core.sandbox.box import Box
print(bool(LocalSandbox().fault()), Box().has_own_root())
"""


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=row[0][:20], marks=pytest.mark.integration if later else [])
        for later, row in enumerate(table("Container"))
    ],
)
def test_each_container_allows_what_its_line_says(row):
    (lacks,) = (calls for start, calls in CONTAINERS.items() if row[0].startswith(start))
    here = Box()
    if len(here.kernel_protections()) < 2 or not here.has_own_root():
        pytest.skip("a part of this is not allowed here")
    names = [name for name in lacks.split() if name in call_numbers()]
    support = Path(hostile.__file__).with_name("lacking.py")
    command = [sys.executable, str(support), *names, "--", sys.executable, "-c", RUN]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    refused, own_root = "refuses" in row[1], not lacks
    assert done.stdout == f"{refused} {own_root}\n"


#: In the place of Docker: mounts nothing, and runs the command of the container.
STAND_IN = """#!/bin/sh
test "$1 $2 $3 $4" = "run --rm --interactive --network=none" || exit 9
case $5 in --volume=*:ro) ;; *) exit 9 ;; esac
test "$6 $7" = "python:3.11-slim python" || exit 9
shift 7
exec {python} "$@"
"""


def test_the_container_runs_what_it_is_given(tmp_path, registry):
    page = (ROOT / "docs" / "custom-sandboxes.md").read_text("utf-8")
    text = page.partition("<!-- file: container.py -->\n```python\n")[2].partition("```")[0]
    file = tmp_path / "container.py"
    file.write_text(text, "utf-8")
    spec = importlib.util.spec_from_file_location("container_of_the_page", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    program = tmp_path / "docker"
    program.write_text(STAND_IN.replace("{python}", sys.executable), "utf-8")
    program.chmod(0o755)
    sandbox = module.ContainerSandbox({"program": str(program)})
    outcome = Programs(sandbox, LIMITS).script("print(int(input()) + 1)", "41")
    assert outcome.output == "42\n", outcome
