"""Every remedy that commands recommend is tried, and helps."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from command_lines import command, meant, told
from packages import packages
from remedies import has, untried
from trials import Read, Trial, tiered_trials

import plugrl
from plugrl.commands import bench
from plugrl.core.plugins.registry import default_registry

REPOSITORY = Path(plugrl.__file__).parents[1]


#: Command lines, part of the message, and the command line that it recommends.
COMMANDS = [
    ("validate -m self-hosted -c sft -r", "works on this machine and has no",
     Read(r"write plugrl (.*)$")),
    ("launch --on slurm", "name a configuration: plugrl launch CONFIG",
     "launch sft --on slurm --dry-run"),
    ("launch sft -m training-service --on slurm --dry-run", "trainer {} is {}, not {}; write -m",
     Read(r"write (-m \S+)", "launch sft {} --on slurm --dry-run".format)),
    ("launch remote_sft --on slurm --dry-run --inference-url my:8000",
     "a training service samples itself; leave it out", "launch remote_sft --on slurm --dry-run"),
    ("validate sft --cfg job", "plugrl has no --cfg: write", told("config show", FILE="sft")),
    ("validate sft --info", "plugrl has no {}: write {}", told("config show", FILE="sft")),
    ("validte sft", "there is no command", meant("{} sft")),
    ("validte sft", "see plugrl --help", told("--help")),
    ("validate sft --jsn", "; did you mean --json?", meant("validate sft {}", r"mean (--\w+)\?")),
    ("validate sft --devices 4 --machines 3", "give a number that divides --devices",
     "validate sft --devices 4 --machines 2"),
    ("validate recipe=", "recipe= needs a value, such as",
     Read(r"such as (recipe=\S+)", "validate {}".format)),
    ("config schema section ppoo", "did you mean ppo?", meant("config schema section {}")),
    ("config schema section logger", "it is another name of", "config schema section trackers"),
    ("config schema section algorithm", "its keys are those of", "config schema trainer sac"),
    ("config schema section zzzz", "see plugrl config schema section", told("config schema")),
    ("config schema loss", "name one of the {}; see plugrl ls {}", told("ls")),
    ("validate zzzz.yaml", "; see plugrl ls recipes", told("ls")),
    ("validate sfft", "did you mean sft", meant("validate {}")),
    ("validate .", "is a folder; name the YAML file in it", "validate sft"),
    ("ls trainerz", "there is no kind", meant("ls {}")),
    ("plugins list --kind trainerz", "there is no kind", meant("plugins list --kind {}")),
    ("plugins show dqnn", "nothing installed is called", meant("plugins show {}")),
    ("plugins show dqnn", "see plugrl plugins list", told("plugins list")),
    (f"bench startp --folder {shlex.quote(str(REPOSITORY / 'benchmarks'))}",
     "there is no benchmark", meant("bench {} --help")),
    ("new plugin plugrl-a --kind trainr", "there is no template for kind",
     meant("new plugin plugrl-a --kind {}")),
    ("new plugin 'A B'", "use small letters, digits and dashes, such as",
     Read(r"such as (\S+)", "new plugin {}".format)),
    ("new plugin json", "choose another name, such as plugrl-{}",
     Read(r"such as (\S+)", "new plugin {}".format)),
    ("new plugin plugrl-dqn --kind trainer", "which is plugrl's own; choose another name",
     Read(r"such as (\S+)", "new plugin {} --kind trainer".format)),
    ("new plugin plugrl-mine --path full", "choose another name or --path",
     "new plugin plugrl-mine --path empty"),
    ("new plugin plugrl-mine --path full", "choose another name",
     "new plugin plugrl-b --path full"),
    ("new plugin plugrl-mine --path full", "or pass --force to overwrite its files",
     "new plugin plugrl-mine --path full --force"),
    ("new plugin plugrl-mine --path a_file", "choose another --path", "new plugin plugrl-mine"),
]  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with files that the commands name."""
    monkeypatch.chdir(tmp_path)
    for name in ("full/plugrl-mine/a.txt", "a_file", "recipe/my_task/my_task.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("defaults: [sft]\n", encoding="utf-8")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "trial", tiered_trials(Trial(says, command, line, then) for line, says, then in COMMANDS)
)
def test_a_remedy_on_the_command_line_helps(trial):
    trial.run()


@pytest.mark.integration
def test_a_checkout_has_the_benchmarks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "_is_checkout", lambda folder: folder != REPOSITORY)
    folder = shlex.quote(str(REPOSITORY / "benchmarks"))
    Trial(_BENCH, command, "bench --list", f"bench --list --folder {folder}").run()


_BENCH = "or give its folder benchmarks with --folder"


@pytest.mark.integration
def test_of_two_configurations_one_is_a_default_of_the_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "b.yaml").write_text("seed: 1\n", encoding="utf-8")

    def second(text):
        defaults, line = re.fullmatch(r"(defaults: \[.*\]) in the second, then (.*)", text).groups()
        (tmp_path / "b.yaml").write_text(f"{defaults}\nseed: 1\n", encoding="utf-8")
        return line.removeprefix("plugrl ")

    line = "validate --config-name sft --config-name b"
    Trial(_TWO, command, line, Read("write (.*)$", second)).run()


_TWO = "two configurations are named, {}: write defaults: [{}, _self_] in the second"


@pytest.mark.integration
@pytest.mark.parametrize("other", ["plugrl-b", "plugrl"])
def test_of_two_packages_with_one_name_the_package_is_written_too(other, monkeypatch, call):
    name = "dqn" if other == "plugrl" else "mine"
    given = {"plugrl-a": {"plugrl.trainers": {name: "own_a:Mine"}}}
    if other != "plugrl":
        given |= {other: {"plugrl.trainers": {name: "own_a:Mine"}}}
    text = (
        "from plugrl.trainers.self_hosted_grpo import SelfHostedGrpoTrainer\n\n\n"
        "class Mine(SelfHostedGrpoTrainer):\n    pass\n"
    )
    with packages(given, {"own_a.py": text}):
        rows = json.loads(call("plugins", "list", "--kind", "trainer", "--json")[1])
        status = next(row["status"] for row in rows if row["distribution"] == "plugrl-a")
        assert has(status, "write {}/{}")
        spelled = re.search(r"write (\S+)", status)[1]
        assert default_registry().resolve("trainer", spelled).distribution == "plugrl-a"


#: The same of a folder with a run.
OF_RUNS = [
    ("train own.yaml --multirun", "plugrl sweep FILE KEY=A,B",
     told("sweep", FILE="own.yaml", KEY="data.batch_size", A="2", B="4")),
    ("train own.yaml -v -q", "-v and -q exclude each other; leave one out", "train own.yaml -q"),
    ("resume latest seed=1", "or begin another run with plugrl train", told("train .*?")),
    ("runs list --state faild", "there is no state", meant("runs list --state {}")),
    ("runs list --runs-folder nowhere", "check --runs-folder", "runs list --runs-folder runs"),
    ("runs show latest --last 3", "--last is of the timeline: add --timeline",
     Read(r"add (--\w+)", "runs show latest --last 3 {}".format)),
    ("report latest --output no/page.html", "choose another file with --output",
     "report latest --output page.html"),
    ("report latest --output .", "name a file in it, such as",
     Read(r"such as (\S+)", "report latest --output {}".format)),
    ("sample latest", "no prompt is given; write one", "sample latest 1+2="),
    ("sample latest", "or --file FILE", "sample latest --file prompts.txt"),
]  # fmt: skip


@pytest.mark.integration
@pytest.mark.parametrize(
    "trial", [Trial(says, command, line, then) for line, says, then in OF_RUNS], ids=str
)
def test_a_remedy_of_a_command_about_runs_helps(trial, shelf, monkeypatch):
    monkeypatch.chdir(shelf)
    (shelf / "prompts.txt").write_text("1+2=\n", encoding="utf-8")
    trial.run()


#: Texts that are short, by their files, and those of tests by themselves.
SHORT = {
    *("commands/_main: ; did you mean", "commands/_main: ; did you mean {}?"),
    *("commands/plugins: write {}/{}", _BENCH, _TWO),
    # tests/commands/test_report.py compares a run with itself, and then with another one.
    "are one run; name another one to compare it with",
}
#: Texts that name no key, value or command.
REASONS = {
    "commands/sweep: --": "tests/commands/test_search.py",
    "write  {}": "says which file is written",
    "change {}": "says which file is changed",
    "the entry points of {} are written in a form": "by hand: tests/testing/test_scaffold.py",
    "{} is no package: neither setup.cfg": "of a folder: tests/testing/test_scaffold.py",
    "{} cannot name a component": "of a name: tests/testing/test_scaffold.py",
    "--inference-url {} is no address": "an address of the user's: tests/commands/test_launch.py",
    "{} cannot name an experiment": "of a name: tests/testing/test_scaffold.py",
}


def test_every_remedy_is_tried_or_names_nothing():
    says = {says for _, says, _ in (*COMMANDS, *OF_RUNS)} | SHORT
    assert untried("commands", says, REASONS) == []
