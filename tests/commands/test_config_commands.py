from __future__ import annotations

import io
import json
import sys

import pytest
import yaml

from plugrl.cli import main

CONFIG = """\
experiment_name: mine
scenario: arithmetic
models:
  policy:
    source:
      config: {model_type: qwen3, hidden_size: 8, intermediate_size: 8, num_hidden_layers: 1}
      tokenizer: {characters: "01+="}
    train: {type: local, micro_batch_size: 3}
trainer: {type: self_hosted_grpo, total_train_steps: 7}
data: {batch_size: 2, rollout_repeat_n: 4}
rollout_worker: {max_prompt_length: 6, max_response_length: 4, evaluator: exact_match}
"""


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Run the command line; give exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(CONFIG)

    def run(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            main(words)
        out, err = capsys.readouterr()
        return int(caught.value.code or 0), out, err

    return run


def test_validate_prints_ok_and_the_batch_plan(command):
    assert command("validate", "mine.yaml") == (
        0,
        "ok\n"
        "prompts a step               2\n"
        "samples a prompt             4\n"
        "sequences a step             2 x 4 = 8\n"
        "tokens a sequence, at most   6 + 4 = 10\n"
        "sequences an optimizer step  8\n"
        "micro-batches                3 of 3, the last of 2\n"
        "optimizer steps a step       1 x 1 = 1\n"
        "steps                        7\n"
        "sequences in all             56\n"
        "optimizer steps in all       7\n",
        "",
    )


def test_validate_as_json(command):
    code, out, _ = command("validate", "mine.yaml", "--json")
    report = json.loads(out)
    assert code == 0
    assert report["ok"] is True
    assert report["batch_plan"][0] == {"what": "prompts a step", "count": "2"}


def test_validate_reports_all_faults(command):
    code, out, err = command(
        "validate", "mine.yaml", "data.batch_siz=1", "trainer.total_train_steps=x"
    )
    assert code == 2
    assert out == ""
    assert err.splitlines() == [
        "error: mine.yaml is wrong: 2 faults",
        "  trainer.total_train_steps (command line): must be a whole number, not 'x'",
        "  data.batch_siz (command line): unknown key; did you mean batch_size?",
    ]


def test_validate_reports_faults_as_json(command):
    code, out, _ = command("validate", "mine.yaml", "seed=x", "--json")
    assert code == 2
    assert json.loads(out) == {
        "ok": False,
        "faults": ["seed (command line): must be a whole number, not 'x'"],
    }


def test_a_missing_file(command):
    code, out, err = command("validate", "quickstar")
    assert (code, out) == (2, "")
    assert err == (
        "error: quickstar: no such file or recipe; did you mean quickstart, red_team_quickstart?\n"
    )


@pytest.mark.parametrize(
    "text", ["a: [1\n", "a: 1\na: 2\n", "- 1\n", "trainer: {type: [x]}\n", "\x00"]
)
def test_bad_files_give_lines_and_no_traceback(command, tmp_path, text):
    (tmp_path / "bad.yaml").write_text(text)
    code, out, err = command("validate", "bad.yaml")
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    assert err.startswith("error: ")


def test_the_packaged_recipe_is_valid(command):
    code, out, _ = command("validate", "quickstart")
    assert code == 0
    assert "grpo: sequences a step" in out


def test_show_gives_a_file_that_means_the_same(command, tmp_path):
    code, out, _ = command("config", "show", "mine.yaml", "seed=5")
    assert code == 0
    (tmp_path / "shown.yaml").write_text(out)
    assert command("config", "diff", "mine.yaml", "shown.yaml") == (
        0,
        "KEY   mine.yaml  shown.yaml\nseed  0          5\n",
        "",
    )
    # Programs ask for the same keys whatever is compared.
    _, out, _ = command("config", "diff", "mine.yaml", "shown.yaml", "--json")
    assert json.loads(out) == [{"key": "seed", "a": "0", "b": "5"}]


def test_a_terminal_without_the_characters_gets_escapes(command, monkeypatch):
    """The locale C is common in containers; YAML has escapes of its own, which mean the same."""

    def shown(*words):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
            code, _, err = command("config", "show", "mine.yaml", "project_name=défi", *words)
            assert (code, err) == (0, "")
            return sys.stdout.buffer.getvalue().decode("ascii")

    assert yaml.safe_load(shown())["project_name"] == "défi"
    (line,) = [line for line in shown("--origin").splitlines() if "project_name" in line]
    assert line.split() == ["project_name", "d\\xe9fi", "command", "line"]


def test_show_says_where_each_value_comes_from(command):
    _, out, _ = command("config", "show", "mine.yaml", "data.batch_size=3", "--origin", "--json")
    rows = {row["key"]: row for row in json.loads(out)}
    assert rows["data.batch_size"] == {
        "key": "data.batch_size",
        "value": "3",
        "origin": "command line",
    }
    assert rows["data.rollout_repeat_n"]["origin"] == "mine.yaml:10"
    assert rows["seed"] == {"key": "seed", "value": "0", "origin": "default"}


def test_show_as_json(command):
    _, out, _ = command("config", "show", "mine.yaml", "--json")
    assert json.loads(out)["data"]["batch_size"] == 2


def test_diff_of_run_folders_and_absent_keys(command, tmp_path):
    _, out, _ = command("config", "show", "mine.yaml")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(
        out.replace("type: exact_match", "type: exact_match")
    )
    (tmp_path / "other.yaml").write_text(CONFIG.replace(", evaluator: exact_match", ""))
    _, out, _ = command("config", "diff", "run", "other.yaml", "--json")
    rows = {row["key"]: (row["a"], row["b"]) for row in json.loads(out)}
    assert rows["rollout_worker.evaluator.type"] == ("exact_match", "(absent)")
    assert rows["rollout_worker.evaluator"] == ("(absent)", "null")


def test_schema_of_a_component(command):
    _, out, _ = command("config", "schema", "loss", "clipped", "--json")
    rows = {row["key"]: row for row in json.loads(out)}
    assert rows["clip_ratio_low"]["type"] == "float, at least 0 and at most 1"
    assert rows["clip_ratio_low"]["default"] == 0.2


def test_schema_of_a_section(command):
    _, out, _ = command("config", "schema", "section", "models")
    assert out.splitlines()[0].split() == ["KEY", "TYPE", "DEFAULT", "HELP"]
    assert "NAME.inference" in out
    for section in ("data", "trackers", "seed", "trainer"):
        assert command("config", "schema", "section", section)[0] == 0


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("section", "dat"), "error: there is no section 'dat'; did you mean data?"),
        (("los", "clipped"), "error: there is no kind 'los'; did you mean loss?"),
        (("loss", "cliped"), "error: unknown loss 'cliped'; did you mean clipped?"),
    ],
)
def test_schema_of_what_is_not_there(command, words, line):
    code, out, err = command("config", "schema", *words)
    assert (code, out) == (2, "")
    assert err.startswith(line)


@pytest.mark.parametrize(
    "words", [("validate",), ("config", "show"), ("config", "schema"), ("config", "diff")]
)
def test_help_ends_with_examples(command, words):
    code, out, _ = command(*words, "--help")
    assert code == 0
    assert "plugrl " + " ".join(words) in out[out.index("Examples:") :]


SECRETS = {
    "HF_TOKEN": "hf_abcdefgh12345678",
    "PLACE": "/secret/place",
    "ADDRESS": "https://user:pass-word@host/x",
}


@pytest.fixture
def secret(command, tmp_path, monkeypatch):
    """The same with a credential, one within an address, and text of the environment."""
    monkeypatch.setenv("MY_PLACE", SECRETS["PLACE"])
    tree = yaml.safe_load(CONFIG)
    tree["environment"] = {"variables": {**SECRETS, "PLACE": "${oc.env:MY_PLACE}"}}
    (tmp_path / "secret.yaml").write_text(yaml.safe_dump(tree))
    return command


@pytest.mark.parametrize(
    "words", ["show secret.yaml", "show secret.yaml --origin", "show secret.yaml --json",
              "diff mine.yaml secret.yaml", "diff secret.yaml mine.yaml --json"]
)  # fmt: skip
def test_config_shows_what_stays_on_the_machine_only_when_asked(secret, words):
    code, out, err = secret("config", *words.split())
    assert (code, err) == (0, "")
    assert not [text for text in ("abcdefgh", "/secret", "pass-word") if text in out]
    assert "<hidden>" in out
    assert "${oc.env:MY_PLACE}" in out
    assert "https://<hidden>@host/x" in out
    _, out, _ = secret("config", *words.split(), "--reveal")
    assert [text for text in SECRETS.values() if text in out] == list(SECRETS.values())


def test_config_of_a_run_shows_what_its_file_does(secret, tmp_path):
    from plugrl.core.experiment import prepare
    from plugrl.core.run.run import Run

    experiment = prepare("secret.yaml")
    with Run.create(experiment.validated, experiment.composed) as run:
        run.finish("done")
    code, out, _ = secret("config", "show", str(run.folder))
    assert code == 0
    assert out == (run.folder / "config.yaml").read_text()
    _, out, _ = secret("config", "show", str(run.folder), "--reveal")
    assert [text for text in SECRETS.values() if text in out] == list(SECRETS.values())
    _, out, _ = secret("config", "diff", "secret.yaml", str(run.folder), "--json")
    assert json.loads(out) == []


@pytest.mark.parametrize("name", ["rl", "agents", "ppo", "spg", "text_rl", "red_team", "data"])
def test_the_keys_of_every_section_that_a_trainer_reads(command, name):
    code, out, err = command("config", "schema", "section", name, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)


def test_the_sections_without_a_name(command, registry):
    code, out, _ = command("config", "schema", "section", "--json")
    found = {row["section"]: row["read by"] for row in json.loads(out)}
    for record in registry.records("trainer"):
        for name in registry.load(record).sections:
            assert found[name] == ["all"] or record.name in found[name]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("ppoo", "; did you mean ppo?"),
        ("logger", "; it is another name of trackers: see plugrl config schema section trackers"),
        ("algorithm", ": see plugrl config schema trainer NAME"),
        ("resume", ": write plugrl resume RUN on the command line"),
        ("nothing_like_it", "; see plugrl config schema section"),
    ],
)
def test_the_keys_of_a_section_that_there_is_not(command, name, hint):
    code, out, err = command("config", "schema", "section", name)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: there is no section {name!r}")
    assert err.endswith(f"{hint}\n")


def test_a_component_without_a_name(command):
    code, _, err = command("config", "schema", "sandbox")
    assert (code, err) == (2, "error: name one of the sandboxes; see plugrl ls sandboxes\n")


def test_a_missing_file_is_answered_with_close_ones_beside_it(command):
    assert command("validate", "main.yaml")[2] == (
        "error: main.yaml: no such file or recipe; did you mean mine.yaml?\n"
    )
    assert command("validate", "zzz.yaml")[2] == (
        "error: zzz.yaml: no such file or recipe; see plugrl ls recipes\n"
    )
