"""SARIF 2.1.0 for code scanning: the one builder, for results of ``audit`` and of ``uses``.

Texts are escaped, so that they are shown literally.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._version import __version__
from ..util.text import markdown_inline, printable

SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)


@dataclass(frozen=True)
class SarifRule:
    """What results have in common. ``help``: what to do; ``links``: pages about it."""

    id: str
    title: str
    help: str
    tags: Sequence[str]
    description: str = ""
    name: str = ""
    links: Sequence[str] = ()


@dataclass(frozen=True)
class SarifResult:
    """A result at a line of the file ``place``; without one at ``source``, which names what was
    examined."""

    rule: SarifRule
    level: str
    message: str
    place: Path | None
    line: int
    source: str


def to_sarif(results: Sequence[SarifResult]) -> dict[str, Any]:
    """Return a SARIF log with one run: all results, and the rules that they refer to."""
    rules = list({result.rule.id: result.rule for result in results}.values())
    order = {rule.id: number for number, rule in enumerate(rules)}
    driver = {"name": "vllm-regress", "version": __version__, "rules": list(map(_rule, rules))}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [{**_result(result), "ruleIndex": order[result.rule.id]} for result in results],
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(rule: SarifRule) -> dict[str, Any]:
    optional = {"name": rule.name, "helpUri": next(iter(rule.links), "")}
    help = {"text": _text(rule.help)}
    if rule.links:
        help["markdown"] = f"{markdown_inline(help['text'])}\n\n{_links(rule.links)}"
    return {
        "id": rule.id,
        **{key: value for key, value in optional.items() if value},
        "shortDescription": {"text": _text(rule.title)},
        "fullDescription": {"text": _text(rule.description or rule.title)},
        "help": help,
        "defaultConfiguration": {"level": "warning"},
        "properties": {"tags": list(dict.fromkeys(rule.tags))},
    }


def _links(links: Iterable[str]) -> str:
    return "\n".join(f"- <{url}>" for url in dict.fromkeys(links))


def _result(result: SarifResult) -> dict[str, Any]:
    location = {
        "artifactLocation": {"uri": _uri(result.place, result.source)},
        "region": {"startLine": result.line},
    }
    # What must not change when a scan is repeated: otherwise an alert is closed and opened anew.
    identity = f"{result.rule.id}\0{location['artifactLocation']}\0{result.message}"
    fingerprint = hashlib.sha256(identity.encode(errors="surrogatepass")).hexdigest()
    return {
        "ruleId": result.rule.id,
        "level": result.level,
        "message": {"text": _text(result.message)},
        "locations": [{"physicalLocation": location}],
        "partialFingerprints": {"vllmRegress/v1": fingerprint[:32]},
    }


def _uri(place: Path | None, source: str) -> str:
    from urllib.parse import quote  # takes time to import, and most commands print no SARIF

    if place is None:
        return quote(source, errors="surrogatepass") if source != "-" else "stdin"
    file = place / "METADATA" if place.is_dir() else place
    return file.as_uri() if file.is_absolute() else quote(os.fsencode(file))


def _text(text: str) -> str:
    """Escape ``text`` so that it is shown literally; a link in it is not a link."""
    return printable(text).replace("](", "] (")
