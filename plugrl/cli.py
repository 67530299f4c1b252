"""The table of commands, and the entry point that turns errors into lines and exit codes."""

from __future__ import annotations

from collections.abc import Sequence

from plugrl.commands._group import CommandRow
from plugrl.commands._main import run

COMMANDS = (
    CommandRow("train", "Train from a configuration file or a recipe.", "plugrl.commands.train"),
    CommandRow("resume", "Continue a run from its newest checkpoint.", "plugrl.commands.resume"),
    CommandRow("launch", "Train on a cluster.", "plugrl.commands.launch"),
    CommandRow("jobs", "List, follow and stop launched jobs.", "plugrl.commands.jobs"),
    CommandRow("watch", "Follow a run: curves and samples.", "plugrl.commands.watch"),
    CommandRow("replay", "Repeat a step that a run dumped.", "plugrl.commands.replay"),
    CommandRow("eval", "Evaluate a run or a model.", "plugrl.commands.eval"),
    CommandRow("sample", "Ask the model of a run or a folder.", "plugrl.commands.sample"),
    CommandRow("serve", "Serve the model of a run or a folder.", "plugrl.commands.serve"),
    CommandRow("export", "Write a run's model for other software.", "plugrl.commands.export"),
    CommandRow("push", "Publish a run's model on the hub.", "plugrl.commands.push"),
    CommandRow("sweep", "Train over a grid of values and seeds.", "plugrl.commands.sweep"),
    CommandRow("validate", "Check a configuration and print its plan.", "plugrl.commands.validate"),
    CommandRow("config", "Show, explain and compare configurations.", "plugrl.commands.config"),
    CommandRow("plugins", "List, explain and check the plugins.", "plugrl.commands.plugins"),
    CommandRow("ls", "List what a configuration can name.", "plugrl.commands.ls"),
    CommandRow("runs", "List the runs and look into one.", "plugrl.commands.runs"),
    CommandRow("report", "Write a page about runs with curves.", "plugrl.commands.report"),
    CommandRow("new", "Write a new plugin or experiment.", "plugrl.commands.new"),
    CommandRow(
        "bench",
        "Run a benchmark of the source checkout.",
        "plugrl.commands.bench",
        passes_words=True,
    ),
    CommandRow("env", "Describe this environment for a report.", "plugrl.commands.env"),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line (``sys.argv`` by default) and exit with its code."""
    run(COMMANDS, arguments)
