"""What upstream's collect_env.py prints in the environment in which a failure was recorded."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from ...environments import uv
from ...environments.cache import EnvironmentCache
from ...environments.names import resolve
from ...errors import UsageError
from ...util.masking import mask_log, without_secrets

SCRIPT = "lib/python*/site-packages/vllm/collect_env.py"
SECONDS = 300.0


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
    script = _script(folder, cache)
    # The script lists packages with `uv pip list`, because our environments have no pip.
    path = os.pathsep.join([os.path.dirname(uv.program()), os.environ.get("PATH", os.defpath)])
    try:
        done = subprocess.run(
            [python, "-I", script],
            env={**without_secrets(os.environ), "PATH": path, "VIRTUAL_ENV": str(folder)},
            cwd=os.sep,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise UsageError(f"{script}: did not end within {SECONDS:g} s in {environment}") from None
    if done.returncode:
        raise UsageError(
            f"{script}: ended with status {done.returncode} in {environment}: {mask_log(done.stderr).strip()[-500:]}"
        )
    return mask_log(done.stdout)


def _script(folder: Path, cache: EnvironmentCache) -> Path:
    for place in (folder, *(built.path for built in reversed(cache.listing()))):
        for script in place.glob(SCRIPT):
            return script
    raise UsageError(
        "no built environment has upstream's collect_env.py. Run `vllm-regress env build vllm-0.8.5`"
    )
