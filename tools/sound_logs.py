"""Record the output of successful runs, for the static check of patterns: ``python -m
tools.sound_logs [ENVIRONMENT ...]``.

In each environment one server starts on the simulated device and answers. The log and the stacks of
the idle processes are recorded. Secrets and machine paths are masked; lines that differ only in
numbers are kept once.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

from pytest_vllm_regress import engine
from pytest_vllm_regress.cases.proofs.lint import SOUND_LOGS
from pytest_vllm_regress.engines.processes.dossier import compile_dossier
from pytest_vllm_regress.errors import Part
from pytest_vllm_regress.util.masking import mask
from pytest_vllm_regress.util.paths import strip_machine_paths
from pytest_vllm_regress.util.text import truncate_middle

ENVIRONMENTS = {"vllm-0.7.3": "V0", "vllm-0.8.5": "V1", "vllm-0.11.2": "V1", "vllm-0.33.0": "V1"}
"""Environments, and the engine generation in each."""
MAX_LINE, MAX_TEXT = 4_000, 30_000
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_NUMBER = re.compile(r"\d+|0x[0-9a-f]+")


def record(environment: str) -> None:
    """Write ``<environment>.log`` and ``.stacks``."""
    with engine(
        environment, front="serve", device="sim", generation=ENVIRONMENTS.get(environment, "auto")
    ) as server:
        server.chat([{"role": "user", "content": "Hello"}], max_tokens=4)
        server.post(
            "/v1/completions",
            {"model": server.model, "prompt": "Hello", "max_tokens": 4, "stream": True},
        )
        dossier = compile_dossier(title=environment, processes=server.child.processes(), logs=[])
        texts = {
            Part.LOG: server.child.log.read_text(errors="replace"),
            Part.STACKS: dossier.stack_text,
        }
    for part, raw in texts.items():
        text = truncate_middle(
            "\n".join(distinct_lines(strip_machine_paths(mask(_COLOUR.sub("", raw))))), MAX_TEXT
        )
        (SOUND_LOGS / f"{environment}.{part}").write_text(text + "\n")
        print(f"{environment}: {part}: {len(text)} characters")


def distinct_lines(text: str) -> Iterator[str]:
    """Yield the lines of a text; of lines that differ only in numbers, the first."""
    patterns = set()
    for line in text.splitlines():
        pattern = _NUMBER.sub("0", line.strip())
        if pattern and pattern not in patterns:
            patterns.add(pattern)
            yield line[:MAX_LINE].rstrip()


if __name__ == "__main__":
    SOUND_LOGS.mkdir(exist_ok=True)
    for name in sys.argv[1:] or ENVIRONMENTS:
        record(name)
