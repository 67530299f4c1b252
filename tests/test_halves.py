"""Each half of plugrl runs where the packages of the other are not installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import kills
import pytest
from waiting import DEADLINE

from plugrl.core.plugins.packages.requirements import missing_package

ROOT = Path(__file__).parents[1]
TEXT = {"transformers", "tokenizers", "huggingface_hub", "datasets", "pyarrow", "peft"}
CONTROL = {"torchrl", "tensordict", "gymnasium", "pettingzoo", "mpe2"}


def installed_without(packages: set[str], folder: Path) -> Path:
    """A folder of links to what is installed here but for some packages."""
    folder.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        name = re.split(r"[-.]", entry.name.lower())[0]
        if name not in packages and entry.suffix != ".pth" and name != "__editable__":
            (folder / entry.name).symlink_to(entry)
    return folder


def plugrl_without(
    packages: set[str], folder: Path, *words: str
) -> subprocess.CompletedProcess[str]:
    site = installed_without(packages, folder / "site")
    paths = os.pathsep.join([str(ROOT), str(site)])
    return subprocess.run(
        [sys.executable, "-S", "-m", "plugrl", *words],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )


@pytest.mark.parametrize(
    "recipe",
    kills.tiers(["cartpole_ppo"], ["cartpole_ppo", "cartpole_dqn", "two_cartpoles_ppo"]),
)
def test_small_networks_train_without_transformers(recipe: str, tmp_path: Path) -> None:
    words = ["rl.num_iterations=1", "validate.episodes=1"]
    done = plugrl_without(TEXT, tmp_path, "train", recipe, *words)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("recipe", kills.tiers(["quickstart"], ["quickstart", "math_parquet"]))
def test_language_models_train_without_torchrl_and_gymnasium(recipe: str, tmp_path: Path) -> None:
    if recipe == "math_parquet":
        pytest.importorskip("math_verify")
    words = [f"trainer.phases.{phase}.trainer.total_train_steps=1" for phase in (0, 1)]
    done = plugrl_without(CONTROL, tmp_path, "train", recipe, *words)
    assert done.returncode == 0, done.stderr


@pytest.mark.integration
@pytest.mark.parametrize(
    ("packages", "recipe", "extra"),
    [(TEXT, "quickstart", "text"), (CONTROL, "cartpole_ppo", "control")],
)
def test_what_is_missing_is_named_with_its_extra(
    packages: set[str], recipe: str, extra: str, tmp_path: Path
) -> None:
    done = plugrl_without(packages, tmp_path, "validate", recipe)
    assert done.returncode in (2, 3)
    (line,) = done.stderr.splitlines()
    assert f'which is not installed; run: pip install "plugrl[{extra}]"' in line


def test_a_missing_package_is_named_as_its_distribution_asks_for_it() -> None:
    def of(name: str, distribution: str | None = "plugrl") -> str | None:
        said = missing_package(distribution, ModuleNotFoundError("no", name=name))
        return said and said.removeprefix(f"needs {name}, which is not installed; run: pip ")

    assert of("transformers.models") == 'install "plugrl[text]"'
    assert of("gymnasium") == 'install "plugrl[control]"'
    assert of("peft") == 'install "plugrl[lora]"'
    assert of("reasoning_gym") == 'install "plugrl[reasoning-gym]"'
    assert of("omegaconf") == 'install "omegaconf"'
    assert of("nowhere") is None
    assert of("transformers", None) is None
    assert of("transformers", "no-such-distribution") is None
    assert missing_package("plugrl", ImportError("no", name="transformers")) is None
