"""What `drift` finds about a release: the stages that fail, the packages to blame, and the pins
that restore it."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import shlex
from collections.abc import Iterator, Mapping


class Stage(enum.StrEnum):
    """What an installation must do, in this order."""

    RESOLVE = "resolve"
    INSTALL = "install"
    IMPORT = "import"
    HELP = "help"
    SERVE = "serve"
    ANSWER = "answer"


@dataclasses.dataclass(frozen=True)
class Culprit:
    """A package whose newer versions break a release. ``good`` and ``bad``: the last version that
    works, and the first that does not.

    ``pin`` is what a user adds to ``pip install``.
    """

    package: str
    then: str
    today: str
    good: str = ""
    bad: str = ""

    @property
    def pin(self) -> str:
        """The specifier that keeps the package below the first bad version."""
        return f"<{self.bad}" if self.bad else f"=={self.then}"


@dataclasses.dataclass(frozen=True)
class Breakage:
    """A stage that fails today, and the packages that break it; empty if no older package restores
    it."""

    stage: Stage
    reason: str
    culprits: tuple[Culprit, ...] = ()


@dataclasses.dataclass(frozen=True)
class Drift:
    """Diagnosis of a release: its breakages in the order in which they were found, and the pins
    with which every stage passes.

    ``confirmed``: the release was installed once more with ``pins`` and passed. ``then``: why the
    resolution of its first day fails, too.
    ``python``: the version of Python that it was installed for.
    """

    version: str
    day: datetime.date
    breakages: tuple[Breakage, ...] = ()
    pins: Mapping[str, str] = dataclasses.field(default_factory=dict)
    confirmed: bool = False
    then: str = ""
    python: str = "3.11"

    @property
    def sound(self) -> bool:
        """Whether ``pip install`` on that day gave a server that answers."""
        return not self.breakages

    @property
    def command(self) -> str:
        """The installation with the pins."""
        return shlex.join(
            [
                "pip",
                "install",
                f"vllm=={self.version}",
                *(f"{name}{pin}" for name, pin in sorted(self.pins.items())),
            ]
        )

    def lines(self) -> Iterator[str]:
        """Yield lines for a person: what fails, because of what, and what to do."""
        if self.sound:
            yield f"vllm {self.version}: installs, starts and answers"
        for breakage in self.breakages:
            yield f"vllm {self.version}: {breakage.stage} fails: {breakage.reason[:200]}"
            for culprit in breakage.culprits:
                change = f"{culprit.package} {culprit.then} -> {culprit.today or 'absent'}"
                yield f"    because of {change}" + (
                    f"; first bad version: {culprit.bad}" if culprit.bad else ""
                )
            if not breakage.culprits:
                yield f"    no older package restores it{': it does not resolve as of its first day either' if self.then else ''}"
        if self.confirmed:
            yield f"    this works (installed and started): {self.command}"
