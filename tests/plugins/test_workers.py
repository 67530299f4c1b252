"""A spawned process finds what the driver resolved, from the records alone."""

from __future__ import annotations

import json

DRIVER = """
import json, multiprocessing, sys
from plugrl.core.plugins.discovery import load_hook_plugins
from plugrl.core.plugins.registry import Record, default_registry, register_loss

@register_loss("of_the_script")
def of_the_script(logp, batch, config):
    return logp, {}

def work(texts, queue):
    registry = default_registry()
    values = [registry.load(Record.from_json(json.loads(text))) for text in texts]
    queue.put([f"{value.__module__}:{value.__qualname__}" for value in values])

if __name__ == "__main__":
    registry = default_registry()
    load_hook_plugins(registry)
    records = [
        registry.resolve("trainer", "good"),
        registry.resolve("loss", "found_at_run_time"),
        registry.resolve("loss", "of_the_script"),
        registry.load_path("loss", "mine.py", "my_loss"),
    ]
    here = [f"{v.__module__}:{v.__qualname__}" for v in map(registry.load, records)]
    texts = [json.dumps(record.to_json()) for record in records]
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=work, args=(texts, queue))
    process.start()
    there = queue.get(timeout=240)
    process.join()
    print(json.dumps({"here": here, "there": there, "texts": texts}))
"""


def write_user_files(folder):
    (folder / "driver.py").write_text(DRIVER)
    (folder / "helper.py").write_text("SCALE = 2.0\n")
    (folder / "mine.py").write_text(
        "from .helper import SCALE\n\n\ndef my_loss(logp, batch, config):\n"
        "    return SCALE * logp, {}\n"
    )


UNRELATED = """
import json, sys
from plugrl.core.plugins.registry import Record, default_registry
for line in json.loads(sys.argv[1]):
    print(default_registry().load(Record.from_json(json.loads(line))).__qualname__)
"""


def test_spawned_process_and_one_that_shares_nothing_but_the_disk(process, tmp_path):
    write_user_files(tmp_path)
    done = process("driver.py", only="plugrl-test-good")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    names = [text.rpartition(":")[2] for text in result["here"]]
    assert names == [
        "GoodTrainer",
        "plugrl_register_components.<locals>.found_at_run_time",
        "of_the_script",
        "my_loss",
    ]
    # multiprocessing names the main module of a child differently; the component is the same.
    assert [text.replace("__mp_main__", "__main__") for text in result["there"]] == result["here"]
    done = process("-c", UNRELATED, json.dumps(result["texts"]), only="plugrl-test-good")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == names


def test_another_version_is_an_error(process):
    record = {
        "kind": "trainer",
        "name": "good",
        "target": "plugrl_test_good.trainer:GoodTrainer",
        "distribution": "plugrl-test-good",
        "version": "2.0",
    }
    done = process("-c", UNRELATED, json.dumps([json.dumps(record)]), forked=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "plugrl.core.errors.PluginError: trainer 'good' of plugrl-test-good 2.0 "
        "(plugrl_test_good.trainer:GoodTrainer) has version 1.0 in this process; install "
        "plugrl-test-good==2.0 in the environment of every process"
    )


LISTING = """
import multiprocessing
from plugrl.core.plugins.registry import default_registry

def work(queue):
    queue.put(sorted({r.name for r in default_registry().records("loss")} & {"of_p", "of_file"}))

if __name__ == "__main__":
    from plugrl.core.plugins.loading import import_user_module
    import_user_module("named")
    import_user_module("file.py")
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=work, args=(queue,))
    process.start()
    print(queue.get(timeout=240))
    process.join()
"""


def test_what_p_imports_is_imported_in_spawned_processes(process, tmp_path):
    (tmp_path / "listing.py").write_text(LISTING)
    for module, name in (("named", "of_p"), ("file", "of_file")):
        (tmp_path / f"{module}.py").write_text(
            f"import plugrl\n\n\n@plugrl.register_loss('{name}')\n"
            "def loss(logp, batch, config):\n    return logp, {}\n"
        )
    done = process("listing.py")
    assert done.stdout == "['of_file', 'of_p']\n", done.stderr
