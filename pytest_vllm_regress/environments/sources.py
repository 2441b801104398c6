"""Source code named by an environment: a commit of a clone (``vllm@REV``) or the state of a work
tree (``vllm@PATH``)."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import UsageError
from ..util import codec
from ..util.files import expand_home, private_folder, read_below
from ..util.masking import mask
from ..util.paths import DATA, cache_root, check_owner, check_steps
from . import git
from .git import Commit, Repository

CLONES = "clones"
WHEEL_INDEX = "VLLM_REGRESS_WHEEL_INDEX"


@dataclass(frozen=True)
class SourceProject:
    """A distribution that can run from source.

    folder: the imported package, at the root of the tree. requirements: groups of requirement
    files; the first group that a commit has counts.
    compiled: the sources of its compiled parts.
    """

    distribution: str
    folder: str
    repository: str
    requirements: tuple[tuple[str, ...], ...] = ()
    compiled: tuple[str, ...] = ()

    @property
    def requirement_files(self) -> tuple[str, ...]:
        """The requirement files of all groups."""
        return tuple(path for group in self.requirements for path in group)


PROJECTS = codec.load(
    dict[str, SourceProject], DATA / "source_projects.toml", 64 * 1024, what="the list of projects"
)
_NAME = re.compile(
    rf"(?:(?P<base>[^/@\s]+)\+)?(?P<package>{'|'.join(PROJECTS)})@(?P<what>.+)", re.DOTALL
)
_PATH = re.compile(r"\.{0,2}/|\.{1,2}\Z|~")
_URL = re.compile(r"(?:https?|ssh|git|file)://|[\w.-]+@[\w.-]+:")
logger = logging.getLogger("vllm_regress.environments")


@dataclass(frozen=True)
class Source:
    """Source code.

    ``changed`` is a digest of a work tree that differs from its commit; empty for an unmodified
    commit.
    """

    project: SourceProject
    repository: Repository
    commit: Commit
    tree: Path | None = None
    changed: str = ""

    @property
    def key(self) -> str:
        """Unique identifier of this code."""
        return f"{self.project.distribution}@{self.commit.id}{self.changed and '+'}{self.changed}"

    @property
    def label(self) -> str:
        """Short identifier for a version: ``g0e42544``, with the digest of a changed work tree."""
        return f"g{self.commit.id[:7]}{self.changed and '.d'}{self.changed[:7]}"

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Yield path (from the root of the tree) and content of every file in the project's folder.

        Raises ``UsageError`` if the work tree is no longer as it was when this source was found.
        """
        if self.changed and self.tree is not None:
            on_disk = dict(_files_on_disk(self.tree, self.repository, self.project.folder))
            if _digest(self.project, self.tree, on_disk) != self.changed:
                raise UsageError(
                    f"{self.tree}: a file was changed while this command was running: repeat it"
                )
            yield from on_disk.items()
            return
        blobs = self.repository.files(self.commit.id, self.project.folder)
        yield from zip(blobs, self.repository.contents(blobs.values()), strict=True)

    def read(self, path: str) -> bytes | None:
        """Return the content of a file of the tree; None if it does not exist."""
        if self.changed and self.tree is not None:
            return _read(self.tree, path)
        return self.repository.read(self.commit.id, path)

    def requirement_files(self) -> tuple[str, ...]:
        """Return the paths of the requirement files."""
        groups = (group for group in self.project.requirements if self.read(group[0]) is not None)
        return next(groups, ())


@dataclass(frozen=True)
class SourceName:
    """A parsed name.

    ``base`` is the environment below it, empty to choose one; ``what`` is a revision or a path.
    """

    base: str
    project: SourceProject
    what: str

    @property
    def is_path(self) -> bool:
        return _PATH.match(self.what) is not None


def parse_name(name: str) -> SourceName | None:
    """Parse ``[BASE+]PACKAGE@REV`` or ``[BASE+]PACKAGE@PATH``. Return None for any other name."""
    match = _NAME.fullmatch(name)
    return (
        SourceName(match["base"] or "", PROJECTS[match["package"]], match["what"])
        if match
        else None
    )


def names_interpreter(name: str) -> bool:
    """Return whether the name of an environment is the path of an interpreter."""
    return "/" in name and parse_name(name) is None


def find_source(name: SourceName) -> Source:
    """Return the named source.

    Raises ``UsageError`` for a missing repository or revision, or one without the package.
    """
    if name.is_path:
        return _work_tree(name.project, Path(name.what))
    repository = clone_of(name.project)
    return source_at_commit(name.project, repository, repository.commit(name.what))


def source_at_commit(project: SourceProject, repository: Repository, commit: Commit) -> Source:
    """Return the source of an unmodified commit.

    Raises ``UsageError`` if it does not contain the package.
    """
    if f"{project.folder}/__init__.py" not in repository.files(commit.id, project.folder):
        raise UsageError(
            f"{repository.place}: {commit.id[:10]} has no {project.folder}/__init__.py: not a commit of {project.distribution}"
        )
    return Source(project, repository, commit)


def set_clones(places: Sequence[str]) -> None:
    """Set the clones for this process and its children.

    Each of ``places`` is ``[PACKAGE=]PATH|URL``.
    """
    for setting in places:
        package, equals, place = setting.partition("=")
        if not equals or package not in PROJECTS:
            package, place = "vllm", setting
        if not place:
            raise UsageError(
                f"--source {setting!r}: allowed is [PACKAGE=]PATH|URL, PACKAGE one of {', '.join(PROJECTS)}"
            )
        os.environ[_variable(PROJECTS[package])] = (
            place if _URL.match(place) else str(expand_home(place).absolute())
        )


def find_clone(project: SourceProject) -> Repository | None:
    """Return the project's clone: set by ``set_clones`` or the variable, else the checkout around
    the working directory; None if there is none.

    Raises ``UsageError`` if that checkout belongs to another user.
    """
    place = os.environ.get(_variable(project))
    if place:
        return Repository.at(_cloned(place) if _URL.match(place) else Path(place))
    for folder in (Path.cwd(), *Path.cwd().parents):
        if (folder / ".git").exists():
            if (folder / project.folder / "__init__.py").is_file():
                for path in (folder, folder / ".git"):
                    check_owner(path, "Name it with --source if you trust it")
                return Repository.at(folder)
            break
    return None


def clone_of(project: SourceProject) -> Repository:
    """Like ``find_clone``, but raise ``UsageError`` if there is none."""
    if clone := find_clone(project):
        return clone
    raise UsageError(
        f"{project.distribution}@REV needs a clone of {project.repository}: name one by --source PATH|URL (with pytest --vllm-source), "
        f"the ini setting vllm_source or {_variable(project)}; a URL is cloned once, into the cache"
    )


def set_wheel_index(index: str) -> None:
    """Set the index with the wheels of single commits, for this process and its children: a URL
    with ``{commit}`` in it."""
    if "{commit}" not in index or not _URL.match(index):
        raise UsageError(
            f"--wheel-index {index!r}: allowed is the URL of a package index with {{commit}} in it as the placeholder for the commit's id"
        )
    os.environ[WHEEL_INDEX] = index


def wheel_index(commit: Commit) -> str | None:
    """Return the index with the commit's own wheel, set by ``set_wheel_index`` or the variable;
    None if neither is set."""
    index = os.environ.get(WHEEL_INDEX)
    return index.replace("{commit}", commit.id) if index else None


def _variable(project: SourceProject) -> str:
    return f"VLLM_REGRESS_SOURCE_{project.distribution.upper().replace('-', '_')}"


def _cloned(url: str) -> Path:
    """Return the bare clone of ``url`` in the cache, after cloning it atomically on first use."""
    name = mask(url)
    root = cache_root()
    place = root / CLONES / f"{hashlib.sha256(url.encode()).hexdigest()[:16]}.git"
    try:
        check_steps(root, place)
        private_folder(place.parent)
        from filelock import FileLock

        with FileLock(f"{place}.lock"):
            if not place.is_dir():
                logger.info("cloning %s into %s", name, place)
                part = place.with_suffix(".part")
                shutil.rmtree(part, ignore_errors=True)
                try:
                    git.clone(url, part)
                    part.rename(place)
                finally:
                    shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        raise UsageError(f"{name} cannot be cloned into {place.parent}: {error.strerror}") from None
    return place


def _work_tree(project: SourceProject, path: Path) -> Source:
    repository = Repository.at(path)
    tree = repository.tree
    if tree is None:
        raise UsageError(
            f"{path}: a bare repository has no work tree: name a revision, {project.distribution}@REV"
        )
    if not (tree / project.folder / "__init__.py").is_file():
        raise UsageError(
            f"{tree}: has no {project.folder}/__init__.py: not a tree of {project.distribution}"
        )
    repository = Repository(tree)
    head = repository.commit("HEAD")
    blobs = repository.files(head.id, project.folder)
    committed = dict(zip(blobs, repository.contents(blobs.values()), strict=True))
    on_disk = dict(_files_on_disk(tree, repository, project.folder))
    same_requirements = all(
        repository.read(head.id, path) == _read(tree, path) for path in project.requirement_files
    )
    if on_disk == committed and same_requirements:
        return Source(project, repository, head, tree)
    return Source(project, repository, head, tree, _digest(project, tree, on_disk))


def _digest(project: SourceProject, tree: Path, on_disk: Mapping[str, bytes]) -> str:
    """Return what identifies a changed work tree, whose files of the package are given."""
    digest = hashlib.sha256()
    for name, content in [
        *sorted(on_disk.items()),
        *((path, _read(tree, path) or b"") for path in project.requirement_files),
    ]:
        digest.update(f"{name}\0{len(content)}\0".encode(errors="surrogateescape") + content)
    return digest.hexdigest()[:16]


def _files_on_disk(tree: Path, repository: Repository, folder: str) -> Iterator[tuple[str, bytes]]:
    """Yield the files that ``git add --all`` would commit: tracked files and new ones that are not
    ignored."""
    total = 0
    for path in repository.listed(folder):
        content = read_below(tree, path, git.MAX_SOURCE)
        if content is not None:
            total += len(content)
            if total > git.MAX_SOURCES:
                raise UsageError(
                    f"{tree}/{folder}: its files are larger than {git.MAX_SOURCES} bytes. Remove or ignore what is no source"
                )
            yield path, content


def _read(tree: Path, path: str) -> bytes | None:
    """Return the content of a file of the work tree as git would commit it; None if it does not
    exist."""
    return read_below(tree, path, git.MAX_SOURCE, link_text=True)
