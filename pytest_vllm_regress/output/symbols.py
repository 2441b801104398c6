"""The symbol of each verdict, in Unicode and in ASCII, and its short word."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ..cases.verdict import Verdict

SYMBOLS: Mapping[Verdict, str] = MappingProxyType(
    {
        Verdict.REPRODUCED: "●",
        Verdict.FIXED: "✓",
        Verdict.REGRESSED: "✗",
        Verdict.UNEXPECTEDLY_FIXED: "!",
        Verdict.NOT_APPLICABLE: "○",
        Verdict.INCONCLUSIVE: "?",
    }
)
ASCII_SYMBOLS: Mapping[Verdict, str] = MappingProxyType(
    {
        Verdict.REPRODUCED: "*",
        Verdict.FIXED: "+",
        Verdict.REGRESSED: "x",
        Verdict.UNEXPECTEDLY_FIXED: "!",
        Verdict.NOT_APPLICABLE: "-",
        Verdict.INCONCLUSIVE: "?",
    }
)
SHORT_WORDS: Mapping[Verdict, str] = MappingProxyType(
    {
        Verdict.REPRODUCED: "repro",
        Verdict.FIXED: "fixed",
        Verdict.REGRESSED: "regressed",
        Verdict.UNEXPECTEDLY_FIXED: "unexp. fixed",
        Verdict.NOT_APPLICABLE: "n/a",
        Verdict.INCONCLUSIVE: "unclear",
    }
)
