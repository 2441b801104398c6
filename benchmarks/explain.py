"""Measure `vllm-regress explain`: on a frozen sample of reports that people wrote, how long it
takes for logs of 200 MB, or for lines made to slow a pattern down.

    python benchmarks/explain.py --texts DIR [--half dev] [--verbose]
    python benchmarks/explain.py --speed [MEGABYTES]
    python benchmarks/explain.py --patterns

The sample, `samples/explain.jsonl`, refers to the reports by repository and number and holds their
labels; DIR has their texts in the files that it names. A text whose SHA-256 differs is left out.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import multiprocessing
import re
import resource
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pytest_vllm_regress.answers.explain.case_patterns import required_literals
from pytest_vllm_regress.answers.explain.diagnoses import diagnoses
from pytest_vllm_regress.answers.explain.log import explain
from pytest_vllm_regress.cases.loading import default_cases_dir, load_all_cases
from pytest_vllm_regress.cases.model import Case
from pytest_vllm_regress.cases.proofs.lint import SOUND_LOGS

SAMPLE = Path(__file__).parent / "samples" / "explain.jsonl"
ALONE, FIRST, BESIDE = "root cause alone", "root cause first", "root cause, not first"
WRONG, TRACEBACK_MISSED = "only a follow-up or wrong", "nothing, with a traceback"
LINE_MISSED = "nothing, with an error line"
OUTCOMES = (ALONE, FIRST, BESIDE, WRONG, TRACEBACK_MISSED, LINE_MISSED)
SURE = ("certain", "likely")
HEAD = "Traceback (most recent call last)"

TRACEBACK = """ERROR 11-23 17:35:54 [core.py:634] Traceback (most recent call last):
ERROR 11-23 17:35:54 [core.py:634]   File "/opt/lib/python3.11/site-packages/vllm/v1/engine/core.py", line {n}, in step
ERROR 11-23 17:35:54 [core.py:634]     scheduler_output = self.scheduler.schedule()
ERROR 11-23 17:35:54 [core.py:634] ValueError: request {n} is not known
"""
HOSTILE = {
    "only tracebacks": TRACEBACK,
    "only assertions": "E   AssertionError: expected JSON {n}, got {n} from the stream, got []\n",
    "one line": "x {n} ",
    "one line of errors": "Traceback (most recent call last) AssertionError: {n} ",
    "empty lines": "\n",
    "escapes": "\x1b[31m\x1b]0;{n}\x07 AssertionError: \udcff\x00\n",
    "open tracebacks": "(p{n} pid={n}) Traceback (most recent call last):\n",
}


class Repeated(io.RawIOBase):
    """A stream of ``size`` bytes that repeats a text, numbered. It holds one block."""

    def __init__(self, text: str, size: int) -> None:
        self._blocks, self._left = self._numbered(text), size

    @staticmethod
    def _numbered(text: str) -> Iterator[bytes]:
        number = 0
        while True:
            lines = []
            for _ in range(1 + 500_000 // len(text)):
                lines.append(text.replace("{n}", str(number)))
                number += 1
            yield "".join(lines).encode("utf-8", "surrogateescape")

    def read(self, size: int = -1) -> bytes:
        block = next(self._blocks)[: self._left]
        self._left -= len(block)
        return block


def measure_speed(name: str, text: str, size: int) -> None:
    """Print the time and the memory for one log."""
    cases = load_all_cases(default_cases_dir())
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    explanation = explain(Repeated(text, size), cases, name)  # type: ignore[arg-type]
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    counts = f"{len(explanation.findings)} findings, {len(explanation.unknown)} other failures"
    print(
        f"{name:22}{time.process_time() - began:6.1f} s{grown / 1024:7.0f} MiB more  {counts}",
        flush=True,
    )


def speed(megabytes: int) -> None:
    """Measure each log in a process of its own."""
    sound = (SOUND_LOGS / "vllm-0.8.5.log").read_text(encoding="utf-8")
    logs = {"a server's log": sound.replace("{", "(")}
    for name, text in {**logs, **HOSTILE}.items():
        process = multiprocessing.get_context("spawn").Process(
            target=measure_speed, args=(name, text, megabytes * 1_000_000)
        )
        process.start()
        process.join()


PIECES = (
    *(
        "a",
        "x y ",
        "1",
        "(",
        "[",
        '"',
        "'",
        "\\",
        ": ",
        "Error: ",
        "E   ",
        'File "a", line 1, in b ',
    ),
    *(
        "0.1.2",
        "--a-b ",
        "> ",
        "it/s ",
        "/a",
        "a.b.",
        "a_",
        "'a': ",
        "{'a'",
        "^ ",
        "AErrorA",
        "and ",
    ),
    *("Traceback (most recent call last)", "<a ", "&lt;", "\x1b[", "\xa0"),
)
"""What lines consist of, over and over, so that a pattern tries many ways to match."""
HEADS = ("", "ValueError: ", "ERROR 11-23 17:35:54 [core.py:634] ", "E   ")
SLOWEST = 1.0
"""Megabytes of a log that must be read in a second of processor time, whatever its lines hold."""


def _slow_lines(cases: Sequence[Case]) -> Iterator[str]:
    """Yield lines that repeat a piece, or what a pattern looks for."""
    for piece in PIECES:
        for head in HEADS:
            yield from (f"{head}{(piece * size)[:size]} ERROR\n" for size in (80, 4_000, 16_000))
    seen = [case.symptom.pattern for case in cases]
    seen += [case.log.pattern for case in cases if case.log]
    for diagnosis in diagnoses().values():
        seen += [*diagnosis.seen, *diagnosis.lines, *diagnosis.unless]
    for pattern in seen:
        for literal in required_literals(pattern):
            yield f"ValueError: {(literal + ' ') * (4_000 // len(literal))}\n"


def patterns() -> bool:
    """Print the lines that are read slowest; return whether all are read fast enough."""
    cases = load_all_cases(default_cases_dir())
    rates = []
    for line in _slow_lines(cases):
        content = (line * (1 + 100_000 // len(line))).encode()
        began = time.process_time()
        explain(io.BytesIO(), cases, "nothing")
        prepared = time.process_time()
        explain(io.BytesIO(content), cases, "line")
        seconds = time.process_time() - prepared - (prepared - began)
        rates.append((len(content) / 1e6 / max(seconds, 1e-6), line))
    rates.sort()
    print(f"{len(rates)} kinds of lines; the slowest, in MB a second of processor time:")
    for rate, line in rates[:10]:
        print(f"{rate:7.2f}  {len(line):6} characters: {line[:60]!r}")
    return rates[0][0] >= SLOWEST


def _plain(text: str) -> str:
    """Return a text without what quoting and escaping change."""
    return re.sub(r"[\s\\'\"`]+", " ", text).strip()


def _shown(document: dict[str, Any]) -> list[tuple[str, list[int]]]:
    """Return the failures in the order in which they are shown, as (text, lines): both ends of a
    chain are one. A follow-up is shown only if there is nothing else."""
    found: list[tuple[str, list[int]]] = []
    doubtful: list[tuple[str, list[int]]] = []
    for entry in document["findings"]:
        is_sure = entry["certainty"] in SURE
        (found if is_sure else doubtful).append((entry["text"], list(entry["lines"])))
    for entry in document["unknown"]:
        texts = [f"{entry['exception']}: {entry['message']}", *(text for _, text in entry["chain"])]
        lines = [entry["line"], *(line for line, _ in entry["chain"])]
        found.append((" | ".join(texts), lines))
    found += doubtful
    return found


def outcome(label: dict[str, Any], document: dict[str, Any], text: str) -> str:
    """Return which of ``OUTCOMES`` an answer is."""
    shown = _shown(document)
    if label["shape"] == "follow-up-only" and document["only_follow_up"]:
        return ALONE
    if not shown:
        return TRACEBACK_MISSED if HEAD in text else LINE_MISSED
    roots = [_plain(root) for root in (label["root"]["text"], *label["root_also"])]
    hits = [
        any(root in _plain(words) for root in roots) or label["root_line"] in lines
        for words, lines in shown
    ]
    if hits[0]:
        return ALONE if len(hits) == 1 else FIRST
    return BESIDE if any(hits) else WRONG


def _report(half: str, labels: list[dict[str, Any]], rows: list[dict[str, Any]]) -> None:
    errors = [row for row in rows if row["error"]]
    sound = [row for row in rows if not row["error"]]
    print(f"{half}: {len(rows)} of {len(labels)} texts, {len(errors)} with an error")

    def line(name: str, count: int, of: int) -> None:
        print(f"  {name:52}{count:4} of {of:4}{count / max(of, 1):7.1%}")

    counts = Counter(row["outcome"] for row in errors)
    for name in OUTCOMES:
        line(name, counts[name], len(errors))
    line("root cause alone or first", counts[ALONE] + counts[FIRST], len(errors))
    clear = [row for row in errors if not row["ambiguous"]]
    line(
        "  without ambiguous labels", sum(r["outcome"] in (ALONE, FIRST) for r in clear), len(clear)
    )
    sure = [row for row in rows if any(certainty in SURE for _, certainty in row["claimed"])]
    line("documented failure claimed, certain or likely", len(sure), len(rows))
    line("documented failure claimed at all", sum(bool(r["claimed"]) for r in rows), len(rows))
    line(
        "diagnosis or documented failure with advice",
        sum(r["advised"] for r in errors),
        len(errors),
    )
    rooted = [row for row in errors if row["outcome"] in (ALONE, FIRST)]
    line("  with the root cause alone or first", sum(r["advised"] for r in rooted), len(errors))
    line("something shown for a text without an error", sum(r["shown"] for r in sound), len(sound))


def _row(label: dict[str, Any], document: dict[str, Any], text: str) -> dict[str, Any]:
    shown = _shown(document)
    result = outcome(label, document, text) if label["error"] else "no error"
    is_right = result in (ALONE, FIRST) if label["error"] else not shown
    return {
        **label,
        "outcome": result,
        "right": is_right,
        "claimed": [(found["case"], found["certainty"]) for found in document["findings"]],
        "advised": document["advised"],
        "shown": bool(shown),
    }


def _describe(row: dict[str, Any], document: dict[str, Any]) -> None:
    """Print what was expected and what is shown."""
    print(f"{row['id']} ({row['category']}, {row['shape']}): {row['outcome']}")
    if row["error"]:
        print(f"    label  line {row['root_line']}: {row['root']['text'][:90]}")
    for words, lines in _shown(document)[:3]:
        print(f"    shown  lines {lines}: {words[:90]}")


def quality(texts: Path, halves: list[str], verbose: bool) -> None:
    """Print the shares of each half. Every documented claim is listed, to be judged by a person."""
    cases = load_all_cases(default_cases_dir())
    labels = [json.loads(line) for line in SAMPLE.read_text(encoding="utf-8").splitlines()]
    for half in halves:
        chosen = [label for label in labels if label["half"] == half]
        rows = []
        for label in chosen:
            content = (texts / label["file"]).read_bytes()
            if hashlib.sha256(content).hexdigest() != label["sha256"]:
                continue
            explanation = explain(io.BytesIO(content), cases, label["id"])
            document = json.loads(json.dumps(explanation.to_json(), default=str))
            row = _row(label, document, content.decode("utf-8", "replace"))
            rows.append(row)
            if row["claimed"]:
                print(f"  claimed: {label['id']}: {row['claimed']}")
            if verbose and not row["right"]:
                _describe(row, document)
        _report(half, chosen, rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--half", choices=("dev", "test", "new"))
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--speed", type=int, nargs="?", const=200)
    parser.add_argument("--patterns", action="store_true")
    arguments = parser.parse_args()
    if arguments.texts:
        quality(
            arguments.texts,
            [arguments.half] if arguments.half else ["dev", "test", "new"],
            arguments.verbose,
        )
    if arguments.speed:
        speed(arguments.speed)
    if arguments.patterns and not patterns():
        raise SystemExit(f"lines are read at less than {SLOWEST:g} MB a second")


if __name__ == "__main__":
    main()
