"""What is built from the repository: a wheel with everything in it, and metadata in one place."""

from __future__ import annotations

import configparser
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

import plugrl

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def setup_cfg() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(delimiters=("=",))
    parser.optionxform = str
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


def requirements(text: str) -> list[Requirement]:
    return [Requirement(line) for line in text.strip().splitlines()]


def test_pyproject_holds_only_the_build_system_and_tools():
    data = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert set(data) == {"build-system", "tool"}
    assert not {"setuptools", "poetry", "hatch", "flit", "pdm"} & set(data["tool"])
    assert not (ROOT / "setup.py").exists()


def test_metadata(setup_cfg):
    metadata = setup_cfg["metadata"]
    assert metadata["name"] == "plugrl"
    assert metadata["license"] == "Apache-2.0"
    assert setup_cfg["options"]["python_requires"] == ">=3.11,<3.14"
    for minor in (11, 12, 13):
        assert f"Programming Language :: Python :: 3.{minor}" in metadata["classifiers"]
    assert importlib.metadata.version("plugrl") == plugrl.__version__
    assert f"{(ROOT / 'LICENSE').read_text(encoding='utf-8')}".lstrip().startswith("Apache License")


def test_constraints_pin_what_is_installed_directly(setup_cfg):
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = {Requirement(line).name: Requirement(line) for line in lines if line and line[0] != "#"}
    assert str(pins["torch"].specifier) == "==2.13.0"
    wanted = requirements(setup_cfg["options"]["install_requires"])
    wanted += requirements(setup_cfg["options.extras_require"]["test"])
    assert sorted({need.name for need in wanted} - set(pins)) == []
    for need in wanted:
        (pin,) = pins[need.name].specifier
        assert pin.operator == "=="
        assert need.specifier.contains(pin.version), f"{need} excludes the tested {pin.version}"


def test_every_hard_dependency_has_its_reason(setup_cfg):
    expected = (
        "torch tensordict torchrl transformers pluggy omegaconf typer rich safetensors pyarrow"
    )
    names = {need.name for need in requirements(setup_cfg["options"]["install_requires"])}
    page = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    for name in names - set(expected.split()):
        assert re.search(rf"^\| `{name}` \| \S", page, re.MULTILINE), name


def test_continuous_integration_runs_the_test_command_of_the_readme(tmp_path):
    """Run ``.ci/run`` beside a README whose test command only says that it was called."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (line,) = (line for line in readme.splitlines() if ".[test]" in line)
    (tmp_path / "README.md").write_text(
        readme.replace(line, "echo '.[test]' $OMP_NUM_THREADS; exit 7")
    )
    done = subprocess.run([tmp_path / ".ci" / "run"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (7, ".[test] 1\n")


def test_the_citation_and_the_changelog_are_about_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert (citation["version"], citation["license"]) == (plugrl.__version__, "Apache-2.0")
    titles = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    released = [title for title in titles if title != "Unreleased"]
    assert released[0] == f"{plugrl.__version__} ({citation['date-released']})"
    newest = plugrl.__version__.rpartition(".")[0]
    assert f"newest minor version, which is {newest}." in (ROOT / "SECURITY.md").read_text("utf-8")
    assert f"plugrl is version {newest}." in (ROOT / "README.md").read_text("utf-8")


def test_hosted_workflows_run_what_the_repository_says(setup_cfg):
    """Each supported Python runs the command of ``.ci/run``; programs that are called are there."""
    jobs = {}
    for file in (ROOT / ".github" / "workflows").glob("*.yml"):
        jobs |= yaml.safe_load(file.read_text("utf-8"))["jobs"]
    supported = re.findall(r":: (3\.\d+)$", setup_cfg["metadata"]["classifiers"], re.MULTILINE)
    for name in ("test", "package"):
        assert jobs[name]["strategy"]["matrix"]["python"] == supported
    lines = {name: [s["run"] for s in job["steps"] if "run" in s] for name, job in jobs.items()}
    assert ".ci/run" in lines["test"]
    text = "\n".join(line for part in lines.values() for line in part)
    for program in re.findall(r"(?:^|python )((?:\.ci|docs)/\S+)", text, re.MULTILINE):
        assert (ROOT / program).is_file(), program
    extras = re.findall(r'"\.\[(\w+)\]"', text)
    assert extras
    assert set(extras) <= set(setup_cfg["options.extras_require"])


def imported_distributions() -> set[str]:
    modules = set()
    for file in (ROOT / "plugrl").rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        modules |= set(re.findall(r"^\s*(?:import|from) ([a-zA-Z]\w*)", text, re.MULTILINE))
    providers = importlib.metadata.packages_distributions()
    return {providers[m][0] for m in modules - set(sys.stdlib_module_names) if m in providers}


def test_everything_that_is_imported_is_declared(setup_cfg):
    declared = requirements(setup_cfg["options"]["install_requires"])
    for extra, text in setup_cfg["options.extras_require"].items():
        declared += requirements(text) if extra != "dev" else []
    # transformers requires tokenizers and decides which versions of it fit; torch brings triton
    # where it is built for GPUs.
    names = {need.name.lower() for need in declared} | {"plugrl", "tokenizers", "triton"}
    assert {name for name in imported_distributions() if name.lower() not in names} == set()


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """A copy of the repository, so that no build folder is left in it."""
    copy = tmp_path_factory.mktemp("source")
    script = (
        "import shutil, sys; shutil.copytree(sys.argv[1], sys.argv[2], dirs_exist_ok=True, "
        "ignore=shutil.ignore_patterns('.*', 'runs', 'build', '*.egg-info', '__pycache__'))"
    )
    subprocess.run([sys.executable, "-c", script, str(ROOT), str(copy)], check=True)
    return copy


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory) -> zipfile.ZipFile:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "-w", str(out), str(source)], check=True)
    (built,) = out.glob("*.whl")
    return zipfile.ZipFile(built)


@pytest.mark.integration
def test_wheel_holds_the_package_and_its_data(wheel):
    names = set(wheel.namelist())
    package = ROOT / "plugrl"
    wanted = {
        file.relative_to(ROOT).as_posix()
        for pattern in ("*.py", "*.yaml", "*.parquet", "py.typed")
        for file in package.rglob(pattern)
    }
    parts = {"quickstart.yaml", "common/adder.yaml", "math_parquet/train.parquet"}
    assert {"plugrl/py.typed", *(f"plugrl/recipes/{part}" for part in parts)} <= wanted
    assert wanted - names == set()
    assert {name.partition("/")[0] for name in names} == {
        "plugrl",
        f"plugrl-{plugrl.__version__}.dist-info",
    }


@pytest.mark.integration
def test_wheel_declares_every_entry_point(wheel, setup_cfg):
    info = f"plugrl-{plugrl.__version__}.dist-info"
    built = configparser.ConfigParser(delimiters=("=",))
    built.optionxform = str
    built.read_string(wheel.read(f"{info}/entry_points.txt").decode())
    written = {
        group: dict(line.split(" = ") for line in text.strip().splitlines())
        for group, text in setup_cfg["options.entry_points"].items()
    }
    assert {group: dict(built[group]) for group in built.sections()} == written
    metadata = wheel.read(f"{info}/METADATA").decode()
    assert "License-Expression: Apache-2.0" in metadata or "License: Apache-2.0" in metadata


@pytest.mark.integration
def test_nothing_stray_is_in_the_wheel(wheel):
    """Every file is one of the package, and none is of tests, caches or an editor."""
    tracked = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "plugrl"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if tracked.returncode != 0:
        pytest.skip("not in a clone")
    files = {name for name in wheel.namelist() if name.startswith("plugrl/")}
    assert files - set(tracked.stdout.splitlines()) == set()


@pytest.mark.integration
def test_the_source_archive_builds_the_wheel(source, wheel, tmp_path):
    """It has what the repository says of the version, and no tests without what they need."""
    script = "import setuptools.build_meta as b, sys; print(b.build_sdist(sys.argv[1]))"
    command = [sys.executable, "-c", script, str(tmp_path)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path, filter="data")
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    top = {"plugrl", "plugrl.egg-info", "setup.cfg", "pyproject.toml", "PKG-INFO", "MANIFEST.in"}
    texts = {"README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "SECURITY.md"}
    assert {path.name for path in folder.iterdir()} == top | texts | {"constraints.txt"}
    packed = {name for name in wheel.namelist() if name.startswith("plugrl/")}
    assert {name for name in packed if not (folder / name).is_file()} == set()
    out = tmp_path / "wheel"
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "-w", str(out), str(folder)], check=True)
    (built,) = out.glob("*.whl")
    assert set(zipfile.ZipFile(built).namelist()) == set(wheel.namelist())
