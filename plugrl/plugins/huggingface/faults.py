"""What went wrong with the hub, in one line: what, where, and the remedy."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from plugrl.core.errors import ConfigError
from plugrl.core.plugins.user_code.error_location import first_line

_LOGIN = "set HF_TOKEN, or run hf auth login"


def hub_error(
    error: Exception, what: str, revision: str | None = None, *, partly: bool = False
) -> ConfigError:
    """The error of the client as one of plugrl's.

    Args:
        error: of ``huggingface_hub``, of the network below it or of the disk.
        what: was asked for, such as ``model owner/name``.
        revision: that was asked for.
        partly: whether some of its files are in the cache.
    """
    return ConfigError(_line(error, what, revision, partly))


def _line(error: Exception, what: str, revision: str | None, partly: bool) -> str:
    from huggingface_hub import constants, errors

    chain = list(_chain(error))
    status = next((_status(each) for each in chain if _status(each)), None)
    names = {type(each).__name__ for each in chain}
    page = f"{constants.ENDPOINT}/{_page(what)}"
    if any(getattr(each, "errno", None) in (errno.ENOSPC, errno.EDQUOT) for each in chain):
        return (
            f"{what}: no space is left in {constants.HF_HUB_CACHE}; free some, or set HF_HOME to "
            "a folder on another disk"
        )
    if any(isinstance(each, errors.GatedRepoError) for each in chain):
        return f"{what} is gated; accept its conditions at {page}, then {_LOGIN}"
    if any(isinstance(each, errors.RevisionNotFoundError) for each in chain):
        return f"{what} has no revision {revision!r}; name a branch, tag or commit that it has"
    if any(isinstance(each, errors.RepositoryNotFoundError) for each in chain):
        return (
            f"{constants.ENDPOINT} has no {what}, or it is private; check the name, and for a "
            f"private one {_LOGIN}"
        )
    if status == 401:
        return (
            f"{what}: {constants.ENDPOINT} refuses the token (401); set a valid HF_TOKEN, or run "
            "hf auth login"
        )
    if status == 403:
        return f"{what}: the token has no right to this (403); take one that has: {_LOGIN}"
    if status == 429:
        return f"{what}: {constants.ENDPOINT} answers that it is asked too often (429); wait a bit"
    cached = f"{what} is not in the cache {constants.HF_HUB_CACHE}"
    if partly or "IncompleteSnapshotError" in names:
        cached = f"{what} is in the cache {constants.HF_HUB_CACHE} only in part"
    if status is not None:
        return (
            f"{what}: {constants.ENDPOINT} answers {status} ({_said(chain)}); try again later, or "
            "take what is in the cache with HF_HUB_OFFLINE=1"
        )
    if "Consistency check failed" in str(error) or "RemoteProtocolError" in names:
        return (
            f"{what}: the download broke off ({first_line(error)}); run the command again, it goes "
            "on where it stopped"
        )
    if constants.HF_HUB_OFFLINE or any(_is_connection(each) for each in chain):
        return f"{cached}, and {_why(chain)}"
    if isinstance(error, PermissionError):
        return (
            f"{what}: {error.filename} cannot be written ({os.strerror(error.errno or 13)}); set "
            "HF_HOME to a folder of yours"
        )
    return f"{what}: {first_line(error)}"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _status(error: BaseException) -> int | None:
    return getattr(getattr(error, "response", None), "status_code", None)


def _said(chain: list[BaseException]) -> str:
    answered = next(each for each in chain if _status(each))
    return getattr(answered, "server_message", None) or type(answered).__name__


def _is_connection(error: BaseException) -> bool:
    names = {cls.__name__ for cls in type(error).__mro__}
    return bool(names & {"TransportError", "OfflineModeIsEnabled", "ConnectionError"})


def _why(chain: list[BaseException]) -> str:
    """Why the rest cannot be downloaded, with the remedy."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set; unset it, so that it is downloaded"
    reached = next((each for each in chain if _is_connection(each)), chain[-1])
    return (
        f"{constants.ENDPOINT} cannot be reached ({type(reached).__name__}); check the network, "
        "and HF_ENDPOINT if it is set, and run the command again"
    )


def _page(what: str) -> str:
    kind, _, name = what.rpartition(" ")
    return f"datasets/{name}" if kind.endswith("data set") else name
