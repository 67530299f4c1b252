"""The contract of launchers.

Run it with ``--plugrl-launcher NAME``, or subclass :class:`LauncherContract` with an attribute
``plugrl_launcher``. A launcher gives as ``conformance``: ``config``, its section; ``resource``, the
section of the machines that it cannot do without; and ``starts``, whether it can start a job where
the tests run. If it can, the suite trains a tiny model with it, else it sends nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, get_args

import pytest
import yaml

from plugrl.core.config.schemas.resource import ResourceConfig
from plugrl.core.errors import ConfigError, UsageError
from plugrl.core.launch.launcher import JobState, Launcher, LaunchJob
from plugrl.testing import tiny
from plugrl.testing.contract import ComponentContract, needed

#: A name that no place has a job of.
_NOBODY = "no-such-job-anywhere"
#: Seconds in which a job that trains for two steps ends.
_PATIENCE = 300.0
_SECRET = ("PLUGRL_KIT_API_KEY", "kit-secret-0123456789")
_ANY_WORDS = ("a'b", 'a"b', "$(touch x) `id`", "a b\nc\td", "a\\b", "ä 漢", "---\n#SBATCH --x", "")


class LauncherContract(ComponentContract):
    """The tests; they need the attribute ``plugrl_launcher``."""

    kind = "launcher"
    defaults: ClassVar[Mapping[str, Any]] = {"resource": {}, "starts": None}

    @pytest.fixture
    def job(self, example: Mapping[str, Any], tmp_path: Path) -> LaunchJob:
        folder = tmp_path / "it's a folder"
        folder.mkdir()
        config = tiny.config("self_hosted_grpo", folder)
        config.setdefault("settings", {})["runs_folder"] = "runs"
        file = folder / "tiny.yaml"
        file.write_text(yaml.safe_dump(config), encoding="utf-8")
        return LaunchJob(
            name=f"kit-{time.time_ns()}",
            words=("train", "tiny.yaml"),
            folder=folder,
            files=(file,),
            resource=ResourceConfig.from_tree(example["resource"]),
        )

    def test_a_preview_is_the_same_again(
        self, make: Callable[[], Launcher], job: LaunchJob
    ) -> None:
        text = make().preview(job)
        assert text.strip()
        assert make().preview(job) == text

    def test_any_words_can_be_sent(self, make: Callable[[], Launcher], job: LaunchJob) -> None:
        texts = {
            make().preview(replace(job, words=("train", "tiny.yaml", f"project_name={word}")))
            for word in _ANY_WORDS
        }
        assert len(texts) == len(_ANY_WORDS), "different words are sent as the same"

    def test_a_credential_is_never_shown(
        self, make: Callable[[], Launcher], job: LaunchJob, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        name, value = _SECRET
        monkeypatch.setenv(name, value)
        assert value not in make().preview(replace(job, secrets=(name,)))

    def test_what_it_does_not_know_is_refused_in_one_line(
        self, make: Callable[[], Launcher]
    ) -> None:
        launcher = make()
        for ask in (
            lambda: launcher.status(_NOBODY),
            lambda: list(launcher.logs(_NOBODY, follow=False)),
            lambda: launcher.stop(_NOBODY),
        ):
            with pytest.raises((ConfigError, UsageError)) as caught:
                ask()
            assert "\n" not in str(caught.value)

    def test_a_job_trains_to_its_end(
        self, make: Callable[[], Launcher], job: LaunchJob, example: Mapping[str, Any]
    ) -> None:
        needed(example, "starts")
        launcher = make()
        name = launcher.start(job)
        printed = "".join(launcher.logs(name, follow=True))
        end = time.monotonic() + _PATIENCE
        while not (status := launcher.status(name)).ended and time.monotonic() < end:
            time.sleep(0.1)
        assert status.state in get_args(JobState)
        assert status.state == "succeeded", printed
        assert name in [job.name for job in launcher.jobs()]
        assert "2 steps" in printed

    def test_a_job_that_fails_says_so(
        self, make: Callable[[], Launcher], job: LaunchJob, example: Mapping[str, Any]
    ) -> None:
        needed(example, "starts")
        launcher = make()
        name = launcher.start(replace(job, words=("train", "no-such-file.yaml")))
        assert "no-such-file.yaml" in "".join(launcher.logs(name, follow=True))
        assert launcher.status(name).state == "failed"


class TestLauncher(LauncherContract):
    """The contract for every ``--plugrl-launcher``."""

    __test__ = True
