"""Records what sound runs write, for the static check of patterns: ``python docs/build_sound_logs.py [ENVIRONMENT ...]``.

In each environment one server is started on the simulated device, answers, is looked at and stops: what its processes wrote, and their stacks
while nothing was asked. Secrets and what is of one machine are hidden, lines that differ only in numbers are kept once.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

from pytest_vllm_regress import engine
from pytest_vllm_regress.cases.lint import SOUND
from pytest_vllm_regress.errors import Part
from pytest_vllm_regress.processes.dossier import compile_dossier
from pytest_vllm_regress.util.masking import mask
from pytest_vllm_regress.util.paths import anywhere
from pytest_vllm_regress.util.text import bounded

ENVIRONMENTS = {"vllm-0.7.3": "V0", "vllm-0.8.5": "V1", "vllm-0.11.2": "V1", "vllm-0.33.0": "V1"}
"""And the generation of the engine there."""
MAX_LINE, MAX_TEXT = 4_000, 30_000
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_NUMBER = re.compile(r"\d+|0x[0-9a-f]+")


def record(environment: str) -> None:
    """Write ``<environment>.log`` and ``.stacks``."""
    with engine(environment, front="serve", device="sim", generation=ENVIRONMENTS.get(environment, "auto")) as server:
        server.chat([{"role": "user", "content": "Hello"}], max_tokens=4)
        server.post("/v1/completions", {"model": server.model, "prompt": "Hello", "max_tokens": 4, "stream": True})
        dossier = compile_dossier(title=environment, processes=server.child.processes(), logs=[])
        texts = {Part.LOG: server.child.log.read_text(errors="replace"), Part.STACKS: dossier.stack_text}
    for part, text in texts.items():
        kept = bounded("\n".join(once(anywhere(mask(_COLOUR.sub("", text))))), MAX_TEXT)
        (SOUND / f"{environment}.{part}").write_text(kept + "\n")
        print(f"{environment}: {part}: {len(kept)} characters")


def once(text: str) -> Iterator[str]:
    """Its lines, those that differ only in numbers once."""
    seen = set()
    for line in text.splitlines():
        alike = _NUMBER.sub("0", line.strip())
        if alike and alike not in seen:
            seen.add(alike)
            yield line[:MAX_LINE].rstrip()


if __name__ == "__main__":
    SOUND.mkdir(exist_ok=True)
    for name in sys.argv[1:] or ENVIRONMENTS:
        record(name)
