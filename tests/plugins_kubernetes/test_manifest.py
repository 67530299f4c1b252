"""Manifests of launched jobs: values worked by hand, KubeRay's schema, and refusals."""

from __future__ import annotations

import json
import os
import stat
import tarfile
from base64 import b64decode
from io import BytesIO

import jsonschema
import pytest
import yaml
from launched import FILES, write_project

from plugrl.core.config.schemas.resource import (
    InferenceMachinesConfig,
    MachineConfig,
    ResourceConfig,
    VolumeConfig,
    WorkersConfig,
)
from plugrl.core.errors import ConfigError, UsageError
from plugrl.core.launch.launcher import LaunchJob, find_launcher
from plugrl.plugins.kubernetes.launcher import SCHEMA, check_manifest
from plugrl.plugins.kubernetes.manifest import MOST_CHARACTERS, object_name

RESOURCE = ResourceConfig(
    image="registry/plugrl:1",
    queue="research",
    namespace="rl",
    training=MachineConfig(cpu_count=16, gpu_count=4, memory_gb=128),
    inference=InferenceMachinesConfig(cpu_count=8, gpu_count=2, memory_gb=0.5, replicas=3),
    volumes=[VolumeConfig("claim/sets", "/sets", True), VolumeConfig("host/mnt/x", "/out")],
    secrets={"WANDB_API_KEY": "wandb/api-key"},
)


@pytest.fixture
def job(tmp_path):
    write_project(tmp_path)
    return LaunchJob(
        name="Mini-T1",
        words=("train", "mini.yaml", "project_name=a\n---\n\"b\" 'c' {{d}} ${e}"),
        folder=tmp_path,
        files=tuple(tmp_path / name for name in FILES),
        resource=RESOURCE,
        variables={"PLAIN": "on: 'x'\n- \"y\""},
        secrets=("MY_API_KEY",),
        packages={"plugrl": "1"},
    )


def changed(job, **resource):
    return replaced(job, resource=replaced(job.resource, **resource))


def replaced(item, **changes):
    from dataclasses import replace

    return replace(item, **changes)


def sent(job):
    config_map, ray_job = yaml.safe_load_all(find_launcher("kubernetes").preview(job))
    return config_map, ray_job


def test_the_manifest_by_hand(job):
    config_map, ray_job = sent(job)
    labels = {
        "app.kubernetes.io/managed-by": "plugrl",
        "app.kubernetes.io/instance": "mini-t1",
    }
    assert config_map["metadata"] == {
        "name": "mini-t1-files",
        "namespace": "rl",
        "labels": labels,
    }
    # As Ray's page on Volcano has them.
    scheduled = {"ray.io/scheduler-name": "volcano", "volcano.sh/queue-name": "research"}
    assert ray_job["apiVersion"] == "ray.io/v1"
    assert ray_job["metadata"] == {
        "name": "mini-t1",
        "namespace": "rl",
        "labels": labels | scheduled,
    }
    assert ray_job["spec"]["entrypoint"] == "python /etc/plugrl/job/launch.py"
    cluster = ray_job["spec"]["rayClusterSpec"]
    (head,) = cluster["headGroupSpec"]["template"]["spec"]["containers"]
    assert head["image"] == "registry/plugrl:1"
    wanted = {"cpu": "16", "memory": "131072Mi", "nvidia.com/gpu": "4"}
    assert head["resources"] == {"limits": wanted, "requests": wanted}
    assert head["env"] == [
        {"name": "PLAIN", "value": "on: 'x'\n- \"y\""},
        {
            "name": "MY_API_KEY",
            "valueFrom": {"secretKeyRef": {"name": "plugrl", "key": "MY_API_KEY"}},
        },
        {
            "name": "WANDB_API_KEY",
            "valueFrom": {"secretKeyRef": {"name": "wandb", "key": "api-key"}},
        },
    ]
    assert head["volumeMounts"] == [
        {"name": "plugrl-job", "mountPath": "/etc/plugrl/job", "readOnly": True},
        {"name": "volume-0", "mountPath": "/sets", "readOnly": True},
        {"name": "volume-1", "mountPath": "/out", "readOnly": False},
    ]
    assert cluster["headGroupSpec"]["template"]["spec"]["volumes"] == [
        {"name": "plugrl-job", "configMap": {"name": "mini-t1-files"}},
        {
            "name": "volume-0",
            "persistentVolumeClaim": {"claimName": "sets", "readOnly": True},
        },
        {"name": "volume-1", "hostPath": {"path": "/mnt/x"}},
    ]
    (group,) = cluster["workerGroupSpecs"]
    assert (group["groupName"], group["replicas"]) == ("inference", 3)
    (engine,) = group["template"]["spec"]["containers"]
    assert engine["resources"]["limits"] == {"cpu": "8", "memory": "512Mi", "nvidia.com/gpu": "2"}


def test_words_and_files_travel_as_data(job):
    config_map, _ = sent(job)
    about = json.loads(config_map["data"]["launch.json"])
    # The first volume that may be written has the runs.
    assert about["words"] == [*job.words, 'settings.runs_folder="/out/runs"']
    archive = b64decode(config_map["binaryData"]["files.tar.gz"])
    with tarfile.open(fileobj=BytesIO(archive)) as opened:
        assert sorted(opened.getnames()) == FILES


def test_a_job_without_engines_has_the_head_alone(job):
    cluster = sent(replaced(job, engines=False))[1]["spec"]["rayClusterSpec"]
    assert cluster["workerGroupSpecs"] == []
    rollout = WorkersConfig(cpu_count=4, replicas=2)
    groups = sent(changed(replaced(job, engines=False), rollout=rollout))[1]["spec"]
    assert [g["groupName"] for g in groups["rayClusterSpec"]["workerGroupSpecs"]] == ["rollout"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"image": None}, "resource.image is not set"),
        ({"volumes": []}, "resource.volumes has none that may be written"),
        ({"volumes": [VolumeConfig("claim/a", "/a", True)]}, "none that may be written"),
    ],
)
def test_what_a_cluster_needs_is_asked_for(job, change, said):
    with pytest.raises(ConfigError, match=said):
        sent(changed(job, **change))


@pytest.mark.parametrize("folder", ["/tmp/runs", "../elsewhere", "/outer"])
def test_runs_outside_of_volumes_are_refused(job, folder):
    with pytest.raises(ConfigError, match="is on no volume"):
        sent(replaced(job, runs_folder=folder))


def test_names():
    assert object_name("Mini-T1") == "mini-t1"
    assert object_name("a" * MOST_CHARACTERS)
    for name in ("1-a", "-a", "a-", "a.b", "ä"):
        with pytest.raises(ConfigError, match="DNS-1035"):
            object_name(name)
    with pytest.raises(ConfigError, match="48 characters, and KubeRay takes 47"):
        object_name("a" * 48)


def test_files_beyond_a_config_map_are_refused(job):
    (job.folder / "data" / "train.jsonl").write_bytes(os.urandom(1_000_000))
    with pytest.raises(ConfigError, match=r"0\.9 MB that may travel"):
        sent(job)


def test_the_schema_catches_what_a_cluster_would_drop_or_refuse(job):
    jsonschema.Draft202012Validator.check_schema(json.loads(SCHEMA.read_text()))
    _, ray_job = sent(job)
    for break_it in (
        lambda spec: spec.update(entryPoint="x"),
        lambda spec: spec.update(backoffLimit="0"),
        lambda spec: spec["rayClusterSpec"].pop("headGroupSpec"),
        lambda spec: spec["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][
            0
        ].pop("name"),
    ):
        broken = json.loads(json.dumps(ray_job))
        break_it(broken["spec"])
        with pytest.raises(ConfigError, match="does not fit KubeRay's schema"):
            check_manifest(broken)


#: A kubectl that keeps what it was given and answers as the one of a cluster with one job.
KUBECTL = """\
#!/bin/sh
echo "$@" >> "$KEPT/calls"
case "$*" in
  *apply*) cat > "$KEPT/given";;
  *"get rayjob"*) cat "$KEPT/jobs.json";;
  *logs*) echo "step 1";;
esac
"""


@pytest.fixture
def kubectl(tmp_path, monkeypatch):
    program = tmp_path / "bin" / "kubectl"
    program.parent.mkdir()
    program.write_text(KUBECTL)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("KEPT", str(tmp_path))
    listed = {
        "items": [
            {
                "metadata": {"name": "mini-t1", "namespace": "rl", "creationTimestamp": "2026"},
                "status": {"jobStatus": "RUNNING", "message": "two\nlines"},
            },
            {"metadata": {"name": "new", "namespace": "rl", "creationTimestamp": "2027"}},
        ]
    }
    (tmp_path / "jobs.json").write_text(json.dumps(listed))
    return tmp_path


def test_kubectl_gets_the_manifests(job, kubectl):
    launcher = find_launcher("kubernetes", "my-context")
    assert launcher.start(job) == "mini-t1"
    assert (kubectl / "given").read_text() == launcher.preview(job)
    calls = (kubectl / "calls").read_text()
    assert calls == "--context my-context apply --server-side -f -\n"


def test_jobs_are_listed_followed_and_deleted(kubectl):
    launcher = find_launcher("kubernetes")
    assert [(j.name, j.state) for j in launcher.jobs()] == [
        ("new", "pending"),
        ("mini-t1", "running"),
    ]
    assert launcher.status("mini-t1").message == "two lines"
    assert "".join(launcher.logs("mini-t1", follow=True)) == "step 1\n"
    launcher.stop("mini-t1")
    deleted = (kubectl / "calls").read_text().splitlines()[-1]
    assert deleted == (
        "delete rayjob,configmap -n rl -l app.kubernetes.io/instance=mini-t1 --wait=false"
    )
    with pytest.raises(UsageError, match="no job 'nope'"):
        launcher.status("nope")


def test_a_refusal_of_the_cluster_is_one_line(job, kubectl):
    (kubectl / "bin" / "kubectl").write_text("#!/bin/sh\necho 'no\nsuch queue' >&2; exit 1\n")
    with pytest.raises(UsageError, match="kubectl apply failed: no such queue"):
        find_launcher("kubernetes").start(job)
    logged = "E1130 02:38:24.419626     623 memcache.go:265] Unhandled Error"
    script = f"#!/bin/sh\nprintf '{logged}\\nno server answers\\n' >&2; exit 1\n"
    (kubectl / "bin" / "kubectl").write_text(script)
    with pytest.raises(UsageError, match=r"kubectl apply failed: no server answers$"):
        find_launcher("kubernetes").start(job)


def test_without_kubectl_the_dry_run_is_named(job, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match="no kubectl on the PATH.*--dry-run"):
        find_launcher("kubernetes").start(job)
