"""Values and keys that nobody can mean, named with the key that holds them."""

import json
import sys

import pytest

from plugrl.core.errors import ConfigError
from plugrl.core.experiment import prepare
from plugrl.core.text.endpoint.faults import ApiError
from plugrl.core.text.endpoint.requests import read_text
from plugrl.core.text.remote.settings import check_address
from plugrl.testing import tiny


def refused(tmp_path, changes):
    with pytest.raises(ConfigError) as caught:
        prepare(tiny.config("self_hosted_grpo", tmp_path, changes))
    (fault,) = caught.value.faults
    return str(fault)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"deadline": 0}, "settings.deadline"),
        ({"deadline": -1}, "settings.deadline"),
        ({"deadlines": {"rollout": 0}}, "settings.deadlines.rollout"),
        ({"deadlines": {"setup_script": -1.5}}, "settings.deadlines.setup_script"),
    ],
)
def test_a_time_limit_that_is_over_before_it_begins(tmp_path, settings, key):
    said = refused(tmp_path, {"settings": settings})
    assert said.startswith(f"{key} (")
    assert "must be above 0" in said


@pytest.mark.parametrize("key", ["max_skipped_steps", "max_invalid_steps", "dead_reward_steps"])
def test_a_guard_that_acts_after_nothing(tmp_path, key):
    said = refused(tmp_path, {"runtime_monitor": {key: 0}})
    assert said.startswith(f"runtime_monitor.{key} (")
    assert "must be at least 1" in said


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"max_worker_restarts": -1}, "max_worker_restarts"),
        ({"dump_steps": [3, -1]}, "dump_steps[1]"),
    ],
)
def test_counts_of_the_monitor_that_are_negative(tmp_path, changes, key):
    said = refused(tmp_path, {"runtime_monitor": changes})
    assert said.startswith(f"runtime_monitor.{key} (")
    assert "must be at least 0, not -1" in said


@pytest.mark.parametrize(
    ("section", "key", "meant"),
    [
        ("trainer", "save_frq", "save_freq"),
        ("trainer", "chekpoint_path", "checkpoint_path"),
        ("validate", "validate_frq", "validate_freq"),
        ("rollout_worker", "evaluator_modul_path", "evaluator_module_path"),
    ],
)
def test_misspelt_second_spellings_are_suggested(tmp_path, section, key, meant):
    said = refused(tmp_path, {section: {key: 3}})
    assert said.startswith(f"{section}.{key} (")
    assert f"did you mean {meant}?" in said


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://127.0.0.1:1/v1?api_key=planted", "must end with its path"),
        ("http://127.0.0.1:1/v1#planted", "must end with its path"),
        ("http://user:planted@127.0.0.1/v1", "must hold no user or password"),
        ("http://127.0.0.1:99999999/v1", "base_url is no address"),
        ("http://127.0.0.1:x/v1", "base_url is no address"),
        ("http://[::1", "base_url is no address"),
    ],
)
def test_an_address_that_is_none_or_holds_a_key(url, said):
    with pytest.raises(ConfigError, match=said) as caught:
        check_address(url, None, "KEY")
    assert "planted" not in str(caught.value)


@pytest.mark.parametrize("section", ["rollout_worker", "validate"])
@pytest.mark.parametrize("value", [1e-300, 1e-5])
def test_a_temperature_that_makes_logits_infinite(tmp_path, section, value):
    said = refused(tmp_path, {section: {"temperature": value}})
    assert said.startswith(f"{section}.temperature (")
    assert "0 (greedy) or more is possible, but nothing below 0.0001" in said


def test_a_request_with_such_a_temperature_is_refused():
    body = {"model": "m", "prompt": "x", "temperature": 1e-300}
    with pytest.raises(ApiError, match="temperature is below") as caught:
        read_text(json.dumps(body).encode())
    assert caught.value.status == 400


@pytest.mark.parametrize("key", ["\x1b[31mred", "a[b", "a]", "[", "[]", "[x]", "[٣]", "a[0", "."])
def test_keys_with_brackets_are_told_as_others_are(files, faults, key):
    files(a=f"trainer: toy\n{json.dumps(key)}: 1\n")
    (said,) = faults("a.yaml")
    assert "unknown section" in said


def test_thousands_of_keys_take_few_comparisons(files, faults):
    """Each key was compared with the origins of all others, and with the names of all sections."""
    files(a="".join(f"k{i}: 1\n" for i in range(4000)))
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        faults("a.yaml")
    finally:
        sys.setprofile(None)
    # Some 215 for each key; comparisons with all others would be thousands.
    assert calls < 4000 * 500


@pytest.mark.parametrize(
    ("written", "remedy"),
    [("'5.0'", "; write 5"), ("1_0", "; write 10"), ("'5.5'", ""), ("'1e400'", "; use a finite")],
)
def test_the_remedy_for_text_that_is_a_number_is_one_that_helps(files, faults, written, remedy):
    files(a=f"trainer: {{type: toy, steps: {written}}}\n")
    (said,) = faults("a.yaml")
    assert "must be a whole number, not " in said
    assert remedy in said
    assert bool(remedy) or "write" not in said


def test_files_that_name_others_twice_are_read_a_bounded_number_of_times(files, faults):
    named = {f"d{i}": f"defaults: [d{i + 1}, d{i + 1}]\n" for i in range(18)}
    files(**named, d18="trainer: toy\n")
    (said,) = faults("d0.yaml")
    assert "defaults lead to more than 200 files" in said


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "x" * 5000 + ".yaml"])
def test_a_name_that_no_file_can_have_is_told_as_one_that_is_not_there(files, faults, name):
    files(a="trainer: toy\n")
    (said,) = faults(name)
    assert "\n" not in said
