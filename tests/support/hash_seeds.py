"""Trains each configuration of a JSON file, and prints what must not depend on the hash seed.

It is started as a script, with the file and a folder for runs, so that the interpreter has a hash
seed of its own.
"""

import hashlib
import json
import sys
from pathlib import Path

#: Names in states and records that are a run's own, and times.
_OWN = ("jobs", "job_name", "folder", "job", "fine_tuned_model", "last_metrics")


def digest(value):
    """Text that is equal where weights, numbers and the order of entries are."""
    import torch

    if isinstance(value, torch.Tensor):
        data = value.detach().contiguous().cpu().numpy().tobytes()
        return f"{list(value.shape)}:{hashlib.sha256(data).hexdigest()}"
    if hasattr(value, "items"):
        return {str(k): digest(v) for k, v in value.items() if k not in _OWN}
    if isinstance(value, (list, tuple)):
        return [digest(each) for each in value]
    return repr(value)


def rollouts(folder):
    """What was played, problem by problem, where it is kept."""
    found = {}
    for path in sorted(folder.glob("rollouts/*.jsonl")):
        lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        found[path.name] = [line["rollouts"] for line in lines[1:]]
    for path in sorted(folder.glob("fine_tuning/*/*/examples.jsonl")):
        job = path.parent.name.rpartition("-iteration-")[2]
        found[job] = path.read_text("utf-8")
        for weights in sorted(path.parent.rglob("*.safetensors")):
            name = f"{job}/{weights.relative_to(path.parent)}"
            found[name] = hashlib.sha256(weights.read_bytes()).hexdigest()
    return found


def main():
    from plugrl.core.experiment import prepare, start

    found = {}
    for name, tree in json.loads(Path(sys.argv[1]).read_text("utf-8")).items():
        tree["settings"] = {"runs_folder": sys.argv[2], "progress": "none", "device": "cpu"}
        run = start(prepare(tree))
        metrics = [
            {k: v for k, v in line.items() if "time" not in k and "per_second" not in k}
            for line in run.metrics
        ]
        state = digest(run.checkpoint()["trainer"])
        found[name] = {"metrics": metrics, "state": state, "rollouts": rollouts(run.folder)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
