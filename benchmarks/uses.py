"""Measure `vllm-regress uses`: loading the history, and a made-up project of 1,000 files.

    python benchmarks/uses.py

It prints seconds of processor time, the least of three runs.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pytest_vllm_regress.answers.api_history.store import FILE, History
from pytest_vllm_regress.answers.uses.answer import answer
from pytest_vllm_regress.answers.uses.project import read_project

FILES, USING = 1000, 200
PLAIN = '"""A module."""\n\n' + "\n".join(
    f"def f{n}(a, b=1):\n    return [a, b, {n}]\n" for n in range(40)
)
ENGINE = (
    PLAIN
    + """
from vllm import LLM, SamplingParams
from vllm.sampling_params import GuidedDecodingParams
from vllm.utils import get_open_port

class Server:
    def __init__(self):
        self.llm = LLM("m", seed=1, gpu_memory_utilization=0.5, swap_space=2)

    def answer(self, prompts):
        params = SamplingParams(n=2, guided_decoding=GuidedDecodingParams(regex="a"))
        return self.llm.generate(prompts, params, use_tqdm=False)
"""
)


def least(run: Callable[[], object]) -> float:
    times = []
    for _ in range(3):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


def ask(folder: Path) -> None:
    history = History.load()
    answer(read_project(folder, history), history)


if __name__ == "__main__":
    print(f"{FILE.name}: {FILE.stat().st_size} bytes")
    print(f"open the history: {least(History.load):.4f} s")
    print(
        f"open it and look up a name: {least(lambda: History.load().symbols('vllm.entrypoints.llm')):.4f} s"
    )
    with tempfile.TemporaryDirectory() as folder:
        for number in range(FILES):
            Path(folder, f"m{number}.py").write_text(ENGINE if number < USING else PLAIN)
        print(f"{FILES} files, of which {USING} use vLLM: {least(lambda: ask(Path(folder))):.2f} s")
