"""Hostile texts that a result file may contain and that must have no effect in any output."""

from __future__ import annotations

from pytest_vllm_regress.cases.results import RunResult, TestResult
from pytest_vllm_regress.cases.verdict import Verdict

SCRIPT = "<script>document.title='owned'</script>"
TEXTS = (
    SCRIPT,
    "<img src=x onerror=\"document.title='owned'\">",
    "\"><svg onload=document.title='owned'>",
    "</pre></details></style><style>*{display:none}</style>",
    "\x1b[2J\x1b]0;owned\x07 red \x1b[31m",
    "\u202eright to left\u2066",
    "]]> &amp; \x00\x08\ufffe",
    "| a | b |\n\n# heading @everyone [x](javascript:alert(1)) `code`",
    "{{ 7 * 7 }} {% raw %}",
    "../../etc/passwd",
    "x" * 300_000,
)


def run() -> RunResult:
    """Return a run with one result for each text; the text is in every field that accepts any text."""
    return RunResult(
        tuple(
            TestResult(
                case_id=f"case-{number}",
                test=text,
                verdict=list(Verdict)[number % len(Verdict)],
                reason=text,
                device="sim",
                environment=f"vllm-0.8.{number % 3} {text[:40]}",
                versions={"vllm": f"0.8.{number % 3}", text[:100]: text[:100]},
                started_at=1.0,
                duration_s=2.0,
                variant=text[:60],
                symptom=text,
                dossier=text + "!",
                command=text,
            )
            for number, text in enumerate(TEXTS)
        ),
        problems=TEXTS,
    )
