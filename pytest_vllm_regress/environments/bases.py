"""Which release lends a commit its compiled parts and dependencies, what the commit is called then, and what of it is not its own."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from ..errors import BuildError, UsageError
from .git import Repository
from .index import newest_release, pin_of, releases
from .locks import release_date
from .recipes import pinned
from .sources import Project, Source

COMPILED_AGAINST = ("torch", "torchaudio", "torchvision", "xformers", "triton", "flashinfer-python", "vllm-flash-attn")
"""What a wheel's compiled parts need in just that version: these are the wheel's, whatever the commit asks for."""


def base_release(source: Source) -> str:
    """The release whose wheel fits the source best.

    Where the clone has the tags: of the newest release in its history, the newest of its day and the first that has it, the one whose
    requirements and compiled sources differ least. Else the first after its day, if that has the commit's torch, or the newest of its day.
    Raises ``UsageError`` for a commit from before the first release, ``BuildError`` when the package index cannot be asked.
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
    # Python that registers an operator does not import over compiled parts from before it; that they have more does no harm.
    later = next((str(version) for version in releases(project.distribution) if version > Version(newest)), None)
    if later is not None and pin_of(project.distribution, later, "torch") == torch:
        return later
    return newest


def reported_version(source: Source, release: str) -> str:
    """What a build of the source would be called (as setuptools-scm does it): ``0.8.5.dev123+g0e42544`` 123 commits after 0.8.4.

    Counted from ``release``, the base; where that is younger than the source, from the newest release of the source's day.
    """
    start = _commit_of(source, release)
    if start is None or (start != source.commit.id and source.repository.is_ancestor(source.commit.id, start)):
        release = newest_release(source.project.distribution, source.commit.day) or release
        start = _commit_of(source, release)
    version = Version(release)
    if start == source.commit.id and not source.changed:
        return f"{version.public}+{source.label}"
    distance = 0  # not known
    if start is not None and not source.repository.is_shallow:
        distance = source.repository.count(start, source.commit.id)
    *head, last = version.release
    return f"{'.'.join(map(str, (*head, last + 1)))}.dev{distance}+{source.label}"


def remarks(source: Source, release: str) -> str:
    """What of an environment made from the source is not the source's own, in words; empty for a package without compiled parts."""
    project = source.project
    if not project.compiled:
        return ""
    start = _commit_of(source, release)
    if start is None:
        differ = "how csrc differs is not known"
    else:
        count = len(source.repository.differing(start, source.commit.id, *project.compiled))
        differ = f"{count or 'no'} file{'s' * (count != 1)} of csrc and cmake differ{'s' * (count == 1)} from it"
    return f"compiled parts of the {release} wheel; {differ}"


def unmet(source: Source, installed: Mapping[str, str], python: str, chosen: Iterable[str]) -> tuple[str, ...]:
    """Requirements of the source that an environment does not meet. ``installed``: versions by normalized name.

    Left out: what the compiled parts bind, and packages that the recipe has ``chosen`` a version of.
    """
    fixed = {*COMPILED_AGAINST, *chosen, source.project.distribution}
    missing = {}
    for requirement in requirement_lines(source):
        name = str(canonicalize_name(requirement.name))
        marker = requirement.marker
        if name in fixed or (
            marker and not marker.evaluate({"python_version": python, "python_full_version": f"{python}.0"})
        ):
            continue
        if name not in installed or not requirement.specifier.contains(installed[name], prereleases=True):
            missing[name] = str(requirement)
    return tuple(missing[name] for name in sorted(missing))


def requirement_lines(source: Source) -> tuple[Requirement, ...]:
    """The source's own requirement files, parsed; options and lines that are no requirement are left out."""
    found = []
    for path in source.requirement_files():
        for line in (source.read(path) or b"").decode(errors="replace").splitlines():
            text = line.partition(" #")[0].strip()
            try:
                if text and not text.startswith(("#", "-")):
                    found.append(Requirement(text))
            except InvalidRequirement:
                continue
    return tuple(found)


def requirements_day(source: Source) -> datetime.date:
    """The day by which the commit's requirements were as they are: its dependencies are those of that day."""
    last = source.repository.last_change(source.commit.id, source.requirement_files())
    return (source.repository.commit(last) if last else source.commit).day


def release_tags(repository: Repository) -> Mapping[Version, str]:
    """Tags of final releases (v0.8.4, 0.10.6) with their commits."""
    found = {}
    for name, commit in repository.tags().items():
        try:
            version = Version(name.removeprefix("v"))
        except InvalidVersion:
            continue
        if not version.is_prerelease and version.local is None:
            found[version] = commit
    return found


def first_release_with(source: Source) -> str | None:
    """The first release that has the commit: by ancestry where the clone has the tags, else the one after the newest of its day."""
    project, commit = source.project, source.commit
    tagged = release_tags(source.repository)
    having = {name.removeprefix("v") for name in source.repository.tags_with(commit.id)}
    known = sorted(version for version in tagged if str(version) in having)
    if known:
        return str(known[0])
    newest = newest_release(project.distribution, commit.day)
    if newest is not None and Version(newest) in tagged:
        return None  # the tags of its time are there, and none has it
    return next(
        (str(version) for version in releases(project.distribution) if newest is None or version > Version(newest)),
        None,
    )


def release_commit(project: Project, repository: Repository, release: str, branch: str) -> str | None:
    """The commit of a release: its tag's, else the last one on ``branch`` before the day of its upload; None where that cannot be told."""
    tagged = release_tags(repository).get(Version(release))
    if tagged is not None:
        return tagged
    try:
        day = release_date(project.distribution, release)
    except BuildError:
        return None
    return repository.newest_before(day, branch)


def _commit_of(source: Source, release: str) -> str | None:
    """Where in the source's history the release is, or its tag; None for a release that is younger and has no tag."""
    tagged = release_tags(source.repository).get(Version(release))
    if tagged is not None:
        return tagged
    try:
        day = release_date(source.project.distribution, release)
    except BuildError:
        return None
    if day > source.commit.day:
        return None
    return source.repository.newest_before(day, source.commit.id)


def _best_fitting(source: Source, tagged: Mapping[Version, str], newest: Version) -> Version:
    repository, commit = source.repository, source.commit.id
    inside = {name.removeprefix("v") for name in repository.tags_in(commit)}
    having = {name.removeprefix("v") for name in repository.tags_with(commit)}
    before = max((version for version in tagged if str(version) in inside), default=None)
    after = min((version for version in tagged if str(version) in having), default=None)
    candidates = {each for each in (before, newest, after) if each is not None and _has_wheel(source.project, each)}
    paths = (*source.project.compiled, *(path for group in source.project.requirements for path in group))
    if not paths:
        return max(each for each in candidates if each in (before, newest))

    ages = sorted(candidates)

    def misfit(version: Version) -> tuple[bool, int, int]:
        other_torch = _torch(source) != _torch(Source(source.project, repository, repository.commit(tagged[version])))
        return other_torch, len(repository.differing(tagged[version], commit, *paths)), -ages.index(version)

    return min(candidates, key=misfit)


def _torch(source: Source) -> str | None:
    """The torch that the source pins."""
    plain = (f"{each.name}{each.specifier}" for each in requirement_lines(source))
    return dict(filter(None, map(pinned, plain))).get("torch")


def _has_wheel(project: Project, version: Version) -> bool:
    try:
        release_date(project.distribution, str(version))
    except BuildError:
        return False
    return True
