"""What the list of a run says about processes on other machines."""

import json

from plugrl.core.run.records.places import PLACES_FILE, Places, read_places
from plugrl.core.run.records.timeline import TIMELINE_FILE, Timeline
from plugrl.core.text.rollout.processes.utilisation import (
    BUSY,
    FOR_MODELS,
    FOR_OTHERS,
    Utilisation,
)

PLACE = {"name": "worker-1 on node 10.0.0.2", "node": "10.0.0.2", "versions": "plugrl 1.0"}


class Clock(Timeline):
    time = 100.0

    def now(self):
        return self.time


def test_time_is_busy_or_spent_waiting_for_models_or_for_others(tmp_path):
    clock = Clock(tmp_path)
    use = Utilisation(clock, lambda: {0: PLACE})
    listed = Places(tmp_path)
    listed.add("workers", use.rows)
    use.begin()
    clock.time = 101.0
    use.works(0)
    clock.time = 104.0
    use.waits(0, step=3)
    # The other process asks a second later, and the model takes two.
    clock.time = 107.0
    use.served(105.0, [0])
    use.works(0)
    clock.time = 110.0
    use.add_tokens(0, 40)
    use.end()
    listed.write()
    assert read_places(tmp_path) == {
        "worker-1 on node 10.0.0.2": "plugrl 1.0; of rollouts 30% busy, 20% waiting for models, "
        "10% waiting for other workers; 4 tokens a second"
    }
    spans = [json.loads(line) for line in (tmp_path / TIMELINE_FILE).read_text().splitlines()]
    (span,) = [each for each in spans if each["lane"] == "worker-1"]
    assert (span["start"], span["end"], span["step"]) == (101.0, 104.0, 3)


def test_attempts_in_the_background_wait_for_models_or_are_none(tmp_path):
    clock = Clock(tmp_path)
    use = Utilisation(clock, lambda: {0: PLACE})
    for seconds, state in ((1.0, BUSY), (3.0, FOR_MODELS), (2.0, FOR_OTHERS), (4.0, BUSY)):
        use.becomes(0, state)
        clock.time += seconds
    use.add_tokens(0, 50)
    # What goes on at the moment counts as well, and once.
    for _ in range(2):
        (row,) = use.rows()
    parts = [row[key] for key in ("seconds", "busy", "for_models", "for_others", "tokens")]
    assert parts == [10.0, 5.0, 3.0, 2.0, 50]
    use.becomes(0, None)
    clock.time += 7.0
    assert use.rows() == [row]


def test_a_list_has_what_all_parts_say_and_keeps_the_last_words_of_one_that_has_ended(tmp_path):
    listed, rows = Places(tmp_path), [{"name": "replica 1", "versions": "plugrl 1.0"}]
    listed.write(last=True)
    assert not (tmp_path / PLACES_FILE).exists()
    listed.add("models", lambda: rows)
    listed.add("workers", lambda: [PLACE])
    listed.write()
    rows = []
    listed.write(last=True)
    assert read_places(tmp_path) == {"replica 1": "plugrl 1.0", PLACE["name"]: "plugrl 1.0"}


def test_engines_are_busy_or_wait_for_requests(tmp_path):
    row = {
        **PLACE, "weights": 3, "of": "the run",
        "seconds": 8.0, "busy": 2.0, "for_requests": 6.0, "tokens": 4000,
    }  # fmt: skip
    listed = Places(tmp_path)
    listed.add("models", lambda: [row])
    listed.write()
    assert read_places(tmp_path)[PLACE["name"]] == (
        "plugrl 1.0; weights of version 3; of the run 25% busy, 75% waiting for requests; 500 "
        "tokens a second"
    )


def test_a_damaged_list_is_left_out(tmp_path):
    assert read_places(tmp_path) == {}
    for text in ("", "[", '[{"name": 1}]', '{"a": 1}', "[1]"):
        (tmp_path / PLACES_FILE).write_text(text)
        assert read_places(tmp_path) == {}
