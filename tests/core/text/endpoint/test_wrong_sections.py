"""Commands and folders that cannot be meant are found before a run of ``external`` begins."""

import sys

import pytest

from plugrl.core.errors import ConfigError
from plugrl.core.experiment import prepare
from plugrl.testing import tiny

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"command": " "}, r"rollout_worker.command .*is blank; name a program"),
        ({"command": "python 'x"}, r"rollout_worker.command .*cannot be split"),
        ({"command": "/tmp"}, r"rollout_worker.command .*there is no such program"),
        ({"command": ["", "x"]}, r"rollout_worker.command .*there is no such program"),
        ({"command": "python", "workspace": __file__}, r"rollout_worker.workspace .*is no folder"),
    ],
)
def test_a_command_or_folder_that_cannot_be_meant(tmp_path, section, said):
    worker = {"type": "external", **section}
    tree = tiny.config("self_hosted_grpo", tmp_path, {"rollout_worker": worker})
    with pytest.raises(ConfigError, match=said) as caught:
        prepare(tree)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("operator", ["|", "||", "&&", ";", ">", ">>", "<", "2>&1", "&"])
def test_an_operator_of_a_shell_is_refused_unless_it_is_quoted(tmp_path, operator):
    def prepared(command):
        worker = {"type": "external", "command": command}
        prepare(tiny.config("self_hosted_grpo", tmp_path, {"rollout_worker": worker}))

    command = f"{sys.executable} multi.py {operator} x"
    with pytest.raises(ConfigError) as caught:
        prepared(command)
    assert f'write [bash, -c, "{command}"], or quote {operator}' in str(caught.value)
    assert "rollout_worker.command (Python): " in str(caught.value)
    prepared(command.replace(operator, f"'{operator}'"))
    prepared([sys.executable, "multi.py", operator])
