"""Commands and folders that cannot be meant are found before a run of ``external`` begins."""

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
