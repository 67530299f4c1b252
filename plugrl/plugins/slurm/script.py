"""A launched job as a batch script of SLURM that starts Ray on the nodes of its allocation."""

from __future__ import annotations

import os
import re
import shlex
import sys

from plugrl.core.errors import ConfigError
from plugrl.core.launch.launcher import LaunchJob

#: Seconds before the time limit at which the run is told to stop, so that it saves a checkpoint.
STOP_SECONDS = 300

#: What follows the options and the variables of the job. ``python`` is that of the launch, since
#: the nodes of a cluster share their file systems; ``ray`` is the command of the same environment.
_BODY = """\
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes[0]}
head_ip=$(srun --nodes=1 --ntasks=1 --nodelist="$head" hostname --ip-address | awk '{print $1}')
# Two jobs may share a node; the workers of Ray have the ports below.
port=$((20000 + SLURM_JOB_ID % 10000))
export RAY_ADDRESS="$head_ip:$port"
# Other users reach the nodes too, and whoever reaches Ray runs code.
RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN
steps=()
end() {
  kill "${steps[@]}" 2>/dev/null || true
  wait "${steps[@]}" 2>/dev/null || true
}
trap end EXIT

srun --overlap --nodes=1 --ntasks=1 --nodelist="$head" \\
  "$ray" start --head --node-ip-address="$head_ip" --port="$port" \\
  --num-cpus="$cpus" --num-gpus="$gpus" --include-dashboard=false --block &
steps+=($!)
for node in "${nodes[@]:1}"; do
  # A worker asks for the head until it is there.
  srun --overlap --nodes=1 --ntasks=1 --nodelist="$node" \\
    "$ray" start --address="$RAY_ADDRESS" --num-cpus="$cpus" --num-gpus="$gpus" --block &
  steps+=($!)
done

# The run begins when all nodes are there.
for attempt in {1..120}; do
  if "$python" -c '
import sys, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
alive = [node for node in ray.nodes() if node["Alive"]]
sys.exit(len(alive) < int(sys.argv[2]))
' "$RAY_ADDRESS" "${#nodes[@]}" 2>/dev/null; then
    break
  fi
  for step in "${steps[@]}"; do
    if ! kill -0 "$step" 2>/dev/null; then
      echo "error: Ray did not start on all of ${nodes[*]}; see the lines above" >&2
      exit 1
    fi
  done
  if [ "$attempt" = 120 ]; then
    echo "error: of ${nodes[*]} not all have joined Ray; see the lines above" >&2
    exit 1
  fi
  sleep 2
done

"$python" -m plugrl "${words[@]}" &
run=$!
# The signal of --signal, before the time limit, and that of scancel.
stopping=
trap 'stopping=1; kill -TERM "$run" 2>/dev/null || true' TERM
code=0
wait "$run" || code=$?
# A signal ends the waiting, not the run, which still saves its checkpoint.
while [ -n "$stopping" ]; do
  stopping= last=0
  wait "$run" || last=$?
  [ "$last" = 127 ] || code=$last
done
exit "$code"
"""


def script(job: LaunchJob) -> str:
    """The batch script of a job; text of a user stands in it quoted alone.

    Raises:
        ConfigError: the working directory cannot stand in an option of SLURM.
    """
    resource = job.resource
    machines = [resource.training]
    nodes = 1
    for workers in (resource.inference if job.engines else None, resource.rollout):
        if workers is not None and workers.replicas:
            machines.append(workers)
            nodes += workers.replicas
    cpus, gpus = max(m.cpu_count for m in machines), max(m.gpu_count for m in machines)
    memory = round(max(m.memory_gb for m in machines) * 1024)
    options = {
        "job-name": job.name,
        "output": f"{job.name}-%j.log",
        "nodes": nodes,
        "ntasks-per-node": 1,
        "cpus-per-task": cpus,
        "mem": f"{memory}M",
        # To the script alone, which hands it on to the run.
        "signal": f"B:TERM@{STOP_SECONDS}",
    }
    if gpus:
        options["gpus-per-node"] = gpus
    for key, value in (
        ("time", resource.time_limit),
        ("partition", resource.partition),
        ("account", resource.account),
    ):
        if value is not None:
            options[key] = value
    if "\0" in "".join(job.words):
        raise ConfigError("a value has a null character, which no command line holds; leave it out")
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH --{key}={value}" for key, value in options.items()),
        "set -euo pipefail",
        f"cd {_quoted(str(job.folder))}",
        *(f"export {name}={_quoted(value)}" for name, value in sorted(job.variables.items())),
        # SLURM hands on the environment of the launch; their values stand nowhere.
        *(f': "${{{name}:?set it where the job is launched}}"' for name in job.secrets),
        f"python={_quoted(sys.executable)}",
        f"ray={_quoted(os.path.join(os.path.dirname(sys.executable), 'ray'))}",
        f"cpus={cpus} gpus={gpus}",
        f"words=({' '.join(map(_quoted, job.words_for(job.runs_folder)))})",
        "",
    ]
    return "\n".join(lines) + _BODY


def _quoted(text: str) -> str:
    """A word of bash on one line, so that none of its lines looks like an option of SLURM."""
    if text.isprintable():
        return shlex.quote(text)
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return "$'" + re.sub(r"[\x00-\x1f\x7f]", lambda c: f"\\x{ord(c[0]):02x}", escaped) + "'"
