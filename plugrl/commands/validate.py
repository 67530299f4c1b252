"""``plugrl validate``: every fault of a configuration in one report, and its batch plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plugrl.commands._run_arguments import AsJson

if TYPE_CHECKING:
    from plugrl.core.experiment import Experiment

EXAMPLES = """
plugrl validate quickstart
plugrl validate experiment.yaml data.batch_size=64
plugrl validate experiment.yaml --config-path shared/configs --json
"""


def command(
    config: Annotated[str, typer.Argument(help="A YAML file, or the name of a recipe.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Values to change.")
    ] = None,
    config_path: Annotated[
        list[Path] | None, typer.Option("--config-path", help="A folder with files for `defaults`.")
    ] = None,
    setup: Annotated[
        bool, typer.Option("--setup", help="Run environment.setup_script first, as train does.")
    ] = False,
    devices: Annotated[
        int | None,
        typer.Option(
            "--devices",
            min=1,
            help="Also print memory and communication of each of so many devices that train.",
        ),
    ] = None,
    machines: Annotated[
        int, typer.Option("--machines", min=1, help="Which have the devices, as many each.")
    ] = 1,
    as_json: AsJson = False,
) -> None:
    """Check a configuration and print its batch plan.

    All faults come in one report: unknown keys, wrong types, unknown components, broken rules.
    """
    from plugrl.commands._output import emit_json
    from plugrl.core.errors import ConfigError, UsageError
    from plugrl.core.experiment import prepare

    if (devices or 1) % machines:
        raise UsageError(
            f"--machines {machines}: they have as many devices each; give a number that divides "
            f"--devices, which is {devices or 'not given'}"
        )
    try:
        experiment = prepare(config, overrides or (), config_path=config_path or (), setup=setup)
    except ConfigError as error:
        if not as_json:
            raise
        emit_json({"ok": False, "faults": list(error.faults)})
        raise typer.Exit(error.exit_code) from None
    report(experiment, devices=devices, machines=machines, as_json=as_json)


def report(
    experiment: Experiment, *, devices: int | None = None, machines: int = 1, as_json: bool
) -> None:
    """Print that a configuration is valid, what no schema describes, and the batch plan.

    Args:
        experiment: that was checked.
        devices: of which the plan is printed too; None: it is not.
        machines: which have the devices.
        as_json: print JSON.
    """
    from plugrl.commands._output import emit_json
    from plugrl.core.config.plan import batch_plan, device_plan, plan_text
    from plugrl.core.wording import shown

    validated = experiment.validated
    rows = batch_plan(validated)
    plans = {} if devices is None else device_plan(validated, devices, machines)
    if as_json:
        plan = [{"what": what, "count": count} for what, count in rows]
        unchecked = {"unchecked": validated.unchecked, "did_you_mean": validated.meant}
        own = {name: dict(each) for name, each in plans.items()}
        emit_json(
            {"ok": True, **unchecked, "batch_plan": plan, **({"devices": own} if own else {})}
        )
        return
    print("ok")
    for line in validated.unchecked_lines:
        print(shown(line))
    if rows:
        print(plan_text(rows))
    for name, each in plans.items():
        where = f" of {machines} machines" if machines > 1 else ""
        on = f"{devices} device" if devices == 1 else f"{devices} devices"
        print(f"\nmodel {name} on {on}{where}")
        print(plan_text(each))
