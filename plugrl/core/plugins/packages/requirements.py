"""What plugins require, against what is installed."""

from __future__ import annotations

import re
from collections.abc import Iterable

from plugrl.core.plugins.kinds import OWN
from plugrl.core.plugins.user_code.error_location import first_line
from plugrl.core.wording import did_you_mean

_EXTRA = re.compile(r"""extra == ["']([^"']+)["']""")


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


def missing_package(distribution: str | None, error: BaseException) -> str | None:
    """What a component of a distribution lacks, and what installs it, for the end of a message.

    That is an extra of the distribution where one brings the package, such as ``plugrl[text]``,
    else the package itself. None: the error is another one, or the distribution does not ask for
    the package.
    """
    requirement = _requirement(distribution, error)
    if requirement is None:
        return None
    module = getattr(error, "name", None)
    return f'needs {module}, which is not installed; run: pip install "{requirement}"'


def _requirement(distribution: str | None, error: BaseException) -> str | None:
    from importlib.metadata import PackageNotFoundError, requires

    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    if not isinstance(error, ModuleNotFoundError) or not error.name or distribution is None:
        return None
    try:
        wanted = [Requirement(text) for text in requires(distribution) or ()]
    except PackageNotFoundError:
        return None
    package = canonicalize_name(error.name.partition(".")[0])
    asked = [each for each in wanted if canonicalize_name(each.name) == package]
    extras = [
        found[1]
        for each in asked
        if each.marker is not None and (found := _EXTRA.search(str(each.marker)))
    ]
    if extras:
        return f"{distribution}[{extras[0]}]"
    return asked[0].name if asked else None
