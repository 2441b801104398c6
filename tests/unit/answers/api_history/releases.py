"""Made-up releases of vLLM for tests: the files of a wheel, and a history of them."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from tools.api_history.growing import GrowingHistory
from tools.api_history.snapshot import read_snapshot

METADATA = "Metadata-Version: 2.1\nName: vllm\nRequires-Python: >=3.9\nRequires-Dist: numpy<2; python_version < '3.13'\n"


def wheel(files: Mapping[str, str], metadata: str = METADATA) -> dict[str, bytes]:
    """Return the files of a wheel: sources by their paths below ``vllm/``."""
    sources = {f"vllm/{path}": textwrap.dedent(text).encode() for path, text in files.items()}
    return {**sources, "vllm-1.dist-info/METADATA": metadata.encode()}


def history_of(releases: Mapping[str, Mapping[str, str]]) -> GrowingHistory:
    """Return the history of releases, oldest first: their files by path below ``vllm/``."""
    history = GrowingHistory()
    for version, files in releases.items():
        history.append(version, read_snapshot(wheel({"__init__.py": "", **files})))
    return history
