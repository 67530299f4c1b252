"""The hub passes the kit."""

import json

import pytest

from plugrl.testing.suite.test_hub import HubContract


class TestHuggingFace(HubContract):
    __test__ = True
    plugrl_hub = "huggingface"
    conformance = {
        "model": "someone/model",
        "data": "someone/rows",
        "files": "hf://datasets/someone/rows/train.jsonl",
        "missing": "nobody/nothing",
    }

    @pytest.fixture(autouse=True)
    def published(self, hub, server):
        """A model and a data set on the server."""
        rows = [{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(3)]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        server.model("someone/model", {"config.json": b"{}", "model.safetensors": b"0"})
        server.data_set("someone/rows", {"train.jsonl": lines.encode()})

    @pytest.mark.integration
    def test_a_new_process_finds_the_same(self, record, cls, plugrl_new_process):
        """It imports the client of the hub."""
        super().test_a_new_process_finds_the_same(record, cls, plugrl_new_process)
