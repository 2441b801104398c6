"""The releases that a bisection chooses from, and the environments of releases and commits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from ...cases.model import Case
from ...environments.git import Commit
from ...environments.index.releases import between
from ...environments.sources import PROJECTS
from ...errors import UsageError
from ...util.validation import format_value
from ...util.versions import specifiers_of, version_of


def environment_names(case: Case, package: str, env: str | None) -> Callable[[str], str]:
    """Return a function from a release of ``package`` to the name of its environment.

    ``env`` is the base environment that takes the releases in turn. Raises ``UsageError`` if no
    name can be derived.
    """
    from ...environments.recipes import PACKAGES

    if package in PACKAGES:
        if env is not None:
            raise UsageError(
                f"--env is for another package: the environment of {package} X is {package}-X"
            )
        return lambda version: f"{package}-{version}"
    base = _base(case, package, env)
    return lambda version: f"{base}+{package}=={version}"


def commit_environments(case: Case, package: str, env: str | None) -> Callable[[Commit], str]:
    """Return a function from a commit to the name of its environment: on top of ``env``, else of
    the best matching release.

    Raises ``UsageError`` if no name can be derived.
    """
    if package not in PROJECTS:
        raise UsageError(
            f"--commits: {package} cannot be run from source; allowed are {', '.join(PROJECTS)}"
        )
    base = env if package == "vllm" else _base(case, package, env)
    prefix = f"{base}+" if base else ""
    return lambda commit: f"{prefix}{package}@{commit.id[:10]}"


def choose_releases(
    case: Case,
    package: str,
    available: Sequence[Version],
    specifier: str | None,
    ends: tuple[str | None, str | None],
) -> tuple[Version, ...]:
    """Return the releases to search, oldest first: those in ``specifier``, or those between
    ``ends`` (good and bad).

    Without either, start at the oldest release that the case's evidence or range names.
    """
    good, bad = ends
    if specifier is not None and (good or bad):
        raise UsageError("--releases and --good/--bad contradict each other: give the ends one way")
    if (good is None) != (bad is None):
        raise UsageError("--good and --bad belong together: give both ends, or --releases")
    if good is not None and bad is not None:
        low, high = sorted((_version(good, "--good"), _version(bad, "--bad")))
        text = f">={low},<={high}"
    else:
        text = specifier or f">={_oldest(case, package)}"
    specifiers = specifiers_of(text)
    if specifiers is None:
        raise UsageError(
            f"--releases {format_value(specifier)}: not a PEP 440 specifier; allowed is for example '>=0.7.3,<=0.9.2'"
        )
    chosen = between(tuple(available), specifiers)
    if len(chosen) < 2:
        raise UsageError(
            f"{package} {text}: matches {len(chosen)} of {len(available)} releases; a bisection needs two. "
            f"Give {'other ends' if good else 'another range with --releases'}"
        )
    return chosen


def _base(case: Case, package: str, env: str | None) -> str:
    """Return the environment that takes versions of ``package``:

    ``env``, else the best evidence environment of the case.
    """
    from ...environments.names import resolve

    evidence = (*case.evidence.affected, *case.evidence.fixed)

    def overrides_package(name: str) -> bool:
        return package in {
            canonicalize_name(Requirement(line).name) for line in resolve(name).overrides
        }

    base = env or next(filter(overrides_package, evidence), next(iter(evidence), None))
    if base is None:
        raise UsageError(
            f"{case.id} names no evidence environment: give one by --env NAME, for example --env vllm-0.8.5"
        )
    resolve(base)
    return base


def _oldest(case: Case, package: str) -> Version:
    """Return the oldest release of ``package`` that the case's evidence or range names."""
    from ...environments.names import resolve
    from ...environments.recipes import parse_pin

    versions = [
        Version(bound.version)
        for affected in case.affected
        if affected.package == package
        for specifiers in affected.alternatives
        for bound in specifiers
        if bound.operator in (">=", ">", "==", "~=") and "*" not in bound.version
    ]
    for name in (*case.evidence.affected, *case.evidence.fixed):
        recipe = resolve(name)
        pins = [
            pin for line in (*recipe.requirements, *recipe.overrides) if (pin := parse_pin(line))
        ]
        versions += [Version(version) for distribution, version in pins if distribution == package]
    if not versions:
        raise UsageError(
            f"{case.id} names no version of {package}: give a range with --releases '>=...,<=...'"
        )
    return min(versions)


def _version(text: str, option: str) -> Version:
    version = version_of(text)
    if version is None:
        raise UsageError(f"{option} {format_value(text)}: not a version")
    return version
