"""What is built from the repository: a wheel with everything in it, and metadata in one place."""

from __future__ import annotations

import configparser
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
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
    # transformers requires tokenizers and decides which versions of it fit.
    names = {need.name.lower() for need in declared} | {"plugrl", "tokenizers"}
    assert {name for name in imported_distributions() if name.lower() not in names} == set()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> zipfile.ZipFile:
    """The wheel, built from a copy so that no build folder is left in the repository."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    script = (
        "import shutil, sys; shutil.copytree(sys.argv[1], sys.argv[2], dirs_exist_ok=True, "
        "ignore=shutil.ignore_patterns('.*', 'runs', 'build', '*.egg-info', '__pycache__'))"
    )
    subprocess.run([sys.executable, "-c", script, str(ROOT), str(source)], check=True)
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
