import json

import pytest


def _write_run(folder, lines=(), samples=None, status=None, **files):
    folder.mkdir(parents=True, exist_ok=True)
    if lines:
        (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    for name, records in (samples or {}).items():
        (folder / "samples").mkdir(exist_ok=True)
        text = "".join(json.dumps(record) + "\n" for record in records)
        (folder / "samples" / f"{name}.jsonl").write_text(text)
    status = {"state": "done", "step": len(lines)} if status is None else status
    (folder / "status.json").write_text(json.dumps(status))
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


@pytest.fixture(scope="session")
def write_run():
    """Write a run folder by hand; ``__`` in the name of another file is a dot."""
    return _write_run
