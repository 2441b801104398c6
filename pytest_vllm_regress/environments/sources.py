"""Source code as an environment's name says it: a commit of a clone (``vllm@REV``) or a work tree as it stands (``vllm@PATH``)."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import MappingProxyType

from filelock import FileLock

from ..errors import UsageError
from ..util.masking import mask
from ..util.paths import cache_root
from . import git
from .git import Commit, Repository

CLONES = "clones"
WHEEL_INDEX = "VLLM_REGRESS_WHEEL_INDEX"


@dataclasses.dataclass(frozen=True)
class Project:
    """A distribution that is run from its source. ``folder``: what is imported, at the root of the tree.

    ``requirements``: files that list what it needs; of these groups the first counts that a commit has. ``compiled``: what its compiled
    parts are made of.
    """

    distribution: str
    folder: str
    repository: str
    requirements: tuple[tuple[str, ...], ...] = ()
    compiled: tuple[str, ...] = ()


PROJECTS = MappingProxyType(
    {
        project.distribution: project
        for project in (
            Project(
                "vllm",
                "vllm",
                "https://github.com/vllm-project/vllm",
                (
                    ("requirements/cuda.txt", "requirements/common.txt"),
                    ("requirements-cuda.txt", "requirements-common.txt"),
                    ("requirements.txt",),
                ),
                ("csrc", "cmake", "CMakeLists.txt"),
            ),
            Project("lm-format-enforcer", "lmformatenforcer", "https://github.com/noamgat/lm-format-enforcer"),
        )
    }
)
_NAME = re.compile(rf"(?:(?P<base>[^/@\s]+)\+)?(?P<package>{'|'.join(PROJECTS)})@(?P<what>.+)", re.DOTALL)
_PATH = re.compile(r"\.{0,2}/|\.{1,2}\Z|~")
_URL = re.compile(r"(?:https?|ssh|git|file)://|[\w.-]+@[\w.-]+:")


@dataclasses.dataclass(frozen=True)
class Source:
    """The code that is laid over a wheel's. ``changed``: a digest of a work tree that is not its commit's; empty for a commit as it is."""

    project: Project
    repository: Repository
    commit: Commit
    tree: Path | None = None
    changed: str = ""

    @property
    def key(self) -> str:
        """The same for the same code only."""
        return f"{self.project.distribution}@{self.commit.id}{self.changed and '+'}{self.changed}"

    @property
    def label(self) -> str:
        """Short, for a version: ``g0e42544``; with the work tree's digest where that differs from its commit."""
        return f"g{self.commit.id[:7]}{self.changed and '.d'}{self.changed[:7]}"

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Every file below the project's folder: its path from the root of the tree, and its content."""
        if self.changed and self.tree is not None:
            yield from _files_on_disk(self.tree, self.repository, self.project.folder)
            return
        listed = self.repository.files(self.commit.id, self.project.folder)
        yield from zip(listed, self.repository.contents(listed.values()), strict=True)

    def read(self, path: str) -> bytes | None:
        """A file of the tree; None where it has none."""
        if self.changed and self.tree is not None:
            return _read(self.tree / path)
        return self.repository.read(self.commit.id, path)

    def requirement_files(self) -> tuple[str, ...]:
        """Paths of the files that list what it needs."""
        groups = (group for group in self.project.requirements if self.read(group[0]) is not None)
        return next(groups, ())


@dataclasses.dataclass(frozen=True)
class SourceName:
    """A name taken apart. ``base``: the environment it is laid over, empty where that is to be found; ``what``: a revision or a path."""

    base: str
    project: Project
    what: str

    @property
    def is_path(self) -> bool:
        return _PATH.match(self.what) is not None


def parse_name(name: str) -> SourceName | None:
    """``[BASE+]PACKAGE@REV`` or ``[BASE+]PACKAGE@PATH`` taken apart; None for any other name."""
    found = _NAME.fullmatch(name)
    return SourceName(found["base"] or "", PROJECTS[found["package"]], found["what"]) if found else None


def names_interpreter(name: str) -> bool:
    """The name of an environment that is an interpreter's path."""
    return "/" in name and parse_name(name) is None


def find(name: SourceName) -> Source:
    """The source that is named. Raises ``UsageError``: no repository, no such revision, nothing of the package in it."""
    if name.is_path:
        return _work_tree(name.project, Path(name.what))
    repository = clone_of(name.project)
    return of_commit(name.project, repository, repository.commit(name.what))


def of_commit(project: Project, repository: Repository, commit: Commit) -> Source:
    """A commit as it is. Raises ``UsageError`` where it has nothing of the package."""
    if f"{project.folder}/__init__.py" not in repository.files(commit.id, project.folder):
        raise UsageError(
            f"{repository.place}: {commit.id[:10]} has no {project.folder}/__init__.py: not a commit of {project.distribution}"
        )
    return Source(project, repository, commit)


def use(places: Sequence[str]) -> None:
    """Where clones are from now on, for this process and those it starts: ``[PACKAGE=]PLACE``, a path or a URL."""
    for given in places:
        package, equals, place = given.partition("=")
        if not equals or package not in PROJECTS:
            package, place = "vllm", given
        if not place:
            raise UsageError(f"--source {given!r}: allowed is [PACKAGE=]PATH|URL, PACKAGE one of {', '.join(PROJECTS)}")
        os.environ[_variable(PROJECTS[package])] = (
            place if _URL.match(place) else str(Path(place).expanduser().absolute())
        )


def clone_of(project: Project) -> Repository:
    """The project's clone: as ``use`` or the variable says, else the checkout around the working directory. Raises ``UsageError`` for none."""
    place = os.environ.get(_variable(project))
    if place:
        return Repository.at(_cloned(place) if _URL.match(place) else Path(place))
    for folder in (Path.cwd(), *Path.cwd().parents):
        if (folder / ".git").exists():
            if (folder / project.folder / "__init__.py").is_file():
                return Repository.at(folder)
            break
    raise UsageError(
        f"{project.distribution}@REV needs a clone of {project.repository}: name one by --source PATH|URL (with pytest --vllm-source), "
        f"the ini setting vllm_source or {_variable(project)}; a URL is cloned once, into the cache"
    )


def use_wheels(index: str) -> None:
    """Wheels of single commits come from there, for this process and those it starts: an index's address with ``{commit}`` in it."""
    if "{commit}" not in index or not _URL.match(index):
        raise UsageError(
            f"--wheel-index {index!r}: allowed is the address of a package index with {{commit}} in it, where the commit's id is put"
        )
    os.environ[WHEEL_INDEX] = index


def wheel_index(commit: Commit) -> str | None:
    """The index that has the commit's own wheel, as ``use_wheels`` or the variable says; None where neither does."""
    index = os.environ.get(WHEEL_INDEX)
    return index.replace("{commit}", commit.id) if index else None


def _variable(project: Project) -> str:
    return f"VLLM_REGRESS_SOURCE_{project.distribution.upper().replace('-', '_')}"


def _cloned(url: str) -> Path:
    """The bare clone of ``url`` in the cache, made on first use, whole or not at all."""
    place = cache_root() / CLONES / f"{hashlib.sha256(url.encode()).hexdigest()[:16]}.git"
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{place}.lock"):
            if not place.is_dir():
                part = place.with_suffix(".part")
                shutil.rmtree(part, ignore_errors=True)
                try:
                    git.clone(url, part)
                    part.rename(place)
                finally:
                    shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        raise UsageError(f"{mask(url)} cannot be cloned into {place.parent}: {error.strerror}") from None
    return place


def _work_tree(project: Project, path: Path) -> Source:
    repository = Repository.at(path)
    tree = repository.tree
    if tree is None:
        raise UsageError(f"{path}: a bare repository has no work tree: name a revision, {project.distribution}@REV")
    if not (tree / project.folder / "__init__.py").is_file():
        raise UsageError(f"{tree}: has no {project.folder}/__init__.py: not a tree of {project.distribution}")
    repository = Repository(tree)
    head = repository.commit("HEAD")
    listed = repository.files(head.id, project.folder)
    committed = dict(zip(listed, repository.contents(listed.values()), strict=True))
    there = dict(_files_on_disk(tree, repository, project.folder))
    wanted = [path for group in project.requirements for path in group]
    same_needs = all(repository.read(head.id, path) == _read(tree / path) for path in wanted)
    if there == committed and same_needs:
        return Source(project, repository, head, tree)
    digest = hashlib.sha256()
    for name, content in sorted(there.items()) + [(path, _read(tree / path) or b"") for path in wanted]:
        digest.update(f"{name}\0{len(content)}\0".encode(errors="surrogateescape") + content)
    return Source(project, repository, head, tree, digest.hexdigest()[:16])


def _files_on_disk(tree: Path, repository: Repository, folder: str) -> Iterator[tuple[str, bytes]]:
    """What a commit of everything would hold: tracked files and new ones that .gitignore does not leave out."""
    for path in repository.listed(folder):
        file = tree / path
        if file.is_file() and not file.is_symlink():
            yield path, file.read_bytes()


def _read(file: Path) -> bytes | None:
    return file.read_bytes() if file.is_file() else None
