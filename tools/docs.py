"""Write the generated pages of the documentation: ``python -m tools.docs``. With ``--check``, only
say which ones are out of date; the exit status is then 1.

Pages come from the code, the cases and the records in docs/records. ``docs/generated/faults.md`` is
missing here: it is written by the tests that it is about (``tox run -e faults``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer

from pytest_vllm_regress.surveys.conformance import open_runs, read_known, suite_directory
from pytest_vllm_regress.surveys.drift_record import open_drifts
from pytest_vllm_regress.surveys.states.measure import TABLES, open_states
from pytest_vllm_regress.util.files import write_atomically
from tools import (
    bisections,
    conformance_page,
    findings,
    most_reported,
    parser_table,
    pictures,
    record,
    reference,
    states_pages,
    upstream,
    verdicts,
)

DOCS = Path(__file__).parents[1] / "docs"
EXAMPLES = DOCS.parent / "examples" / "clients"
RECORDS = DOCS / "records"


def _conformance() -> str:
    runs = open_runs(RECORDS / "conformance.jsonl").entries.values()
    return conformance_page.page(runs, read_known(suite_directory() / "known.toml"))


def _drift() -> str:
    return record.drift_page(open_drifts(RECORDS / "drift.jsonl").entries.values())


def _states(table: str) -> Callable[[], str]:
    return lambda: states_pages.page(table, open_states(RECORDS / "states.jsonl").entries.values())


def _client_rows() -> Iterator[str]:
    """Return the files of the example suite, each under a heading: shared ones, then clients."""
    files = sorted(EXAMPLES.glob("*.py"), key=lambda path: (path.name.startswith("test"), path))
    for path in files:
        client = path.stem.removeprefix("test_").replace("_", "-")
        title = client if path.name.startswith("test") else path.name
        yield from ("", f"## {title}", "", "```python", path.read_text("utf-8").rstrip(), "```")
    yield ""


def _with_parts(path: str, parts: Mapping[str, Callable[[], Iterable[str]]]) -> Callable[[], str]:
    """Return what makes a page that is written by hand but for these parts, each between
    ``<!-- generated: NAME -->`` and ``<!-- end -->``."""

    def build() -> str:
        text = (DOCS / path).read_text(encoding="utf-8")
        for name, rows in parts.items():
            new = "\n".join((f"<!-- generated: {name} -->", *rows(), "<!-- end -->"))
            old = re.compile(f"<!-- generated: {name} -->\n.*?<!-- end -->", re.DOTALL)
            text, count = old.subn(lambda _, new=new: new, text)  # type: ignore[misc]
            if count != 1:
                raise SystemExit(f"{path} has {count} parts `generated: {name}`, expected one")
        return text

    return build


PAGES: dict[str, Callable[[], str]] = {
    **{
        f"reference/{page}.md": _with_parts(f"reference/{page}.md", parts)
        for page, parts in reference.PARTS.items()
    },
    "how-to/client-recipes.md": _with_parts("how-to/client-recipes.md", {"clients": _client_rows}),
    "generated/verdicts.md": _with_parts("generated/verdicts.md", verdicts.PARTS),
    "agreement.svg": pictures.agreement,
    "growth.svg": lambda: pictures.growth(open_states(RECORDS / "states.jsonl").entries.values()),
    "explanation/what-a-verdict-proves.md": _with_parts(
        "explanation/what-a-verdict-proves.md", {"agreement": verdicts.agreement_rows}
    ),
    **{f"generated/{page.name}.md": page.text for page in findings.PAGES},
    "generated/found-again.md": findings.found_again_page,
    "generated/unreported.md": findings.unreported_page,
    "generated/most-reported.md": most_reported.text,
    "generated/parsers.md": parser_table.page,
    "generated/bisections.md": bisections.page,
    "generated/upstream.md": upstream.page,
    "generated/conformance.md": _conformance,
    "generated/drift.md": _drift,
    **{f"generated/{table}.md": _states(table) for table in TABLES},
}
"""What makes each page, by its path below docs."""


def main(
    pages: Annotated[list[str] | None, typer.Argument(metavar="[PAGE]...")] = None,
    check: Annotated[bool, typer.Option(help="Write nothing; say what is out of date.")] = False,
) -> None:
    """Write the generated pages: all, or these (generated/drift.md)."""
    stale = []
    for page in pages or PAGES:
        text, path = PAGES[page](), DOCS / page
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(page)
            typer.echo(f"docs/{page}: {'out of date' if check else 'written'}")
            if not check:
                write_atomically(path, text)
    raise typer.Exit(int(check and bool(stale)))


if __name__ == "__main__":
    typer.run(main)
