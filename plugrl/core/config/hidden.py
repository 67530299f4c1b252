"""What of a configuration stays on the machine: credentials, and values of the environment."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from plugrl.core.config.origins import KeyPath, dotted

#: Stands where a value was hidden.
HIDDEN = "<hidden>"

_SECRET = re.compile(
    r"(?:^|[_\-.])(?:\w*api_?key|auth|authorization|bearer|cookie|credentials?|keys?|pass|"
    r"pass(?:word|wd|phrase)s?|pw|pwd|secrets?|tokens?)$",
    re.IGNORECASE,
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
#: Names that look like one of a credential and are columns of data or marks of a tokenizer.
_PLAIN = re.compile(
    r"^(?:answer|chosen|completion|data_source|demonstration|json|label|margin|prompt|question|"
    r"reference|rejected|reward|teacher|tests)_key$|^(?:bos|cls|eos|mask|pad|sep|unk)_token$",
    re.IGNORECASE,
)
#: Credentials within an address: ``https://user:word@host`` and ``?token=word``.
_IN_ADDRESS = re.compile(
    r"(?<=://)[^/\s@]+(?=@)|(?<=[?&])((?:\w*_)?(?:key|token|password|secret|sig|signature))=[^&\s]+",
    re.IGNORECASE,
)


def names_secret(key: str) -> bool:
    """Whether a key names a credential, such as ``api_key``, ``HF_TOKEN`` or ``password``."""
    key = _CAMEL.sub("_", key)
    return _SECRET.search(key) is not None and _PLAIN.match(key) is None


def hidden_paths(tree: Any, sources: Collection[KeyPath], composed: Any) -> list[str]:
    """The paths of ``tree`` whose values came from the environment.

    Args:
        tree: the validated configuration.
        sources: the paths of ``composed`` whose values did.
        composed: the configuration before validation, which may move values.
    """
    values = {value for path, value in _leaves(composed, ()) if _covers(sources, path)}
    texts = {value for value in values if isinstance(value, str) and value}
    return [
        dotted(path)
        for path, value in _leaves(tree, ())
        if _covers(sources, path) or (isinstance(value, str) and value in texts)
    ]


def without_secrets(tree: Mapping[str, Any], hidden: Collection[str] = ()) -> dict[str, Any]:
    """Copy a configuration with ``<hidden>`` for credentials and for the values at ``hidden``."""
    return {key: _shown(value, (key,), frozenset(hidden)) for key, value in tree.items()}


def _shown(value: Any, path: KeyPath, hidden: frozenset[str]) -> Any:
    if dotted(path) in hidden and value is not None:
        return HIDDEN
    if isinstance(value, Mapping):
        return {key: _shown(item, (*path, key), hidden) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_shown(item, (*path, i), hidden) for i, item in enumerate(value)]
    if not isinstance(value, str) or not value:
        return value
    if any(names_secret(str(part)) for part in _last_names(path)):
        return HIDDEN
    return within_addresses(value)


def within_addresses(text: str) -> str:
    """``text`` with ``<hidden>`` for the credentials of addresses: of users and of queries."""
    if "://" not in text and "=" not in text:
        return text
    return _IN_ADDRESS.sub(lambda found: f"{found[1]}={HIDDEN}" if found[1] else HIDDEN, text)


def _last_names(path: KeyPath) -> Iterator[str]:
    """The key of a value; of an item of a list, that of the list."""
    for part in reversed(path):
        if isinstance(part, str):
            yield part
            return


def _covers(sources: Collection[KeyPath], path: KeyPath) -> bool:
    return any(path[: len(source)] == source for source in sources)


def _leaves(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, (*path, key))
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from _leaves(item, (*path, i))
    else:
        yield path, value
