"""``vllm-regress export``."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Literal

from ..answers.audit.boundaries import boundaries
from ..answers.audit.verdict_table import read_table
from ..cases.model import Case
from ..cases.proofs.rejudge import load_observations
from ..environments.recipes import find_file, load
from ..errors import UsageError
from ..output.export.osv import osv_record
from ..output.export.standalone import StandaloneScript, export_script
from ..runner.suite import suite_command
from ..util.files import write_atomically
from ..util.text import render_text
from .context import Invocation, Names, print_json, say, warn

DATA = Path(__file__).parents[1] / "output" / "export" / "data"


def export(
    command: Invocation,
    case_ids: Names = None,
    format: Literal["script", "issue", "ci-failure", "osv", "workflow"] = "script",
    collect_env: bool = False,
    out: Path | None = None,
) -> None:
    """Write a case as a script, a bug report or an OSV record.

    The standalone script is one file with its requirements, which imports nothing of this project.
    It repeats a test that was recorded as REPRODUCED; pytest collects the case's tests for that,
    and none is run. issue and ci-failure are the texts of vLLM's forms for a bug and for a failing
    test in CI, with the script in them. osv is a record of the case file (without CASE: of all).
    workflow is a GitHub Actions workflow that runs your own suite (after --, default: pytest tests/)
    on new releases each night.

    Exit codes: 0 written; 2 usage, or a case that cannot be exported; 4 internal error.
    """

    if collect_env and format not in ("issue", "ci-failure"):
        raise UsageError("--collect-env fills a report: give --format issue or ci-failure with it")
    if collect_env and sys.platform != "linux":
        raise UsageError("--collect-env: Linux only, because it runs a script in an environment")
    if out == Path("-"):
        out = None
    if format == "workflow" or command.pytest_args:
        _write(_workflow(command, format, case_ids), out, "workflow")
        return
    if format == "osv":
        _export_osv(command, case_ids, out)
        return
    if not case_ids or len(case_ids) != 1:
        raise UsageError(
            "name one case: a script shows one failure. `vllm-regress list` lists the cases"
        )
    (case,) = command.select(case_ids)
    script = export_script(case)
    text = script.text
    if format != "script":
        form: Literal["bug", "ci-failure"] = "bug" if format == "issue" else "ci-failure"
        text = _report(form, case, script, collected=collect_env)
    _write(text, out, f"{case.id}, test {script.test}")


def _write(text: str, out: Path | None, what: str) -> None:
    if out is None:
        say(text.rstrip("\n"))
    else:
        write_atomically(out, text)
        say(f"{out}: {what}")


def _workflow(command: Invocation, format: str, case_ids: Names) -> str:
    """Return a workflow that runs a suite from the newest known release on."""
    from ..environments.releases import known_releases

    suite = command.pytest_args or ("pytest", "tests/")
    if format != "workflow" or case_ids or not suite_command(suite):
        raise UsageError("--format workflow runs a suite: give no cases, and `-- pytest ...`")
    newest = known_releases("vllm")[-1].base_version
    return render_text("workflow.yml.txt", DATA, release=newest, suite=shlex.join(suite))


def _report(
    form: Literal["bug", "ci-failure"], case: Case, script: StandaloneScript, *, collected: bool
) -> str:
    from ..environments.cache import EnvironmentCache
    from ..output.export.issue import collect_env, upstream_report

    output = collect_env(script.result.environment, EnvironmentCache()) if collected else ""
    ends = boundaries(case, read_table([case]))
    return upstream_report(form, script, case, ends, load(find_file()).locks, output)


def _export_osv(command: Invocation, case_ids: Names, out: Path | None) -> None:

    if out is not None and out.exists() and not out.is_dir():
        raise UsageError(
            f"--out {out}: not a directory. For osv records, name a directory, which gets a file for each case"
        )
    records = []
    for case in command.select(case_ids):
        try:
            records.append(osv_record(case, load_observations(case)))
        except UsageError as error:
            if case_ids:
                raise
            warn(f"left out: {error}")
    if out is None:
        print_json(records[0] if len(records) == 1 else records)
        return
    for record in records:
        write_atomically(out / f"{record['id']}.json", json.dumps(record, indent=2) + "\n")
    say(f"{out}: {len(records)} record{'' if len(records) == 1 else 's'}")
