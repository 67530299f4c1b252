"""How many threads torch gets, decided where a model is loaded."""

import os

import pytest
import torch

from plugrl.core.run.process import threads
from plugrl.plugins.transformers.loading import load_model

CORES = 7


@pytest.fixture
def limited(monkeypatch):
    before = torch.get_num_threads()
    monkeypatch.setattr(os, "cpu_count", lambda: CORES)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield threads.limit
    threads.limit(1)
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("setting", "small_below", "expected"),
    [("auto", 10**9, 1), ("auto", 10, CORES), (2, 10, 2)],
)
def test_a_large_model_gets_all_cores(limited, monkeypatch, spec, setting, small_below, expected):
    monkeypatch.setattr(threads, "SMALL_MODEL", small_below)
    limited(setting)
    load_model(spec())
    assert torch.get_num_threads() == expected


def test_the_documented_number_of_parameters():
    assert threads.SMALL_MODEL == 20_000_000
