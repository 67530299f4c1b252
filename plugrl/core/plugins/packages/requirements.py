"""The plugins that a configuration requires, against those that are installed."""

from __future__ import annotations

from collections.abc import Iterable

from plugrl.core.plugins.kinds import OWN
from plugrl.core.plugins.user_code.error_location import first_line
from plugrl.core.wording import did_you_mean


def check_requirements(requirements: Iterable[str]) -> list[str]:
    """What is wrong with a list such as ``["plugrl-x>=1.2"]``: one line for each unmet entry."""
    from importlib.metadata import PackageNotFoundError, distributions, version

    from packaging.requirements import InvalidRequirement, Requirement

    faults = []
    for text in requirements:
        try:
            requirement = Requirement(text)
        except InvalidRequirement as error:
            reason = first_line(error)
            faults.append(f"{text!r} is not a requirement such as 'plugrl-x>=1.2': {reason}")
            continue
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        try:
            found = version(requirement.name)
        except PackageNotFoundError:
            # Every name of a plugin resembles this one.
            known = {each.name for each in distributions() if each.name} - {OWN}
            close = did_you_mean(requirement.name, known, 1)
            otherwise = f"{close} otherwise" if close else ";"
            faults.append(f'{text} is not installed{otherwise} run: pip install "{text}"')
            continue
        if not requirement.specifier.contains(found, prereleases=True):
            faults.append(
                f"{text} is required, but {requirement.name} {found} is installed; "
                f'run: pip install "{text}"'
            )
    return faults
