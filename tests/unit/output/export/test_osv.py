"""OSV records: events of ranges, and what a record holds."""

from __future__ import annotations

import datetime
import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from pytest_vllm_regress.cases.model import Case, Range
from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.output.export.osv import events, osv_record
from tests.helpers.cases import CaseFile, project_cases


@pytest.mark.parametrize(
    ("specifier", "expected"),
    [
        (">=0.7,<0.8.5", [{"introduced": "0.7"}, {"fixed": "0.8.5"}]),
        ("<0.10.6", [{"introduced": "0"}, {"fixed": "0.10.6"}]),
        (">=0.7.16", [{"introduced": "0.7.16"}]),
        (">=1,<=2", [{"introduced": "1"}, {"last_affected": "2"}]),
        (">=1,<2 || >=3", [{"introduced": "1"}, {"fixed": "2"}, {"introduced": "3"}]),
        ("==1.2", [{"introduced": "1.2"}, {"last_affected": "1.2"}]),
    ],
)
def test_a_range_becomes_events(specifier: str, expected: list[dict[str, str]]) -> None:
    assert events("demo", Range("vllm", specifier)) == expected


@pytest.mark.parametrize("specifier", [">0.13", "!=1", "==1.*", ">=2,<1"])
def test_a_range_that_events_cannot_express_is_refused(specifier: str) -> None:
    with pytest.raises(UsageError, match="demo"):
        events("demo", Range("vllm", specifier))


def test_a_record_names_the_package_and_its_sources(tmp_path: Path) -> None:
    case = CaseFile(affected={"vllm": "<0.8.5", "xgrammar": "<0.1.20"}).write(tmp_path)
    record = osv_record(case, ())
    assert record["id"] == "x_VLLMREGRESS-demo"
    assert record["affected"][0]["package"] == {
        "ecosystem": "PyPI",
        "name": "vllm",
        "purl": "pkg:pypi/vllm",
    }
    assert record["references"] == [{"type": "REPORT", "url": "https://example.org/1"}]
    assert record["database_specific"]["also_needs"] == ["xgrammar <0.1.20"]


REFERENCES = {
    "ADVISORY",
    "ARTICLE",
    "DETECTION",
    "DISCUSSION",
    "REPORT",
    "FIX",
    "INTRODUCED",
    "GIT",
    "PACKAGE",
    "EVIDENCE",
    "WEB",
}


@pytest.mark.parametrize("case", project_cases(), ids=lambda case: case.id)
def test_records_have_the_fields_that_the_schema_requires(case: Case) -> None:
    """A part of the schema https://ossf.github.io/osv-schema/ 1.7.5: names, types and allowed
    values of the fields that records use."""
    try:
        record = osv_record(case, ())
    except UsageError:
        assert ">0.13" in case.affected_text()
        return
    assert {*record} == {
        *(
            "schema_version",
            "id",
            "modified",
            "summary",
            "details",
            "affected",
            "references",
            "database_specific",
        )
    }
    assert re.match(r"1\.\d+\.\d+\Z", record["schema_version"]) and record["id"].startswith("x_")
    assert datetime.datetime.strptime(record["modified"], "%Y-%m-%dT%H:%M:%SZ")
    for affected in record["affected"]:
        assert {*affected["package"]} == {"ecosystem", "name", "purl"} and affected["package"][
            "ecosystem"
        ] == "PyPI"
        for affected_range in affected["ranges"]:
            assert affected_range["type"] == "ECOSYSTEM"
            names = [name for event in affected_range["events"] for name in event]
            assert all(len(event) == 1 for event in affected_range["events"])
            assert "introduced" in names and not {"fixed", "last_affected"} <= {*names}
    for reference in record["references"]:
        assert reference["type"] in REFERENCES and urlsplit(reference["url"]).scheme == "https"
