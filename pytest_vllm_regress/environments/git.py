"""Reading a git repository by plumbing commands. Nothing of it is run: no hook, no filter, no pager, no program that a configuration names."""

from __future__ import annotations

import dataclasses
import datetime
import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ..errors import UsageError
from ..util.masking import mask

CLONE_TIMEOUT_S = 3600
# Settings that name programs are put out of force; what the user's and the system's files say is not read at all (see _environment).
_INERT = (
    *(
        "safe.directory=*",
        "core.fsmonitor=false",
        "core.hooksPath=/dev/null",
        "core.pager=cat",
        "core.untrackedCache=false",
    ),
    *(
        "log.showSignature=false",
        "core.attributesFile=/dev/null",
        "core.quotePath=false",
        "credential.helper=",
        "gc.auto=0",
    ),
    *(
        "protocol.ext.allow=never",
        "core.sshCommand=ssh -oBatchMode=yes",
        "submodule.recurse=false",
        "fetch.fsckObjects=true",
    ),
)
_SHA = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_RECORD = "%x1e%H%x1f%P%x1f%aI%x1f%cI%x1f%s%x1f"


@dataclasses.dataclass(frozen=True)
class Commit:
    """One commit. ``touched``: paths that differ from its first parent, empty where they were not asked for."""

    id: str
    parents: tuple[str, ...]
    authored: datetime.datetime
    committed: datetime.datetime
    subject: str
    touched: tuple[str, ...] = ()

    @property
    def day(self) -> datetime.date:
        """The day (UTC) on which it got where it is: a pull request's commit is written long before it is merged."""
        return self.committed.astimezone(datetime.UTC).date()


@dataclasses.dataclass(frozen=True)
class Repository:
    """A git repository: ``place`` is a work tree, a folder in one, or a bare repository."""

    place: Path

    @classmethod
    def at(cls, place: Path) -> Repository:
        """The repository there. Raises ``UsageError`` where there is none."""
        place = place.expanduser().absolute()
        found = cls(place)
        if not place.is_dir() or found._try("rev-parse", "--git-dir") is None:
            raise UsageError(f"{place}: not a git repository. Give a clone that has the history, or a URL to clone")
        return found

    @property
    def tree(self) -> Path | None:
        """The root of the work tree; None for a bare repository."""
        top = self._try("rev-parse", "--show-toplevel")
        return Path(top) if top else None

    @property
    def is_shallow(self) -> bool:
        """The history is cut off somewhere."""
        return self._try("rev-parse", "--is-shallow-repository") == "true"

    def need_history(self) -> None:
        """Raises ``UsageError`` for a shallow clone."""
        if self.is_shallow:
            raise UsageError(
                f"{self.place}: a shallow clone, whose history is cut off. Fetch the rest: `git fetch --unshallow --tags`"
            )

    def commit(self, revision: str) -> Commit:
        """The commit that a revision names. Raises ``UsageError`` for an unknown one."""
        found = None
        if not revision.startswith("-") and "\n" not in revision:
            found = self._try("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        if found is None or not _SHA.fullmatch(found):
            hint = " It is a shallow clone: `git fetch --unshallow --tags` brings the rest" if self.is_shallow else ""
            raise UsageError(
                f"{self.place}: no commit {revision!r}. Give a commit's id, a branch or a tag that this repository has.{hint}"
            )
        (commit,) = self._commits("--no-walk=unsorted", found)
        return commit

    def has(self, revision: str) -> bool:
        """Whether the revision names a commit here."""
        try:
            self.commit(revision)
        except UsageError:
            return False
        return True

    def between(self, low: str, high: str, *, first_parent: bool = True) -> tuple[Commit, ...]:
        """The commits that ``high`` has and ``low`` has not, oldest first, each with the paths it touched."""
        walk = ["--first-parent"] if first_parent else []
        return tuple(
            self._commits(
                "--reverse",
                "--topo-order",
                *walk,
                "--diff-merges=first-parent",
                "--name-only",
                "--no-renames",
                f"{low}..{high}",
            )
        )

    def is_ancestor(self, old: str, young: str) -> bool:
        """Whether ``young`` has ``old`` in its history, or is it."""
        return self._try("merge-base", "--is-ancestor", old, young) is not None

    def merge_base(self, one: str, other: str) -> str | None:
        """The newest commit that both have."""
        return self._try("merge-base", one, other)

    def count(self, low: str, high: str) -> int:
        """How many commits ``high`` has that ``low`` has not."""
        return int(self._run("rev-list", "--count", f"{low}..{high}"))

    def newest_before(self, day: datetime.date, revision: str) -> str | None:
        """The newest commit on ``revision``'s first-parent history from before ``day`` (UTC)."""
        return self._try("rev-list", "-1", "--first-parent", f"--before={day.isoformat()}T00:00:00Z", revision) or None

    def touched_by_subject(self, text: str) -> frozenset[str]:
        """Files that the newest commit of HEAD's history with ``text`` in its message touched; empty where there is none."""
        found = next(
            self._commits(
                "-1", "--name-only", "--diff-merges=first-parent", "--fixed-strings", f"--grep={text}", "HEAD"
            ),
            None,
        )
        return frozenset(found.touched) if found else frozenset()

    def last_change(self, revision: str, paths: Iterable[str]) -> str | None:
        """The newest commit of the revision's history that touched one of ``paths``."""
        wanted = tuple(paths)
        return (self._try("rev-list", "-1", revision, "--", *wanted) or None) if wanted else None

    def tags(self) -> Mapping[str, str]:
        """Tag names with the commits they name."""
        out = self._run("for-each-ref", "--format=%(refname:strip=2) %(objectname) %(*objectname)", "refs/tags")
        return {words[0]: words[-1] for line in out.splitlines() if len(words := line.split()) > 1}

    def tags_in(self, revision: str) -> frozenset[str]:
        """Tags of the revision's history."""
        return frozenset(
            self._run("for-each-ref", "--format=%(refname:strip=2)", "--merged", revision, "refs/tags").split()
        )

    def tags_with(self, revision: str) -> frozenset[str]:
        """Tags whose history has the revision."""
        return frozenset(
            self._run("for-each-ref", "--format=%(refname:strip=2)", "--contains", revision, "refs/tags").split()
        )

    def differing(self, one: str, other: str, *paths: str) -> tuple[str, ...]:
        """Files below ``paths`` that are not the same in two commits."""
        out = self._run(
            "diff-tree", "-r", "-z", "--name-only", "--no-renames", "--no-ext-diff", one, other, "--", *paths
        )
        return tuple(filter(None, out.split("\0")))

    def files(self, commit: str, folder: str) -> Mapping[str, str]:
        """Regular files below ``folder`` in a commit, with the ids of their contents. Links and submodules are left out."""
        out = self._run("ls-tree", "-r", "-z", "--full-tree", commit, "--", f"{folder}/")
        found = {}
        for entry in filter(None, out.split("\0")):
            about, _, path = entry.partition("\t")
            mode, kind, blob = about.split()
            if kind == "blob" and mode.startswith("100"):
                found[path] = blob
        return found

    def listed(self, folder: str) -> tuple[str, ...]:
        """Files of the work tree below ``folder`` that are tracked, or new and not ignored."""
        out = self._run("ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", f"{folder}/")
        return tuple(sorted(set(filter(None, out.split("\0")))))

    def read(self, commit: str, path: str) -> bytes | None:
        """A file of a commit; None where it has none."""
        out = self._run("ls-tree", "-z", "--full-tree", commit, "--", path)
        about, _, found = out.rstrip("\0").partition("\t")
        if found != path or about.split()[1] != "blob":
            return None
        return next(self.contents([about.split()[2]]))

    def contents(self, blobs: Iterable[str]) -> Iterator[bytes]:
        """The contents with these ids, in their order. Raises ``UsageError`` for one that is missing (a partial clone)."""
        with self._start("cat-file", "--batch") as process:
            assert process.stdin is not None and process.stdout is not None
            try:
                for blob in blobs:
                    process.stdin.write(f"{blob}\n".encode())
                    process.stdin.flush()
                    head = process.stdout.readline().split()
                    if len(head) != 3:
                        raise UsageError(f"{self.place}: {blob} is missing: a partial clone? Give a whole one")
                    yield process.stdout.read(int(head[2]))
                    process.stdout.read(1)
            finally:
                process.stdin.close()
                process.stdout.close()

    def _commits(self, *arguments: str) -> Iterator[Commit]:
        out = self._run("log", "--no-color", "--no-ext-diff", "-z", f"--format={_RECORD}", *arguments)
        for record in out.split("\x1e")[1:]:
            *fields, names = record.split("\x1f", 5)
            commit, parents, authored, committed, subject = fields
            yield Commit(
                commit,
                tuple(parents.split()),
                datetime.datetime.fromisoformat(authored),
                datetime.datetime.fromisoformat(committed),
                subject,
                tuple(sorted({name.strip("\n") for name in names.split("\0")} - {""})),
            )

    def _run(self, *arguments: str) -> str:
        done = self._ended(*arguments)
        if done.returncode:
            raise UsageError(f"{self.place}: git {arguments[0]} failed: {mask(done.stderr.strip()[-600:])}")
        return done.stdout.rstrip("\n")

    def _try(self, *arguments: str) -> str | None:
        done = self._ended(*arguments)
        return None if done.returncode else done.stdout.rstrip("\n")

    def _ended(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            _command("-C", str(self.place), *arguments),
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="surrogateescape",
            stdin=subprocess.DEVNULL,
            env=_environment(),
            check=False,
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
    """A bare clone of ``url`` with its whole history. Raises ``UsageError``; the caller removes what was half made."""
    command = _command("clone", "--quiet", "--bare", "--template=", "--", url, str(place))
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env=_environment(),
            timeout=CLONE_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise UsageError(f"cloning {mask(url)} did not end within {CLONE_TIMEOUT_S} s") from None
    if done.returncode:
        full = "; the disk is full" if "No space left" in done.stderr else ""
        raise UsageError(f"{mask(url)} cannot be cloned{full}: {mask(done.stderr.strip()[-600:])}")


def ignored(ignore_file: bytes, paths: Iterable[str], scratch: Path) -> frozenset[str]:
    """Which of ``paths`` the rules of a .gitignore leave out. ``scratch``: an empty folder."""
    (scratch / ".gitignore").write_bytes(ignore_file)
    made = Repository(scratch)
    made._run("init", "--quiet", "--template=")
    done = subprocess.run(
        _command("-C", str(scratch), "check-ignore", "--no-index", "-z", "--stdin"),
        input="\0".join(paths),
        capture_output=True,
        text=True,
        env=_environment(),
        check=False,
    )
    return frozenset(filter(None, done.stdout.split("\0")))


def _command(*arguments: str) -> list[str]:
    return ["git", *(part for setting in _INERT for part in ("-c", setting)), *arguments]


def _environment() -> dict[str, str]:
    """Ours without git's own variables: neither another repository nor configuration comes in that way."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return inherited | {
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "LC_ALL": "C",
        "TZ": "UTC",
    }
