"""Batch scripts of launched jobs, run by bash with stand-ins for the commands of SLURM."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from launched import write_project
from waiting import wait_until

from plugrl.__about__ import __version__
from plugrl.core.config.schemas.resource import MachineConfig, ResourceConfig, WorkersConfig
from plugrl.core.errors import ConfigError, UsageError
from plugrl.core.launch.launcher import LaunchJob, find_launcher

WORDS = ("train", "mini.yaml", 'project_name=a\'b "c" $(touch broken) `id`\n#SBATCH --uid=0 ä')
RESOURCE = ResourceConfig(
    training=MachineConfig(cpu_count=2, memory_gb=4),
    rollout=WorkersConfig(cpu_count=3, gpu_count=1, memory_gb=0.5, replicas=2),
    partition="gpu",
    account="lab-1",
    time_limit="1-00:00:00",
)
#: srun without its options: the words from the first that is none.
SRUN = """\
#!/bin/bash
echo "srun $*" >> "$KEPT/calls"
while [ "${1#--}" != "$1" ]; do shift; done
exec "$@"
"""
SCONTROL = '#!/bin/bash\necho "scontrol $*" >> "$KEPT/calls"\nprintf "%s\\n" $NODES\n'
#: Ray that is up until it is ended.
RAY = '#!/bin/bash\necho "ray $*" >> "$KEPT/calls"\nexec sleep 600\n'
#: Python: Ray is there at once; plugrl says what it got, and waits for its signal if asked to.
PYTHON = f"""\
#!/bin/bash
[ "$1" = -c ] && exit 0
{sys.executable} -c 'import json, os, sys
keys = ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "PLAIN")
print(json.dumps([sys.argv[1:], os.getcwd(), {{k: os.environ.get(k) for k in keys}}]))' "$@" \
 > "$KEPT/run.part"
# Before its test sees that it runs, and sends the signal.
[ -z "$WAIT" ] || trap 'sleep 0.2; echo saved > "$KEPT/saved"; exit 143' TERM
mv "$KEPT/run.part" "$KEPT/run"
while [ -n "$WAIT" ]; do sleep 0.05; done
exit "${{CODE:-0}}"
"""


@pytest.fixture
def job(tmp_path):
    folder = tmp_path / "it's a project"
    write_project(folder)
    return LaunchJob(
        name="mini-t",
        words=WORDS,
        folder=folder,
        resource=RESOURCE,
        variables={"PLAIN": "a 'b' $c\n"},
        packages={"plugrl": __version__},
    )


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A folder of stand-ins, and the environment of a batch script."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (
        ("srun", SRUN),
        ("scontrol", SCONTROL),
        ("ray", RAY),
        ("python", PYTHON),
    ):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(programs / "python"))
    return {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "KEPT": str(tmp_path),
        "NODES": "n1 n2 n3",
        "SLURM_JOB_NODELIST": "n[1-3]",
        "SLURM_JOB_ID": "41",
    }


def run(job, environment, **more):
    text = find_launcher("slurm").preview(job)
    return subprocess.Popen(
        ["bash"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**environment, **more},
        text=True,
    ), text


def test_the_options_by_hand(job):
    lines = find_launcher("slurm").preview(job).splitlines()
    assert lines[0] == "#!/bin/bash"
    # Of all machines the largest of each, since the options are for every node.
    assert [line for line in lines if line.startswith("#SBATCH")] == [
        "#SBATCH --job-name=mini-t",
        "#SBATCH --output=mini-t-%j.log",
        "#SBATCH --nodes=3",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --cpus-per-task=3",
        "#SBATCH --mem=4096M",
        "#SBATCH --signal=B:TERM@300",
        "#SBATCH --gpus-per-node=1",
        "#SBATCH --time=1-00:00:00",
        "#SBATCH --partition=gpu",
        "#SBATCH --account=lab-1",
    ]


def test_bash_reads_it(job):
    text = find_launcher("slurm").preview(job)
    ran = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_ray_starts_on_every_node_and_then_the_run(job, cluster, tmp_path):
    process, text = run(job, cluster)
    out, err = process.communicate(text)
    assert process.returncode == 0, err
    words, folder, variables = json.loads((tmp_path / "run").read_text())
    assert words == ["-m", "plugrl", *WORDS, 'settings.runs_folder="runs"']
    assert folder == str(job.folder)
    assert not (job.folder / "broken").exists()
    assert variables["PLAIN"] == "a 'b' $c\n"
    address = variables["RAY_ADDRESS"]
    assert address.endswith(":20041")
    assert variables["RAY_AUTH_MODE"] == "token"
    assert len(variables["RAY_AUTH_TOKEN"]) == 64
    calls = (tmp_path / "calls").read_text().splitlines()
    assert "scontrol show hostnames n[1-3]" in calls
    started = sorted(line for line in calls if line.startswith("ray"))
    # Which Ray of a process that waits for its node may not be written yet when the run ends.
    nodes = [
        line.split("--nodelist=")[1].split()[0]
        for line in calls
        if "ray start" in line and line.startswith("srun")
    ]
    assert sorted(nodes) == ["n1", "n2", "n3"]
    assert any(line.startswith("ray start --head") and "--port=20041" in line for line in started)
    assert all("--num-cpus=3 --num-gpus=1" in line for line in started)


def test_the_exit_code_is_that_of_the_run(job, cluster):
    process, text = run(job, cluster, CODE="3")
    process.communicate(text)
    assert process.returncode == 3


def test_a_signal_reaches_the_run_which_is_waited_for(job, cluster, tmp_path):
    process, text = run(job, cluster, WAIT="1")
    process.stdin.write(text)
    process.stdin.close()
    wait_until((tmp_path / "run").exists, process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    assert (tmp_path / "saved").read_text() == "saved\n"
    process.stdout.close()
    process.stderr.close()


def test_a_ray_that_does_not_start_ends_the_job(job, cluster, tmp_path):
    (tmp_path / "bin" / "ray").write_text("#!/bin/bash\nexit 1\n")
    (tmp_path / "bin" / "python").write_text("#!/bin/bash\nexit 1\n")
    process, text = run(job, cluster)
    _, err = process.communicate(text)
    assert process.returncode == 1
    assert "error: Ray did not start on all of n1 n2 n3" in err


def test_a_credential_stands_nowhere_and_is_asked_for(job, cluster, monkeypatch):
    monkeypatch.setenv("MY_API_KEY", "sk-0123456789abcdef0123")
    with_secret = replace(job, secrets=("MY_API_KEY",))
    process, text = run(with_secret, cluster)
    assert "sk-0123" not in text
    _, err = process.communicate(text)
    assert process.returncode != 0
    assert "MY_API_KEY: set it where the job is launched" in err


def test_a_null_character_is_refused(job):
    with pytest.raises(ConfigError, match="null character"):
        find_launcher("slurm").preview(replace(job, words=("train", "a\0b")))


SACCT = """\
#!/bin/bash
case "$*" in
  *"-j 7 "*) echo "7|RUNNING|mini-t";;
  *"-j "*) ;;
  *) printf '6|CANCELLED by 0|old\\n7|RUNNING|mini-t\\n8|TIMEOUT|x\\n';;
esac
"""


def test_jobs_are_submitted_listed_and_stopped(job, tmp_path, monkeypatch):
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (
        ("sbatch", '#!/bin/bash\ncat > "$KEPT/given"\necho "7;cluster"\n'),
        ("sacct", SACCT),
        ("scancel", '#!/bin/bash\necho "$@" > "$KEPT/cancelled"\n'),
    ):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("KEPT", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    launcher = find_launcher("slurm")
    assert launcher.start(job) == "7"
    assert (tmp_path / "given").read_text() == launcher.preview(job)
    assert [(j.name, j.state) for j in launcher.jobs()] == [
        ("8", "failed"),
        ("7", "running"),
        ("6", "stopped"),
    ]
    Path("mini-t-7.log").write_text("step 1\n", encoding="utf-8")
    assert "".join(launcher.logs("7", follow=False)) == "step 1\n"
    launcher.stop("7")
    assert (tmp_path / "cancelled").read_text() == "--batch --signal=TERM 7\n"
    with pytest.raises(UsageError, match="no job '9'"):
        launcher.status("9")
    with pytest.raises(UsageError, match="no number of a job"):
        launcher.stop("--all")


def test_without_slurm_the_dry_run_is_named(job, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match="no sbatch on the PATH.*--dry-run"):
        find_launcher("slurm").start(job)


@pytest.mark.slow
def test_ray_itself_is_started_and_trains(tmp_path):
    """The commands of SLURM are stand-ins; Ray, Python and plugrl are the real ones."""
    pytest.importorskip("ray")
    folder = tmp_path / "project"
    write_project(folder)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    with socket.socket() as free:
        free.bind(("", 0))
        job_id = free.getsockname()[1] % 10000
    job = LaunchJob(
        name="mini-t",
        words=("train", "mini.yaml", "trainer.total_train_steps=2"),
        folder=folder,
        resource=ResourceConfig(training=MachineConfig(cpu_count=1, memory_gb=1)),
        packages={"plugrl": __version__},
    )
    environment = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "KEPT": str(tmp_path),
        "NODES": socket.gethostname(),
        "SLURM_JOB_NODELIST": socket.gethostname(),
        "SLURM_JOB_ID": str(job_id),
        "RAY_TMPDIR": "/tmp",
        "RAY_raylet_start_wait_time_s": "240",
    }
    process, text = run(job, environment)
    out, err = process.communicate(text, timeout=300)
    assert process.returncode == 0, err
    assert "mini: done, 2 steps" in out + err
    assert list((folder / "runs" / "mini").glob("*/metrics.jsonl"))
