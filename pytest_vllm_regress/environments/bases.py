"""Choose the release that provides a commit's compiled parts and dependencies, and describe the
result: version and remarks."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from ..errors import BuildError, UsageError
from ..util.versions import marker_holds, requirement_of, version_of
from .git import Repository
from .locks import release_date
from .recipes import pins
from .releases import newest_release, pin_of, releases
from .sources import Source, SourceProject

COMPILED_AGAINST = (
    *("torch", "torchaudio", "torchvision", "xformers", "triton", "vllm-flash-attn"),
    *(
        "flashinfer-python",
        "flashinfer-cubin",
    ),  # the second has the kernels of the first, which refuses another version
)
"""Packages that compiled parts need in exactly the wheel's version, whatever the commit requires.
"""


def base_release(source: Source) -> str:
    """Return the release whose wheel fits the source best.

    With tags in the clone, the candidates are the newest release in its history, the newest at its
    date and the first that contains it; the one whose requirements and compiled sources differ
    least is chosen. Without tags it is the first release after its date, if that pins the commit's
    torch, else the newest at its date. Raises ``UsageError`` for a commit older than the first
    release, ``BuildError`` if the package index cannot be reached.
    """
    project, commit = source.project, source.commit
    newest = newest_release(project.distribution, commit.day)
    if newest is None:
        raise UsageError(
            f"{commit.id[:10]} ({commit.day}) is older than every release of {project.distribution} with a wheel for this platform: "
            "there are no compiled parts for it"
        )
    tagged = release_tags(source.repository)
    if Version(newest) in tagged:
        return str(_best_fitting(source, tagged, Version(newest)))
    torch = _torch(source)
    if torch is None:
        return newest
    # Code that registers an operator fails to import over older compiled parts; newer ones only
    # have additional operators.
    later = next(
        (str(version) for version in releases(project.distribution) if version > Version(newest)),
        None,
    )
    if later is not None and pin_of(project.distribution, later, "torch") == torch:
        return later
    return newest


def reported_version(source: Source, release: str) -> str:
    """Return the version that setuptools-scm would give the source: ``0.8.5.dev123+g0e42544`` for
    123 commits after 0.8.4.

    Counts from the base ``release``, or from the newest release at the source's date if the base is
    newer than the source.
    """
    start = _commit_of(source, release)
    if start is None or (
        start != source.commit.id and source.repository.is_ancestor(source.commit.id, start)
    ):
        release = newest_release(source.project.distribution, source.commit.day) or release
        start = _commit_of(source, release)
    version = Version(release)
    if start == source.commit.id and not source.changed:
        return f"{version.public}+{source.label}"
    distance = 0  # unknown
    if start is not None and not source.repository.is_shallow:
        distance = source.repository.count(start, source.commit.id)
    *head, last = version.release
    return f"{'.'.join(map(str, (*head, last + 1)))}.dev{distance}+{source.label}"


def remarks(source: Source, release: str) -> str:
    """Describe what an environment takes from the release instead of the source; empty for a
    package without compiled parts."""
    project = source.project
    if not project.compiled:
        return ""
    start = _commit_of(source, release)
    if start is None:
        difference = "how csrc differs is not known"
    else:
        count = len(source.repository.differing(start, source.commit.id, *project.compiled))
        difference = f"{count or 'no'} file{'s' * (count != 1)} of csrc and cmake differ{'s' * (count == 1)} from it"
    return f"compiled parts of the {release} wheel; {difference}"


def unmet_requirements(
    source: Source, installed: Mapping[str, str], python: str, chosen: Iterable[str]
) -> tuple[str, ...]:
    """Return the requirements of the source that an environment does not meet. ``installed`` maps
    normalized names to versions.

    Ignores packages that are bound to the compiled parts, and those for which the recipe has
    ``chosen`` a version.
    """
    fixed = {*COMPILED_AGAINST, *chosen, source.project.distribution}
    environment = {"python_version": python, "python_full_version": f"{python}.0"}
    missing = {}
    for requirement in requirement_lines(source):
        name = str(canonicalize_name(requirement.name))
        if name in fixed or (
            requirement.marker and not marker_holds(requirement.marker, environment)
        ):
            continue
        if name not in installed or not requirement.specifier.contains(
            installed[name], prereleases=True
        ):
            missing[name] = str(requirement)
    return tuple(missing[name] for name in sorted(missing))


def requirement_lines(source: Source) -> tuple[Requirement, ...]:
    """Return the requirements in the source's requirement files, without options and invalid lines."""
    lines = (
        line.partition(" #")[0].strip()
        for path in source.requirement_files()
        for line in (source.read(path) or b"").decode(errors="replace").splitlines()
    )
    parsed = (requirement_of(line) for line in lines if not line.startswith(("#", "-")))
    return tuple(requirement for requirement in parsed if requirement is not None)


def requirements_day(source: Source) -> datetime.date:
    """Return the date of the last change to the commit's requirement files, for which dependencies
    are resolved."""
    last = source.repository.last_change(source.commit.id, source.requirement_files())
    return (source.repository.commit(last) if last else source.commit).day


def release_tags(repository: Repository, *options: str) -> Mapping[Version, str]:
    """Map final releases to the commits of their tags (v0.8.4, 0.10.6). ``options``: as for
    ``Repository.tags``."""
    tags = {}
    for name, commit in repository.tags(*options).items():
        version = version_of(name.removeprefix("v"))
        if version is not None and not version.is_prerelease and version.local is None:
            tags[version] = commit
    return tags


def first_release_with(source: Source) -> str | None:
    """Return the first release with the commit by the tags of the clone; None if no tag has it.

    The day of a release does not tell: a release branch is cut days before.
    """
    with_commit = release_tags(source.repository, "--contains", source.commit.id)
    return str(min(with_commit)) if with_commit else None


def release_commit(
    project: SourceProject,
    repository: Repository,
    release: str,
    branch: str,
    *,
    until: datetime.date | None = None,
) -> str | None:
    """Return the commit of a release: of its tag, else the last one on ``branch`` before its upload
    date; None if unknown, or if that is after ``until``."""
    tagged = release_tags(repository).get(Version(release))
    if tagged is not None:
        return tagged
    day = _known_date(project, release)
    if day is None or (until is not None and day > until):
        return None
    return repository.newest_before(day, branch)


def _commit_of(source: Source, release: str) -> str | None:
    """Return the commit of the release's tag, else its position in the source's history; None for a
    newer release without a tag."""
    commit = source.commit
    return release_commit(source.project, source.repository, release, commit.id, until=commit.day)


def _known_date(project: SourceProject, release: str) -> datetime.date | None:
    """Return the upload date of a release; None if it is not on the index."""
    try:
        return release_date(project.distribution, release)
    except BuildError:
        return None


def _best_fitting(source: Source, tagged: Mapping[Version, str], newest: Version) -> Version:
    project, repository, commit = source.project, source.repository, source.commit.id
    before = max(release_tags(repository, "--merged", commit), default=newest)
    after = min(release_tags(repository, "--contains", commit), default=newest)
    candidates = [
        version
        for version in sorted({before, newest, after})
        if _known_date(project, str(version)) is not None
    ]
    paths = (*project.compiled, *project.requirement_files)
    if not paths:
        return max(version for version in candidates if version in (before, newest))

    def misfit(version: Version) -> tuple[bool, int, int]:
        release = Source(project, repository, repository.commit(tagged[version]))
        return (
            _torch(source) != _torch(release),
            len(repository.differing(tagged[version], commit, *paths)),
            -candidates.index(version),
        )

    return min(candidates, key=misfit)


def _torch(source: Source) -> str | None:
    """Return the version of torch that the source pins."""
    requirements = requirement_lines(source)
    return pins(f"{line.name}{line.specifier}" for line in requirements).get("torch")
