"""What the list of a run says about processes on other machines."""

import json

from plugrl.core.run.records.places import PLACES_FILE, read_places
from plugrl.core.run.records.timeline import TIMELINE_FILE, Timeline
from plugrl.core.text.rollout.processes.utilisation import Utilisation

PLACE = {"name": "worker-1 on node 10.0.0.2", "node": "10.0.0.2", "versions": "plugrl 1.0"}


class Clock(Timeline):
    time = 100.0

    def now(self):
        return self.time


def test_time_is_busy_or_spent_waiting_for_models_or_for_others(tmp_path):
    clock = Clock(tmp_path)
    use = Utilisation(clock, tmp_path)
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
    use.end({0: PLACE})
    assert read_places(tmp_path) == {
        "worker-1 on node 10.0.0.2": "plugrl 1.0; of rollouts 30% busy, 20% waiting for models, "
        "10% waiting for other workers; 4 tokens a second"
    }
    spans = [json.loads(line) for line in (tmp_path / TIMELINE_FILE).read_text().splitlines()]
    (span,) = [each for each in spans if each["lane"] == "worker-1"]
    assert (span["start"], span["end"], span["step"]) == (101.0, 104.0, 3)


def test_a_damaged_list_is_left_out(tmp_path):
    assert read_places(tmp_path) == {}
    for text in ("", "[", '[{"name": 1}]', '{"a": 1}', "[1]"):
        (tmp_path / PLACES_FILE).write_text(text)
        assert read_places(tmp_path) == {}
