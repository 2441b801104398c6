"""Which releases a bisection chooses from, and the environments that have them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from ..cases.model import Case
from ..environments.git import Commit
from ..environments.index import between
from ..environments.sources import PROJECTS
from ..errors import UsageError
from ..util.validation import shown
from ..util.versions import specifiers_of, version_of


def environment_names(case: Case, package: str, env: str | None) -> Callable[[str], str]:
    """From a release to the environment that has it. Raises ``UsageError`` where none can be named."""
    from ..environments.recipes import PACKAGES

    if package in PACKAGES:
        if env is not None:
            raise UsageError(f"--env is for --package: the environment of {package} X is {package}-X")
        return lambda version: f"{package}-{version}"
    base = _base(case, package, env)
    return lambda version: f"{base}+{package}=={version}"


def commit_environments(case: Case, package: str, env: str | None) -> Callable[[Commit], str]:
    """From a commit to the environment that has it: over ``env``, else over what fits best. Raises ``UsageError`` where none can be named."""
    if package not in PROJECTS:
        raise UsageError(f"--commits: {package} cannot be run from source; allowed are {', '.join(PROJECTS)}")
    base = env if package == "vllm" else _base(case, package, env)
    prefix = f"{base}+" if base else ""
    return lambda commit: f"{prefix}{package}@{commit.id[:10]}"


def _base(case: Case, package: str, env: str | None) -> str:
    """The environment that takes versions of ``package`` in turn."""
    from ..environments.names import resolve

    named = (*case.evidence.affected, *case.evidence.fixed)
    base = env or next(
        (
            name
            for name in named
            if package in {canonicalize_name(Requirement(line).name) for line in resolve(name).overrides}
        ),
        next(iter(named), None),
    )
    if base is None:
        raise UsageError(
            f"{case.id} names no evidence environment: give one by --env NAME, for example --env vllm-0.8.5"
        )
    resolve(base)
    return base


def choose(
    case: Case, package: str, found: Sequence[Version], wanted: str | None, good: str | None, bad: str | None
) -> tuple[Version, ...]:
    """The releases to search, oldest first: as asked for, else from the oldest that the case's evidence or range names to the newest."""
    if wanted is not None and (good or bad):
        raise UsageError("--releases and --good/--bad contradict each other: give the ends one way")
    if (good is None) != (bad is None):
        raise UsageError("--good and --bad belong together: give both ends, or --releases")
    if good is not None and bad is not None:
        low, high = sorted((_version(good, "--good"), _version(bad, "--bad")))
        text = f">={low},<={high}"
    else:
        text = wanted or f">={_oldest(case, package)}"
    specifiers = specifiers_of(text)
    if specifiers is None:
        raise UsageError(
            f"--releases {shown(wanted)}: not a PEP 440 specifier; allowed is for example '>=0.7.3,<=0.9.2'"
        )
    chosen = between(tuple(found), specifiers)
    if len(chosen) < 2:
        raise UsageError(
            f"{package} {text}: {len(chosen)} of {len(found)} releases; a bisection needs two. Give others by --releases"
        )
    return chosen


def _oldest(case: Case, package: str) -> Version:
    """The oldest release of ``package`` that the case's evidence or range speaks of."""
    from ..environments.names import resolve
    from ..environments.recipes import pinned

    found = [
        Version(bound.version)
        for each in case.affected
        if each.package == package
        for bound in SpecifierSet(each.specifier)
        if bound.operator in (">=", ">", "==", "~=") and "*" not in bound.version
    ]
    for name in (*case.evidence.affected, *case.evidence.fixed):
        recipe = resolve(name)
        pins = [pin for line in (*recipe.requirements, *recipe.overrides) if (pin := pinned(line))]
        found += [Version(version) for distribution, version in pins if distribution == package]
    if not found:
        raise UsageError(
            f"{case.id} names no version of {package}: say which releases to try by --releases '>=...,<=...'"
        )
    return min(found)


def _version(text: str, option: str) -> Version:
    found = version_of(text)
    if found is None:
        raise UsageError(f"{option} {shown(text)}: not a version")
    return found
