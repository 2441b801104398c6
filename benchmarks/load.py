"""Send scripted requests to ``vllm-regress serve``, many at a time: is any answer lost or swapped?

    python benchmarks/load.py [ENVIRONMENT] [REQUESTS] [CONCURRENCY]

Every second request is streamed. It prints the processor time of the command (the gateway) and of
vLLM's processes, until the server is ready and for each request, and how long requests took. The
exit status is 1 if an answer is not its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil


@contextlib.contextmanager
def serving(environment: str) -> Iterator[tuple[psutil.Process, dict[str, Any]]]:
    """Provide the process of ``serve`` and the line that it prints."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "script.json")
        script.write_text('{"template": "You said $text"}')
        words = ["-m", "pytest_vllm_regress", "serve", environment, "--script", str(script)]
        with subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None
                yield psutil.Process(process.pid), json.loads(process.stdout.readline())
            finally:
                process.send_signal(signal.SIGTERM)


def processor_seconds(processes: list[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


async def ask(client: httpx.AsyncClient, model: str, number: int) -> tuple[bool, float]:
    """Return whether the answer is that of the request, and its seconds."""
    text = f"number {number}"
    streamed = number % 2 == 0
    message = {"role": "user", "content": text}
    body = {"model": model, "messages": [message], "stream": streamed}
    begin = time.perf_counter()
    answer = (await client.post("/chat/completions", json=body)).text
    if streamed:
        events = [line[6:] for line in answer.splitlines() if line.startswith("data: {")]
        deltas = (json.loads(event)["choices"][0]["delta"] for event in events)
        said = "".join(delta.get("content") or "" for delta in deltas)
    else:
        said = json.loads(answer)["choices"][0]["message"]["content"]
    return said == f"You said {text}", time.perf_counter() - begin


async def ask_all(
    ready: dict[str, Any], requests: int, concurrency: int
) -> list[tuple[bool, float]]:
    limit = asyncio.Semaphore(concurrency)
    headers = {"Authorization": f"Bearer {ready['api_key']}"}
    async with httpx.AsyncClient(
        base_url=ready["base_url"],
        headers=headers,
        timeout=600,
        limits=httpx.Limits(max_connections=concurrency),
    ) as client:

        async def limited(number: int) -> tuple[bool, float]:
            async with limit:
                return await ask(client, ready["model"], number)

        return await asyncio.gather(*map(limited, range(requests)))


def main() -> int:
    environment = sys.argv[1] if len(sys.argv) > 1 else "vllm-0.33.0"
    requests = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    concurrency = int(sys.argv[3]) if len(sys.argv) > 3 else 64
    with serving(environment) as (process, ready):
        engine = process.children(recursive=True)
        before = processor_seconds([process]), processor_seconds(engine)
        agent = max(processor_seconds([below]) for below in engine)  # it imports vLLM, and no more
        print(f"until ready: processor time of the command {before[0]:.1f} s, ", end="")
        print(f"of the import of vLLM {agent:.1f} s, of the server {before[1] - agent:.1f} s")
        begin = time.perf_counter()
        answers = asyncio.run(ask_all(ready, requests, concurrency))
        seconds = time.perf_counter() - begin
        gateway = processor_seconds([process]) - before[0]
        vllm = processor_seconds(engine) - before[1]
    wrong = sum(not fits for fits, _ in answers)
    times = statistics.quantiles([seconds for _, seconds in answers], n=20)
    print(f"{environment}: {requests} requests, {concurrency} at a time, {wrong} lost or swapped")
    print(f"{requests / seconds:.0f} a second; median {times[9]:.2f} s, 95 % {times[18]:.2f} s")
    print(f"processor time a request: gateway {gateway / requests * 1000:.1f} ms", end=", ")
    print(f"vLLM {vllm / requests * 1000:.1f} ms")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
