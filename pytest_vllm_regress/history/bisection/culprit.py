"""The commit that fixed or broke a case, as text, as JSON, and as Markdown for an upstream thread."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from ...cases.model import Case
from ...cases.proofs.proof import names_commit
from ...environments.git import Commit
from ...util.text import markdown_block, markdown_inline
from .algorithm import State
from .commits import History
from .search_log import CandidateResult


@dataclasses.dataclass(frozen=True)
class Culprit:
    """The commit that fixed (``is_fix``) or introduced the failure.

    ``parent``: the last commit before it with a clear state.
    ``doubtful``: the commits between the two, which have no clear state.
    ``result``, ``parent_result``: of the confirming runs.
    ``release``: the first release that contains the commit; empty if there is none in the clone.
    """

    case: Case
    history: History
    commit: Commit
    parent: Commit
    is_fix: bool
    doubtful: tuple[Commit, ...]
    result: CandidateResult
    parent_result: CandidateResult
    release: str

    @property
    def confirmed(self) -> bool:
        """Whether the confirming runs agree with the search."""
        before, after = (State.BAD, State.GOOD) if self.is_fix else (State.GOOD, State.BAD)
        return (self.result.state, self.parent_result.state) == (after, before)

    @property
    def pull_request(self) -> str:
        """The URL of the pull request in the commit's subject; empty if there is none."""
        number = self.commit.pull_request
        return f"{self.history.project.repository}/pull/{number}" if number else ""

    @property
    def address(self) -> str:
        """The URL to name in the case file: that of the pull request, else that of the commit."""
        return self.pull_request or self._commit_url

    @property
    def documented(self) -> bool | None:
        """Whether ``fixed-by`` (``broken-by``) of the case names this commit; None if the field is
        empty."""
        return names_commit(self._named, self.address, self.commit.id) if self._named else None

    @functools.cached_property
    def changed_requirements(self) -> tuple[str, ...]:
        """The requirement files that differ between the commit and its parent.

        Each ran with the packages that its own files ask for.
        """
        read, files = self.history.repository.read, self.history.project.requirement_files
        return tuple(
            path for path in files if read(self.commit.id, path) != read(self.parent.id, path)
        )

    @property
    def package_warning(self) -> str:
        """That a package may be the cause, and how to find out; empty if the requirement files are
        the same."""
        if not self.changed_requirements:
            return ""
        return (
            f"a package may be the cause, and not {self.commit.id[:10]}: {' and '.join(self.changed_requirements)} changed, and each commit ran "
            "with the packages that its own files ask for. To find out, run one release with both versions of the package: "
            f"vllm-regress run {self.case.id} --env NAME+PACKAGE==VERSION"
        )

    @property
    def verb(self) -> str:
        return "fixed" if self.is_fix else "broken"

    @property
    def _named(self) -> tuple[str, ...]:
        return self.case.fixed_by if self.is_fix else self.case.broken_by

    @property
    def _commit_url(self) -> str:
        return f"{self.history.project.repository}/commit/{self.commit.id}"

    def lines(self) -> list[str]:
        """Return the text for people; the last line is the answer."""
        commit, parent = self.commit, self.parent
        confirmation = (
            f"run again: {commit.id[:10]} {rate_in_words(self.result)}, "
            f"its parent {parent.id[:10]} {rate_in_words(self.parent_result)}"
        )
        doubt = [f"in doubt: {suspect.id[:10]} {suspect.subject}" for suspect in self.doubtful]
        release = (
            f"first release: {self.release}"
            if self.release
            else "not in a release yet, according to this clone"
        )
        parts = (
            f"{self.case.id}: {self.verb} by {commit.id[:10]} ({commit.authored.date()}) {commit.subject}",
            self.pull_request,
            release,
        )
        return [confirmation, *doubt, *self._warnings(), "; ".join(filter(None, parts))]

    def _warnings(self) -> list[str]:
        warnings = []
        if not self.confirmed:
            warnings.append(
                "not confirmed: further runs gave another result; try more trials (--trials)"
            )
        if self.package_warning:
            warnings.append(self.package_warning)
        if self.documented is False:
            field = "fixed-by" if self.is_fix else "broken-by"
            warnings.append(
                f"{self.case.path}: {field} names {', '.join(self._named)}, and not this commit or its pull request"
            )
        return warnings

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``--json``."""
        return {
            "kind": "fix" if self.is_fix else "break",
            "commit": self.commit.id,
            "parent": self.parent.id,
            "subject": self.commit.subject,
            "pull_request": self.pull_request,
            "authored": self.commit.authored.isoformat(),
            "first_release": self.release,
            "confirmed": self.confirmed,
            "documented": self.documented,
            "again": {
                "commit": result_to_json(self.result),
                "parent": result_to_json(self.parent_result),
            },
            "changed_requirements": self.changed_requirements,
            "in_doubt": [
                {"commit": commit.id, "subject": commit.subject} for commit in self.doubtful
            ],
        }

    def markdown(self, environment: Callable[[Commit], str]) -> str:
        """Return a text for an upstream thread, with the commands to reproduce it in
        ``environment(commit)``."""
        commit = self.commit
        pull_request = f" (pull request {self.pull_request})" if self.pull_request else ""
        release = (
            f"\nThe first release that contains it: {markdown_inline(self.release)}.\n"
            if self.release
            else ""
        )
        commands = "\n".join(
            f"vllm-regress run {self.case.id} --env {_quoted(environment(revision))} "
            f"--source {self.history.project.distribution}=CLONE"
            for revision in (self.parent, commit)
        )
        return (
            f"**{markdown_inline(self.case.title)}** is {self.verb} by {self._link(commit)}{pull_request}: {markdown_inline(commit.subject)} "
            f"({commit.authored.date()}).\n{release}{self._doubt_in_markdown()}\n"
            f"Case `{self.case.id}`, on the simulated device (the commit's Python over the compiled parts of a release's wheel); "
            f"{self._link(commit)} {markdown_inline(rate_in_words(self.result))}, "
            f"its parent {self._link(self.parent)} {markdown_inline(rate_in_words(self.parent_result))}.\n\n"
            f"{markdown_block(commands, 'sh')}\n"
        )

    def _doubt_in_markdown(self) -> str:
        if not self.doubtful:
            return ""
        commits = "".join(
            f"- {self._link(commit)} {markdown_inline(commit.subject)}\n"
            for commit in self.doubtful
        )
        return f"\nCommits without a clear verdict between it and the last commit with one:\n\n{commits}"

    def _link(self, commit: Commit) -> str:
        return f"[{commit.id[:10]}]({self.history.project.repository}/commit/{commit.id})"


def _quoted(text: str) -> str:
    """Return ``text`` as one word of a shell, always in quotes."""
    return "'" + text.replace("'", "'\"'\"'") + "'"


def rate_in_words(result: CandidateResult) -> str:
    """Return "failed 3 of 5 times" or the like."""
    if not result.runs:
        return f"no clear verdict ({result.why})"
    if result.bad:
        return f"failed {result.bad} of {result.runs} times"
    return f"passed {result.runs} of {result.runs} times"


def result_to_json(result: CandidateResult) -> dict[str, Any]:
    return {
        "state": result.state.value,
        "runs": result.runs,
        "bad": result.bad,
        "seconds": result.seconds,
    }
