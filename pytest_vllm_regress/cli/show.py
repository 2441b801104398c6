"""``vllm-regress show``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..answers.audit.boundaries import boundaries
from ..answers.audit.verdict_table import read_table
from ..cases.model import fields_of
from ..util.text import one_line
from .context import Invocation, TextOrJson, print_json, say, warn_of


def show(command: Invocation, case_id: str, format: TextOrJson = "text") -> None:
    """Show all fields of a case and the ends of its range.

    It says which of these ends were observed.
    """

    (case,) = command.select([case_id])
    # Tests check the built-in cases, and the check takes a second.
    if command.cases_dir is not None:
        warn_of(case, command.loaded.cases)
    ends = boundaries(case, read_table([case]))
    if format == "json":
        print_json({**fields_of(case), "boundaries": [end.to_json() for end in ends]})
        return
    for name, value in fields_of(case).items():
        if name == "variants":
            _print_variants(value)
        elif value not in (None, "", [], {}, False):
            say(f"{name + ':':14}{_one_line(value)}")
    for end in ends:
        say(f"{'boundary:':14}{end}")


def _print_variants(variants: Mapping[str, Mapping[str, Any]]) -> None:
    """Print one variant per line, since a reason may contain any separator."""
    for name, variant in variants.items():
        affected = (
            f"affected {_one_line(variant['affected'])}"
            if variant["affected"]
            else "never affected"
        )
        reason = one_line(variant["reason"])
        say(f"{'variant:':14}{name}: {affected}{reason and f' ({reason})'}")


def _one_line(value: object) -> str:
    if isinstance(value, dict):
        return "; ".join(
            f"{key} {_one_line(item)}".strip()
            for key, item in value.items()
            if item not in ("", [])
        )
    if isinstance(value, list):
        return ", ".join(map(_one_line, value))
    return str(value).lower() if isinstance(value, bool) else one_line(str(value))
