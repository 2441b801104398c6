"""The tutorial that needs no vLLM, as a reader follows it."""

from __future__ import annotations

from pathlib import Path

from tests.helpers.tutorials import follow


def test_audit_and_explain(tmp_path: Path) -> None:
    commands = follow("audit-and-explain.md", tmp_path)
    assert [command.missing for command in commands] == [[], [], []]
