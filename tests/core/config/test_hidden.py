"""What of a configuration stays on the machine."""

import logging
import re
from pathlib import Path

import pytest
import yaml

import plugrl
from plugrl.core.config.hidden import (
    HIDDEN,
    fill,
    names_secret,
    redacted_words,
    redacted_yaml,
    withhold,
    without_credentials,
)
from plugrl.core.config.sources.compose import compose
from plugrl.core.config.sources.writer import dump_yaml
from plugrl.core.run.shutdown import _LogFile


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


def test_values_at_such_names_and_within_addresses_are_withheld():
    tree = {
        "judge": {"api_key": "sk-1", "max_tokens": 5, "token": None, "password": ""},
        "tokens": ["a", "b"],
        "uri": "postgresql://me:word@host:5432/db",
        "url": "https://host/x?write_token=abc&page=2",
        "plain": "https://host/x?page=2",
    }
    public, apart = withhold(tree)
    assert public == {
        "judge": {"api_key": HIDDEN, "max_tokens": 5, "token": None, "password": ""},
        "tokens": [HIDDEN, HIDDEN],
        "uri": f"postgresql://{HIDDEN}@host:5432/db",
        "url": f"https://host/x?write_token={HIDDEN}&page=2",
        "plain": "https://host/x?page=2",
    }
    fill(public, apart)
    assert public == tree


@pytest.mark.parametrize(
    "word",
    ["sk-proj-0123456789abcdef0123", "hf_abcdefghijklmnopqrst", "ghp_abcdefghijklmnopqrstuv",
     "AKIAIOSFODNN7EXAMPLE", "xoxb-1234567890-abcdef", "eyJhbGciOiJI.eyJzdWIiOiIx.abc-def_ghi",
     "-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc\n-----END RSA PRIVATE KEY-----"],
)  # fmt: skip
def test_words_with_the_form_of_a_key_are_hidden_wherever_they_stand(word):
    assert without_credentials(f"of {word}, and more") == f"of {HIDDEN}, and more"
    assert withhold({"free": {"text": [word]}})[0] == {"free": {"text": [HIDDEN]}}


@pytest.mark.parametrize(
    "text",
    ["sk-learn", "sk-short-1", "task-0123456789abcdef0123", "risk_factor", "hf_model", "a-b_c",
     "Qwen/Qwen2.5-0.5B-Instruct", "/data/sk_learn_classification_models.json", "eyJ.eyJ"],
)  # fmt: skip
def test_other_words_stay(text):
    assert without_credentials(text) == text


def test_no_option_of_a_component_is_taken_for_a_credential_but_keys_of_services():
    # Only text is withheld, so that max_tokens and the like are none.
    declared = re.compile(r"^    (\w+): ([^=\n]*str[^=\n]*) = described\(", re.MULTILINE)
    names = {
        name
        for file in Path(plugrl.__file__).parent.rglob("*.py")
        for name, _ in declared.findall(file.read_text("utf-8"))
    }
    assert len(names) > 100
    # The second says where a cluster keeps them, which is nobody's business either.
    assert {name for name in names if names_secret(name)} == {"api_key", "secrets"}


def test_text_of_the_environment_is_shown_as_it_was_written(monkeypatch):
    monkeypatch.setenv("PLACE", "/home/me")
    monkeypatch.setenv("SEED", "7")
    composed = compose(
        {
            "a": "${oc.env:PLACE}/x", "b": "${env.PLACE}", "c": "${a}",
            "d": {"e": ["${.b}", "${b}"]}, "f": "${oc.env:NOT_THERE_X,7}",
            "g": "other", "h": "${g}", "trainer": {"copy": "x"}, "seed": "${oc.env:SEED}",
            "my_token": "${oc.env:PLACE,fallback}",
        }
    )  # fmt: skip
    # Validation makes numbers of text, and copies of values.
    tree = {**composed.tree, "seed": 7, "moved": {"b": "/home/me"}}
    public, apart = withhold(tree, composed.references, composed.tree)
    assert public == {
        "a": "${oc.env:PLACE}/x",
        "b": "${env.PLACE}",
        "c": "${a}",
        "d": {"e": [None, "${b}"]},
        "f": "${oc.env:NOT_THERE_X,7}",
        "g": "other",
        "h": "other",
        "trainer": {"copy": "x"},
        "seed": 7,
        "my_token": "${oc.env:PLACE}",
        "moved": {"b": "${env.PLACE}"},
    }
    read = yaml.safe_load(dump_yaml(public))
    assert read == public
    fill(read, apart)
    assert read == tree


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a: {api_key: planted, b: 1}  # mine\n", f"a: {{api_key: {HIDDEN}, b: 1}}  # mine\n"),
        ("token: &t 'planted'\nb: *t\n", f"token: &t '{HIDDEN}'\nb: *t\n"),
        ("secret: |\n  planted\n  more\nb: 1\n", f"secret: {HIDDEN}\nb: 1\n"),
        ("tokens: [planted, x]\n", f"tokens: [{HIDDEN}, {HIDDEN}]\n"),
        ("api_key: ${oc.env:K,planted}\n", "api_key: ${oc.env:K}\n"),
        ("api_key: ${env.K}\nseed: 1\n", "api_key: ${env.K}\nseed: 1\n"),
        ("# hf_plantedplantedplanted\nseed: 1\n", f"# {HIDDEN}\nseed: 1\n"),
    ],
)
def test_what_a_user_wrote_is_kept_but_for_its_credentials(text, shown):
    assert redacted_yaml(text) == shown


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["judge.api_key=planted"], [f"judge.api_key={HIDDEN}"]),
        (["trackers=[{type: x, token: planted}]"], [f"trackers=[{{type: x, token: {HIDDEN}}}]"]),
        (["tokens[0]=planted", "tokens.1=planted"], [f"tokens[0]={HIDDEN}", f"tokens.1={HIDDEN}"]),
        (["my.py", "--api-key", "planted", "run"], ["my.py", "--api-key", HIDDEN, "run"]),
        (["--token=planted"], [f"--token={HIDDEN}"]),
        (["a.url=https://me:planted@host"], [f"a.url=https://{HIDDEN}@host"]),
        (["api_key=[planted"], [f"api_key={HIDDEN}"]),
        (["data.prompt_key=question", "seed=1"], ["data.prompt_key=question", "seed=1"]),
    ],
)
def test_words_of_a_command_are_kept_but_for_their_credentials(words, shown):
    assert redacted_words(words) == shown


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
