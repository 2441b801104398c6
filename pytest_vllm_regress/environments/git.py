"""Read a git repository with plumbing commands, without running any program of it: no hook, filter,
pager or configured command."""

from __future__ import annotations

import datetime
import os
import re
import secrets
import select
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import UsageError
from ..util.files import expand_home, parts_below
from ..util.masking import mask, mask_log
from ..util.paths import check_owner
from ..util.sizes import MIB

CLONE_TIMEOUT_S = 3600
READ_TIMEOUT_S = 600.0
"""Searching a long history on a slow disk takes minutes."""
CLONE_PROTOCOLS = "https:http:ssh:git:file"
MAX_SOURCE = 64 * MIB
MAX_SOURCES = 512 * MIB
"""Limits for the bytes of one file, and of all files that are read together."""
# Neutralizes settings that name programs. The user's and the system's configuration are not read at
# all (see _environment).
_INERT = (
    "safe.directory=*",
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "core.pager=cat",
    "core.untrackedCache=false",
    "log.showSignature=false",
    "core.attributesFile=/dev/null",
    "core.quotePath=false",
    "credential.helper=",
    "gc.auto=0",
    "protocol.ext.allow=never",
    "core.sshCommand=ssh -oBatchMode=yes",
    "submodule.recurse=false",
    "fetch.fsckObjects=true",
)
_SHA = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_WITH_PATHS = ("--diff-merges=first-parent", "--name-only", "--no-renames")
_PULL_REQUEST = re.compile(r"\(#(\d+)\)\s*\Z|\AMerge pull request #(\d+)")
_DATE = re.compile(r"(\d{1,20}) ([+-])(\d{1,9})")
_LATEST = datetime.datetime(9999, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True)
class Commit:
    """One commit. ``touched`` has the paths that differ from its first parent, if requested.

    A date that cannot be read is the epoch, as for git, and one after the year 9998 is the
    beginning of 9999.
    """

    id: str
    parents: tuple[str, ...]
    authored: datetime.datetime
    committed: datetime.datetime
    subject: str
    touched: tuple[str, ...] = ()

    @property
    def day(self) -> datetime.date:
        """Date (UTC) of the commit, not of authorship: a pull request's commit is written long
        before it is merged."""
        return self.committed.astimezone(datetime.UTC).date()

    @property
    def pull_request(self) -> str:
        """Number of the pull request that the commit merged, by its subject; empty if it names
        none."""
        match = _PULL_REQUEST.search(self.subject)
        return (match[1] or match[2]) if match else ""


@dataclass(frozen=True)
class Repository:
    """A git repository. ``place`` is a work tree, a folder in one, or a bare repository."""

    place: Path

    @classmethod
    def at(cls, place: Path) -> Repository:
        """Return the repository at ``place``. Raises ``UsageError`` if there is none."""
        place = expand_home(place).absolute()
        repository = cls(place)
        git_folder = repository._try("rev-parse", "--absolute-git-dir") if place.is_dir() else None
        if git_folder is None:
            raise UsageError(
                f"{place}: not a git repository. Give a clone with its history, or a URL to clone"
            )
        repository._check_surroundings(Path(git_folder))
        return repository

    @property
    def tree(self) -> Path | None:
        """Root of the work tree; None for a bare repository."""
        top = self._try("rev-parse", "--show-toplevel")
        return Path(top) if top else None

    def _check_surroundings(self, git_folder: Path) -> None:
        """Raise ``UsageError`` if the repository leads elsewhere: to a work tree that it is not in,
        or to what belongs to somebody else.

        A repository that is named itself may belong to anybody; one that git finds in a folder
        above it must belong to the user or root.
        """
        place, tree = self.place.resolve(), self.tree
        if tree is not None and not (place.is_relative_to(tree) and os.path.lexists(tree / ".git")):
            raise UsageError(
                f"{self.place}: core.worktree in the configuration of this repository names a work tree elsewhere, {tree}. "
                "Name that one if you mean it"
            )
        if place not in (tree, git_folder.resolve()):
            for path in (tree or git_folder, git_folder):
                check_owner(path, "Name its root if you trust it")
        for path in self._alternates():
            if path.stat().st_uid != git_folder.stat().st_uid:
                check_owner(
                    path,
                    f"{git_folder}/objects/info/alternates borrows from there: make a clone without it (`git repack -a`)",
                )

    def _alternates(self) -> tuple[Path, ...]:
        """Return the object folders of other repositories that git would read as this one's."""
        lines = (self._try("count-objects", "-v") or "").splitlines()
        paths = (
            Path(line.removeprefix("alternate: ").strip('"'))
            for line in lines
            if line.startswith("alternate: ")
        )
        return tuple(path for path in paths if path.exists())

    @property
    def is_shallow(self) -> bool:
        """Whether the history is incomplete."""
        return self._try("rev-parse", "--is-shallow-repository") == "true"

    def need_history(self) -> None:
        """Raises ``UsageError`` for a shallow clone."""
        if self.is_shallow:
            raise UsageError(
                f"{self.place}: a shallow clone, whose history is cut off. Fetch the rest: `git fetch --unshallow --tags`"
            )

    def commit(self, revision: str) -> Commit:
        """Return the commit of a revision. Raises ``UsageError`` for an unknown one."""
        commit_id = None
        if not revision.startswith("-") and "\n" not in revision:
            commit_id = self._try(
                "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"
            )
        if commit_id is None or not _SHA.fullmatch(commit_id):
            hint = (
                " It is a shallow clone: `git fetch --unshallow --tags` fetches the rest"
                if self.is_shallow
                else ""
            )
            raise UsageError(
                f"{self.place}: no commit {revision!r}. Give a commit's id, a branch or a tag of this repository.{hint}"
            )
        (commit,) = self._commits("--no-walk=unsorted", commit_id)
        return commit

    def has(self, revision: str) -> bool:
        """Return whether the revision names a commit."""
        try:
            self.commit(revision)
        except UsageError:
            return False
        return True

    def between(self, low: str, high: str, *, first_parent: bool = True) -> tuple[Commit, ...]:
        """Return the commits in ``high`` that are not in ``low``, oldest first, with the paths that
        they touched."""
        order = ("--reverse", "--topo-order", *(("--first-parent",) if first_parent else ()))
        return tuple(self._commits(*order, *_WITH_PATHS, f"{low}..{high}"))

    def is_ancestor(self, old: str, young: str) -> bool:
        """Return whether ``old`` is in the history of ``young``, or equal to it."""
        return self._try("merge-base", "--is-ancestor", old, young) is not None

    def merge_base(self, one: str, other: str) -> str | None:
        """Return the newest common commit."""
        return self._try("merge-base", one, other)

    def count(self, low: str, high: str) -> int:
        """Return the number of commits in ``high`` that are not in ``low``."""
        return int(self._run("rev-list", "--count", f"{low}..{high}"))

    def newest_before(self, day: datetime.date, revision: str) -> str | None:
        """Return the newest commit before ``day`` (UTC) in the first-parent history of
        ``revision``."""
        before = f"--before={day.isoformat()}T00:00:00Z"
        return self._try("rev-list", "-1", "--first-parent", before, revision) or None

    def merge_of(self, pull_request: str, revision: str = "HEAD") -> Commit | None:
        """Return the commit in the revision's history that merged a pull request, with the paths
        that it touched; None if there is none."""
        commits = self._commits(
            "--fixed-strings", f"--grep=#{pull_request}", *_WITH_PATHS, "--end-of-options", revision
        )
        return next((commit for commit in commits if commit.pull_request == pull_request), None)

    def commits_touching(self, paths: Iterable[str], revision: str = "HEAD") -> tuple[Commit, ...]:
        """Return the commits in the revision's history that touched one of ``paths``, with all
        paths that they touched."""
        arguments = (*_WITH_PATHS, "--full-diff", "--end-of-options", revision, "--", *paths)
        return tuple(self._commits(*arguments))

    def last_change(self, revision: str, paths: Iterable[str]) -> str | None:
        """Return the newest commit in the revision's history that touched one of ``paths``."""
        paths = tuple(paths)
        return (self._try("rev-list", "-1", revision, "--", *paths) or None) if paths else None

    def tags(self, *options: str) -> Mapping[str, str]:
        """Map tags to commits. ``options``: limits of ``git for-each-ref``, such as ``--merged
        REVISION``."""
        form = "--format=%(refname:strip=2) %(objectname) %(*objectname)"
        lines = self._run("for-each-ref", form, *options, "refs/tags").splitlines()
        return {words[0]: words[-1] for line in lines if len(words := line.split()) > 1}

    def differing(self, one: str, other: str, *paths: str) -> tuple[str, ...]:
        """Return the files in ``paths`` that differ between two commits."""
        options = ("-r", "-z", "--name-only", "--no-renames", "--no-ext-diff")
        out = self._run("diff-tree", *options, one, other, "--", *paths)
        return tuple(filter(None, out.split("\0")))

    def files(self, commit: str, folder: str) -> Mapping[str, str]:
        """Map the regular files in ``folder`` of a commit to the ids of their blobs. Skips links
        and submodules.

        Raises ``UsageError`` for a path that leaves the tree.
        """
        out = self._run("ls-tree", "-r", "-z", "--full-tree", commit, "--", f"{folder}/")
        blobs = {}
        for entry in filter(None, out.split("\0")):
            attributes, _, path = entry.partition("\t")
            mode, kind, blob = attributes.split()
            parts_below(path)
            if kind == "blob" and mode.startswith("100"):
                blobs[path] = blob
        return blobs

    def listed(self, folder: str) -> tuple[str, ...]:
        """Return the files in ``folder`` of the work tree that are tracked, or new and not ignored,
        and the folders of other repositories in it.

        Raises ``UsageError`` for a path that leaves the tree, which only an index can have that git
        did not write.
        """
        out = self._run(
            "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", f"{folder}/"
        )
        paths = {path.removesuffix("/") for path in out.split("\0")} - {""}
        for path in paths:
            parts_below(path)
        return tuple(sorted(paths))

    def read(self, commit: str, path: str) -> bytes | None:
        """Return the content of a file of a commit; None if it does not exist."""
        out = self._run("ls-tree", "-z", "--full-tree", commit, "--", path)
        attributes, _, listed_path = out.rstrip("\0").partition("\t")
        if listed_path != path or attributes.split()[1] != "blob":
            return None
        return next(self.contents([attributes.split()[2]]))

    def contents(self, blobs: Iterable[str]) -> Iterator[bytes]:
        """Yield the contents of blobs, in order.

        Raises ``UsageError`` for a missing one (a partial clone), and for a huge one.
        """
        total = 0
        with self._start("cat-file", "--batch") as process:
            assert process.stdin is not None and process.stdout is not None
            try:
                for blob in blobs:
                    process.stdin.write(f"{blob}\n".encode())
                    process.stdin.flush()
                    if not select.select([process.stdout], [], [], READ_TIMEOUT_S)[0]:
                        process.kill()
                        raise self._silent("cat-file")
                    head = process.stdout.readline().split()
                    if len(head) != 3:
                        raise UsageError(
                            f"{self.place}: {blob} is missing. Is it a partial clone? Give a complete one"
                        )
                    total += int(head[2])
                    if int(head[2]) > MAX_SOURCE or total > MAX_SOURCES:
                        limits = f"{MAX_SOURCE} bytes for a source file, {MAX_SOURCES} for all"
                        raise UsageError(f"{self.place}: {blob} exceeds the limits: {limits}")
                    yield process.stdout.read(int(head[2]))
                    process.stdout.read(1)
            finally:
                process.stdin.close()
                process.stdout.close()

    def _commits(self, *arguments: str) -> Iterator[Commit]:
        # Random separators, because a subject or a file's name may contain any others.
        start, end = secrets.token_hex(16), secrets.token_hex(16)
        record = start + end.join(("%H", "%P", "%ad", "%cd", "%s", ""))
        form = ("--no-color", "--no-ext-diff", "-z", "--date=raw", f"--format={record}")
        out = self._run("log", *form, *arguments)
        for text in out.split(start)[1:]:
            commit, parents, authored, committed, subject, names = text.split(end)
            yield Commit(
                commit,
                tuple(parents.split()),
                _moment(authored),
                _moment(committed),
                subject,
                tuple(sorted({name.strip("\n") for name in names.split("\0")} - {""})),
            )

    def _run(self, *arguments: str) -> str:
        done = self._completed(*arguments)
        if done.returncode:
            raise UsageError(f"{self.place}: git {arguments[0]} failed: {_error(done)}")
        return done.stdout.rstrip("\n")

    def _try(self, *arguments: str) -> str | None:
        done = self._completed(*arguments)
        return None if done.returncode else done.stdout.rstrip("\n")

    def _completed(self, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        try:
            return _git("-C", str(self.place), *arguments, timeout_s=READ_TIMEOUT_S, given=given)
        except subprocess.TimeoutExpired:
            raise self._silent(arguments[0]) from None

    def _silent(self, command: str) -> UsageError:
        hint = "Is there a pipe or a slow disk in the repository?"
        return UsageError(
            f"{self.place}: git {command} did not answer within {READ_TIMEOUT_S:g} s. {hint}"
        )

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            _command("-C", str(self.place), *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_environment(),
        )


def clone(url: str, place: Path) -> None:
    """Make a bare clone of ``url`` with its history.

    Raises ``UsageError``; the caller removes a partial clone.
    """
    name = mask(url)
    command = ("clone", "--quiet", "--bare", "--template=", "--", url, str(place))
    try:
        done = _git(*command, protocols=CLONE_PROTOCOLS, timeout_s=CLONE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise UsageError(f"cloning {name} did not end within {CLONE_TIMEOUT_S} s") from None
    if done.returncode:
        full = "; the disk is full" if "No space left" in done.stderr else ""
        raise UsageError(f"{name} cannot be cloned{full}: {_error(done)}")


def ignored(ignore_file: bytes, paths: Iterable[str], scratch: Path) -> frozenset[str]:
    """Return those of ``paths`` that the rules of a .gitignore exclude.

    ``scratch`` is an empty folder.
    """
    (scratch / ".gitignore").write_bytes(ignore_file)
    repository = Repository(scratch)
    repository._run("init", "--quiet", "--template=")
    done = repository._completed(
        "check-ignore", "--no-index", "-z", "--stdin", given="\0".join(paths)
    )
    return frozenset(filter(None, done.stdout.split("\0")))


def _moment(date: str) -> datetime.datetime:
    """Return the time in a date of git's raw format: seconds since the epoch and the offset from
    UTC. Any may be in a commit."""
    match = _DATE.fullmatch(date)
    seconds, sign, hours = match.groups() if match else ("0", "+", "0")
    minutes = 60 * (int(hours) // 100) + int(hours) % 100
    offset = datetime.timedelta(minutes=minutes if minutes < 24 * 60 else 0)
    zone = datetime.timezone(-offset if sign == "-" else offset)
    return datetime.datetime.fromtimestamp(min(int(seconds), _LATEST.timestamp()), zone)


def _error(done: subprocess.CompletedProcess[str]) -> str:
    return mask_log(done.stderr.strip())[-600:]


def _git(
    *arguments: str, timeout_s: float, given: str = "", protocols: str = "none"
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        _command(*arguments),
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="surrogateescape",
        input=given,
        env=_environment(protocols),
        check=False,
        timeout=timeout_s,
    )


def _command(*arguments: str) -> list[str]:
    return ["git", *(part for setting in _INERT for part in ("-c", setting)), *arguments]


def _environment(protocols: str = "none") -> dict[str, str]:
    """Return the environment without git's variables, which could name another repository or
    configuration.

    ``protocols``: those that git may use, whatever a configuration allows. Without any, git before
    2.45 cannot fetch what a partial clone lacks.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return inherited | {
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_ALLOW_PROTOCOL": protocols,
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "LC_ALL": "C",
        "TZ": "UTC",
    }
