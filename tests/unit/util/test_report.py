"""A report as Markdown and for a terminal: the same content, and no text has an effect in either."""

from __future__ import annotations

from pytest_vllm_regress.util.report import Markup, Report, Section, Table, to_markdown, to_terminal

REPORT = Report(
    "Results",
    (
        Section(
            "Cases",
            ("Two cases.", Table(("case", "state"), (("a|b", "<b>"), (Markup("[c](c.md)"), "ok")))),
        ),
        Section(parts=(("one", "@two"),)),
    ),
    ("Run again.",),
)


def test_markdown_has_headings_tables_lists_and_notes() -> None:
    assert to_markdown(REPORT) == (
        "# Results\n\n## Cases\n\nTwo cases.\n\n"
        "| case | state |\n| --- | --- |\n| ` a\\|b ` | ` <b> ` |\n| [c](c.md) | ok |\n\n"
        "- one\n- ` @two `\n\nRun again.\n"
    )


def test_a_terminal_has_aligned_columns() -> None:
    assert to_terminal(REPORT) == (
        "Results\n\nCases:\n\nTwo cases.\n\n"
        "case       state\na|b        <b>\n[c](c.md)  ok\n\n  one\n  @two\n\nRun again.\n"
    )


def test_secrets_and_control_characters_are_not_shown() -> None:
    shown = to_terminal(Report("a\x1b[2J", (Section("", ("token: ghp_" + "a" * 36,)),)))
    assert "\x1b" not in shown and "ghp_a" not in shown
