"""OSV records: events of ranges, and what a record holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.export.osv import events, osv_record
from tests.helpers.cases import CaseFile


@pytest.mark.parametrize(
    ("specifier", "expected"),
    [
        (">=0.7,<0.8.5", [{"introduced": "0.7"}, {"fixed": "0.8.5"}]),
        ("<0.10.6", [{"introduced": "0"}, {"fixed": "0.10.6"}]),
        (">=0.7.16", [{"introduced": "0.7.16"}]),
        (">=1,<=2", [{"introduced": "1"}, {"last_affected": "2"}]),
        ("==1.2", [{"introduced": "1.2"}, {"last_affected": "1.2"}]),
    ],
)
def test_a_range_becomes_events(specifier: str, expected: list[dict[str, str]]) -> None:
    assert events("demo", specifier) == expected


@pytest.mark.parametrize("specifier", [">0.13", "!=1", "==1.*", ">=2,<1"])
def test_a_range_that_events_cannot_express_is_refused(specifier: str) -> None:
    with pytest.raises(UsageError, match="demo"):
        events("demo", specifier)


def test_a_record_names_the_package_and_its_sources(tmp_path: Path) -> None:
    case = CaseFile(affected={"vllm": "<0.8.5", "xgrammar": "<0.1.20"}).write(tmp_path)
    record = osv_record(case, ())
    assert record["id"] == "x_VLLMREGRESS-demo"
    assert record["affected"][0]["package"] == {"ecosystem": "PyPI", "name": "vllm", "purl": "pkg:pypi/vllm"}
    assert record["references"] == [{"type": "REPORT", "url": "https://example.org/1"}]
    assert record["database_specific"]["also_needs"] == ["xgrammar <0.1.20"]
