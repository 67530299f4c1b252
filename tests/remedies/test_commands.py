"""Every remedy that commands recommend is tried, and helps."""

from __future__ import annotations

import pytest
from remedies import untried

#: Command lines, part of the message, and the command line that it recommends.
COMMANDS: list[tuple[str, str, str]] = [
    ("validate -m self-hosted -c sft -r", "write plugrl validate sft", "validate sft"),
    ("validate sft --cfg job", "plugrl has no --cfg: write", "config show sft"),
    ("config schema section ppoo", "did you mean ppo?", "config schema section ppo"),
    ("config schema section logger", "it is another name of", "config schema section trackers"),
    ("config schema section algorithm", "its keys are those of", "config schema trainer sac"),
    ("config schema section zzzz", "; see plugrl config schema section", "config schema section"),
    ("config schema loss", "name one of the losses; see plugrl ls", "ls losses"),
    ("validate zzzz.yaml", "; see plugrl ls recipes", "ls recipes"),
    ("validate sfft", "did you mean sft", "validate sft"),
    ("validate .", "is a folder; name the YAML file in it", "validate sft"),
]


@pytest.mark.parametrize(("line", "says", "then"), COMMANDS)
def test_a_remedy_on_the_command_line_helps(line, says, then, tmp_path, monkeypatch, call):
    monkeypatch.chdir(tmp_path)
    code, _, error = call(*line.split())
    assert (code, says in error) == (2, True), error
    assert call(*then.split())[0] == 0


#: Texts that name no key, value or command.
REASONS = {
    "commands/": "not looked at yet",
}


def test_every_remedy_is_tried_or_names_nothing():
    says = {says for _, says, _ in COMMANDS}
    assert untried("commands", says, REASONS) == []
