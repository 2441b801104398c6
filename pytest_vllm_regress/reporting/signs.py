"""The sign of each verdict: one for people who see Unicode, one for a terminal that has ASCII only."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ..cases.verdict import Verdict

SIGNS: Mapping[Verdict, str] = MappingProxyType(
    {
        Verdict.REPRODUCED: "●",
        Verdict.FIXED: "✓",
        Verdict.REGRESSED: "✗",
        Verdict.UNEXPECTEDLY_FIXED: "!",
        Verdict.NOT_APPLICABLE: "○",
        Verdict.INCONCLUSIVE: "?",
    }
)
ASCII_SIGNS: Mapping[Verdict, str] = MappingProxyType(
    {
        Verdict.REPRODUCED: "*",
        Verdict.FIXED: "+",
        Verdict.REGRESSED: "x",
        Verdict.UNEXPECTEDLY_FIXED: "!",
        Verdict.NOT_APPLICABLE: "-",
        Verdict.INCONCLUSIVE: "?",
    }
)
