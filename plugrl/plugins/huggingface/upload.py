"""Publishing a folder as a model of the hub."""

from __future__ import annotations

from pathlib import Path

from plugrl.core.errors import ConfigError
from plugrl.core.hub.hub import has_hub_form
from plugrl.plugins.huggingface.faults import hub_error
from plugrl.plugins.huggingface.repository import progress_bars, require_client

_NO_TOKEN = "there is no token; set HF_TOKEN to one that may write, or run hf auth login"


def check_upload(name: str, *, token: bool = True) -> None:
    """Check what can be known before anything is sent.

    Args:
        name: of the repository.
        token: whether there must be one.

    Raises:
        ConfigError: the name has another form, there is no token, or the hub is not asked.
    """
    if not has_hub_form(name):
        raise ConfigError(f"{name!r} is no name on the hub; write owner/name")
    if not token:
        return
    require_client(f"model {name}")
    from huggingface_hub import constants, get_token

    if get_token() is None:
        raise ConfigError(f"model {name}: {_NO_TOKEN}")
    if constants.HF_HUB_OFFLINE:
        raise ConfigError(f"model {name}: HF_HUB_OFFLINE is set; unset it to write to the hub")


def upload(folder: Path, name: str, *, private: bool, revision: str | None, message: str) -> str:
    """Write all files of a folder in one commit, and return the address of the model.

    Args:
        folder: what is published.
        name: ``owner/name``; the repository is made if it is not there.
        private: whether others cannot see a repository that is made.
        revision: the branch; None: main. It is made if it is not there.
        message: of the commit.

    Raises:
        ConfigError: there is no token, it has no right to this, or the hub cannot be reached.
    """
    from huggingface_hub import HfApi

    check_upload(name)
    api = HfApi(library_name="plugrl")
    try:
        api.create_repo(name, private=private, exist_ok=True)
        if revision is not None:
            api.create_branch(name, branch=revision, exist_ok=True)
        with progress_bars():
            done = api.upload_folder(
                repo_id=name, folder_path=folder, revision=revision, commit_message=message
            )
    except Exception as error:
        raise hub_error(error, f"model {name}", revision) from error
    return str(done.commit_url)
