"""What of a configuration stays on the machine."""

import logging

import pytest

from plugrl.core.config.compose import compose
from plugrl.core.config.hidden import HIDDEN, hidden_paths, names_secret, without_secrets
from plugrl.core.run.ending import _LogFile


@pytest.mark.parametrize(
    "key",
    ["api_key", "apiKey", "OPENAI_API_KEY", "key", "token", "HF_TOKEN", "accessToken", "password",
     "db_password", "secret", "client_secret", "credentials", "wandb_key", "authorization",
     "private_key", "passwd"],
)  # fmt: skip
def test_names_of_credentials(key):
    assert names_secret(key)


@pytest.mark.parametrize(
    "key",
    ["prompt_key", "answer_key", "reward_key", "eos_token", "pad_token", "tokenizer",
     "max_tokens_x", "key_list", "monkey", "keyboard", "passing", "author", "num_key_value_heads"],
)  # fmt: skip
def test_names_of_other_things(key):
    assert not names_secret(key)


def test_values_at_such_names_and_within_addresses_are_hidden():
    tree = {
        "judge": {"api_key": "sk-1", "max_tokens": 5, "token": None, "password": ""},
        "tokens": ["a", "b"],
        "uri": "postgresql://me:word@host:5432/db",
        "url": "https://host/x?write_token=abc&page=2",
        "plain": "https://host/x?page=2",
    }
    assert without_secrets(tree) == {
        "judge": {"api_key": HIDDEN, "max_tokens": 5, "token": None, "password": ""},
        "tokens": [HIDDEN, HIDDEN],
        "uri": f"postgresql://{HIDDEN}@host:5432/db",
        "url": f"https://host/x?write_token={HIDDEN}&page=2",
        "plain": "https://host/x?page=2",
    }


def test_values_of_the_environment_are_found_also_where_they_are_referred_to(monkeypatch):
    monkeypatch.setenv("PLACE", "/home/me")
    composed = compose(
        {
            "a": "${oc.env:PLACE}/x", "b": "${env.PLACE}", "c": "${a}",
            "d": {"e": ["${.b}", "${b}"]}, "f": "${oc.env:NOT_THERE_X,7}",
            "g": "other", "h": "${g}", "trainer": {"copy": "x"},
        }
    )  # fmt: skip
    moved = {**composed.tree, "moved": {"b": "/home/me"}}
    found = hidden_paths(moved, composed.environment, composed.tree)
    assert {"a", "b", "c", "d.e[1]", "f", "moved.b"} <= set(found)
    assert not {"g", "h", "trainer.copy"} & set(found)
    hidden = without_secrets(moved, found)
    assert "/home/me" not in str(hidden)
    assert (hidden["f"], hidden["h"]) == (HIDDEN, "other")


def test_lines_of_the_log_hide_what_addresses_hold(tmp_path):
    handler = _LogFile(tmp_path / "log.txt", encoding="utf-8")
    logger = logging.getLogger("plugrl.test_hidden")
    logger.addHandler(handler)
    try:
        try:
            raise OSError("no answer of postgresql://me:planted@host/db?token=planted")
        except OSError as error:
            logger.warning("of http://user:planted@host: %s", error, exc_info=error)
    finally:
        logger.removeHandler(handler)
        handler.close()
    written = (tmp_path / "log.txt").read_text()
    assert "Traceback" in written
    assert f"of http://{HIDDEN}@host: no answer" in written
    assert "planted" not in written
