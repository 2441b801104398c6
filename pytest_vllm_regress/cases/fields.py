"""The fields of a case as plain values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .model import Case, Range


def fields_of(case: Case) -> dict[str, Any]:
    """Return all fields of a case as plain values, for ``list`` and ``show``."""
    symptom, control = case.symptom, case.control
    controls = {
        "omits": control.omits,
        "none": control.none,
        **control.changes,
        "probe": dict(control.probe),
    }
    return {
        **{name: getattr(case, name) for name in ("id", "title", "family")},
        "affected": _by_package(case.affected),
        "first_fixed": case.first_fixed(),
        "since": case.since,
        **{
            name: list(getattr(case, name))
            for name in ("upstream", "fixed_by", "broken_by", "devices")
        },
        "symptom": {
            "kinds": list(symptom.kinds),
            "phases": list(symptom.phases),
            "pattern": symptom.pattern,
            "where": {kind.value: list(symptom.parts_for(kind)) for kind in symptom.kinds},
        },
        "variants": {
            name: {
                "affected": False if variant.never else _by_package(variant.ranges),
                "reason": variant.reason,
            }
            for name, variant in case.variants.items()
        },
        "control": {name: value for name, value in controls.items() if value not in ("", {})},
        "evidence": {"affected": list(case.evidence.affected), "fixed": list(case.evidence.fixed)},
        **{name: getattr(case, name) for name in ("workaround", "racy", "notes")},
        "path": str(case.path),
    }


def _by_package(ranges: Iterable[Range]) -> dict[str, str]:
    return {affected.package: affected.specifier for affected in ranges}
