"""Measure grammar backends by themselves: the overhead of the harness, and how long compiling and
masks take.

    python benchmarks/schemas.py lm-format-enforcer-0.10.11 lm-format-enforcer-0.11.3
    llguidance-1.7.6 outlines-core-0.2.14

The first table compares the throughput of the harness with a bare loop that performs the same
checks inside the target process, without messages and without comparing with jsonschema. Both sides
get the same questions, alternately. The second table gives microseconds to compile a schema, for
the first mask and for later masks, over schemas that all backends claim to support and a vocabulary
of ``--vocabulary`` tokens made of letters. Real vocabularies are three to five times as large.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import platform
import statistics
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from pytest_vllm_regress.engines.processes.agent import TARGET_SITE
from pytest_vllm_regress.engines.session import Session
from pytest_vllm_regress.engines.standalone import bare_session
from pytest_vllm_regress.errors import Unsupported
from pytest_vllm_regress.fuzz.drawing import drawn
from pytest_vllm_regress.fuzz.schemas.backends import BACKENDS, BackendChecker
from pytest_vllm_regress.fuzz.schemas.schema_hunter import schema_questions
from pytest_vllm_regress.fuzz.schemas.schema_oracle import SchemaQuestion
from pytest_vllm_regress.schemas import PROFILES, Budget

BARE = """
import json, sys, time
from vllm_regress_target.hosts import grammar
backend, tokenizer, questions = sys.argv[1], sys.argv[2], json.load(open(sys.argv[3]))
grammar.warm(tokenizer, [backend])
grammar.check_schema(backend, tokenizer, questions[0])
for _ in sys.stdin:
    began = time.perf_counter()
    for question in questions:
        grammar.check_schema(backend, tokenizer, question)
    print(time.perf_counter() - began, flush=True)
"""

LATENCIES = """
import json, random, sys, time, types
from vllm_regress_target.hosts import grammar

class Timed:
    def __init__(self, walk, seconds):
        self.walk, self.seconds, self.advance = walk, seconds, walk.advance
    def allowed(self):
        began = time.perf_counter()
        allowed = self.walk.allowed()
        self.seconds.append(time.perf_counter() - began)
        return allowed

backend, tokenizer, questions = sys.argv[1], sys.argv[2], json.load(open(sys.argv[3]))
grammar.warm(tokenizer, [backend])
loaded = grammar._backend(backend, tokenizer)
for question in questions:
    seconds = []
    try:
        began = time.perf_counter()
        compiled = loaded.compile(question["schema"])
        compile_s = time.perf_counter() - began
        timed = types.SimpleNamespace(walk=lambda: Timed(compiled.walk(), seconds))
        rng = random.Random(question["seed"] * 1000)
        grammar._walk(timed, loaded.vocabulary, rng, question["max_tokens"])
    except BaseException:
        continue
    print(json.dumps([compile_s, seconds]))
"""


def installed(
    session: Session, environment: str, backend: str, tokenizer: Path | None = None
) -> BackendChecker | None:
    """Return the checker of a backend; None if the environment has no usable version of it."""
    try:
        return BackendChecker(session, environment, backend, tokenizer=tokenizer)
    except Unsupported:
        return None


def vocabulary(plain: Path, size: int) -> Path:
    """Write a tokenizer.json with about ``size`` tokens: the forged tokenizer's, and words of two
    to four letters, alone and after a space."""
    document = json.loads(plain.read_text())
    known = document["model"]["vocab"]
    words = (
        "".join(letters)
        for length in (2, 3, 4)
        for letters in itertools.product(string.ascii_lowercase, repeat=length)
    )
    number = max([*known.values(), *(token["id"] for token in document["added_tokens"])]) + 1
    for word in itertools.islice(words, (size - number) // 2):
        for text in (word, "\u0120" + word):
            if text not in known:
                known[text] = number
                number += 1
    path = Path(tempfile.mkdtemp(prefix="vr-bench-"), "tokenizer.json")
    path.write_text(json.dumps(document))
    return path


def percentile(values: list[float], part: float) -> float:
    """Return a percentile in microseconds."""
    return sorted(values)[min(len(values) - 1, int(part * len(values)))] * 1e6


@contextlib.contextmanager
def bare_process(
    program: str, checker: BackendChecker, questions: list[SchemaQuestion]
) -> Iterator[subprocess.Popen[str]]:
    """Run a program in the target interpreter, with the backend, the tokenizer and the questions."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        fields = [{name: getattr(q, name) for name in q.__struct_fields__} for q in questions]
        json.dump(fields, file)
        file.flush()
        command = [str(checker.python), "-c", program]
        with subprocess.Popen(
            [*command, checker.backend, checker.tokenizer, file.name],
            env={**os.environ, "PYTHONPATH": str(TARGET_SITE), "OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as bare:
            yield bare


def throughput(checker: BackendChecker, questions: list[SchemaQuestion], rounds: int) -> str:
    """Return a row: seconds of the bare loop divided by the harness's, as median and spread."""
    with bare_process(BARE, checker, questions) as bare:
        assert bare.stdin is not None and bare.stdout is not None
        checker.ask(questions[0])
        harness, bare_loop = [], []
        for _ in range(rounds):
            began = time.perf_counter()
            for question in questions:
                checker.ask(question)
            harness.append(time.perf_counter() - began)
            bare.stdin.write("\n")
            bare.stdin.flush()
            bare_loop.append(float(bare.stdout.readline()))
    ratios = [a / b for a, b in zip(bare_loop, harness, strict=True)]
    checks = sum(question.checks for question in questions) / statistics.median(harness) * 60
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    return f"| {checker.backend} {checker.version} | {statistics.median(ratios):.2f} | {spread} | 0.8 | {checks:,.0f} |"


def latencies(checker: BackendChecker, questions: list[SchemaQuestion]) -> str:
    """Return a row with latencies in microseconds."""
    compile_s, first, later = [], [], []
    with bare_process(LATENCIES, checker, questions) as bare:
        assert bare.stdout is not None
        for compiled, masks in map(json.loads, bare.stdout):
            compile_s.append(compiled)
            first += masks[:1]
            later += masks[1:]
    cells = [
        f"{percentile(values, part):,.0f}"
        for values in (compile_s, first, later)
        for part in (0.5, 0.99)
    ]
    return f"| {checker.backend} {checker.version} | {' | '.join(cells)} | {len(later)} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("environments", nargs="+")
    parser.add_argument("--schemas", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--vocabulary", type=int, default=32_000)
    options = parser.parse_args()
    questions = drawn(schema_questions(PROFILES["basic"], Budget(nodes=12)), options.schemas, 0)
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {sys.platform}"
    print(f"{len(questions)} schemas, {options.rounds} rounds; {machine}\n")
    with bare_session() as session:
        candidates = [(name, backend) for name in options.environments for backend in BACKENDS]
        checkers = [
            checker
            for name, backend in candidates
            if (checker := installed(session, name, backend))
        ]
        print(
            "| backend | throughput, harness over bare loop | spread | goal | checks a minute |\n| --- | --- | --- | --- | --- |"
        )
        for checker in checkers:
            print(throughput(checker, questions, options.rounds), flush=True)
        large = vocabulary(Path(checkers[0].tokenizer), options.vocabulary)
        print(f"\n{options.vocabulary} tokens, microseconds\n")
        print(
            "| backend | compile p50 | p99 | first mask p50 | p99 | mask p50 | p99 | masks |\n| --- | --- | --- | --- | --- | --- | --- | --- |"
        )
        for name, backend in candidates:
            if timed := installed(session, name, backend, large):
                print(latencies(timed, questions), flush=True)
        large.unlink()
        large.parent.rmdir()


if __name__ == "__main__":
    main()
