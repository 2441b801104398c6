"""Small git repositories, built commit by commit, with dates that the test chooses."""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

IDENTITY = {
    "GIT_AUTHOR_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example.invalid",
    "GIT_COMMITTER_NAME": "C",
    "GIT_COMMITTER_EMAIL": "c@example.invalid",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
}


class RepositoryBuilder:
    """A repository with its working tree. Each commit is dated one day after the previous one."""

    def copy(self, place: Path) -> RepositoryBuilder:
        """Return a copy of the repository, which takes much less time than to build it again."""
        shutil.copytree(self.place, place)
        copied = copy.copy(self)
        copied.place = place
        return copied

    def __init__(self, place: Path, first_day: int = 1) -> None:
        self.place = place
        self._day = first_day
        place.mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments: str) -> str:
        day = f"2025-03-{self._day:02}T12:00:00+0000"
        environment = {**os.environ, **IDENTITY, "GIT_AUTHOR_DATE": day, "GIT_COMMITTER_DATE": day}
        done = subprocess.run(
            ["git", *arguments],
            cwd=self.place,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    def commit(self, subject: str, files: Mapping[str, str | None] = {}) -> str:
        """Write files (None removes one) and commit. Returns the commit's id."""
        for name, content in files.items():
            file = self.place / name
            if content is None:
                file.unlink()
            else:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(content)
        self.git("add", "--all", "--force")
        self.git("commit", "--quiet", "--allow-empty", "-m", subject)
        self._day += 1
        return self.git("rev-parse", "HEAD")

    def commit_trees(self, trees: Iterable[Mapping[str, str]]) -> None:
        """Add a commit to main for each tree, named "commit 0" and so on, all dated the same day.

        Much faster than ``commit``.
        """
        day = f"C <c@example.invalid> {1740830400 + self._day * 86400} +0000"
        stream = []
        for number, files in enumerate(trees):
            stream.append(
                f"commit refs/heads/main\ncommitter {day}\ndata <<.\ncommit {number}\n.\ndeleteall\n"
            )
            stream += [
                f"M 644 inline {name}\ndata {len(content.encode())}\n{content}\n"
                for name, content in files.items()
            ]
        subprocess.run(
            ["git", "fast-import", "--quiet"],
            cwd=self.place,
            input="".join(stream),
            text=True,
            check=True,
        )
        self._day += 1

    def merge(self, branch: str, subject: str) -> str:
        self.git("merge", "--quiet", "--no-ff", "-m", subject, branch)
        self._day += 1
        return self.git("rev-parse", "HEAD")
