"""The page of verdicts, made from a collection with a case that has no proof yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.cases import CaseFile
from tools import verdicts


def test_a_case_without_a_proof_is_named_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdicts, "CASES", (CaseFile("new").write(tmp_path),))
    *_, row = verdicts.impostor_rows()
    assert row.split(" | ")[1:] == ["old", "not proven yet", "new", "not proven yet |"]
    assert [row for row in verdicts.mutation_rows() if "new" in row] == []
