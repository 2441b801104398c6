"""Correct an affected range from the verdicts on releases. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from ...cases.model import Range
from ...util.versions import SEPARATOR

_UPPER = ("<", "<=")
_BOUNDS = (*_UPPER, ">", "!=")
"""Beginnings of the parts that can be left out to extend a range by an adjacent release."""


def corrected(
    affected: Range, releases: Sequence[Version], shown: Mapping[Version, bool]
) -> Range | None:
    """Return the range that agrees with ``shown`` (whether a release showed the failure), changed
    as little as possible.

    ``releases``: all releases of the package, which must include those in ``shown``. None: no
    release has the failure.
    """
    for version in sorted(shown, key=lambda version: (not shown[version], version)):
        if affected.contains(version) == shown[version]:
            continue
        alternatives = (
            _with(affected, version, releases)
            if shown[version]
            else _without(affected, version, releases, shown)
        )
        if not alternatives:
            return None
        affected = Range(
            affected.package, f" {SEPARATOR} ".join(text.strip() for text in alternatives)
        )
    return affected


def _with(affected: Range, version: Version, releases: Sequence[Version]) -> list[str]:
    """Return the alternatives with ``version``: an adjacent one begins earlier or ends later, or
    there is one more (the failure came back)."""
    alternatives = affected.specifier.split(SEPARATOR)
    older = max((release for release in releases if release < version), default=None)
    newer = min((release for release in releases if release > version), default=None)
    for number, text in enumerate(alternatives):
        adjacent = {
            release: release is not None and _contains(text, release) for release in (older, newer)
        }
        excluding = [part for part in _parts(text) if not _contains(part, version)]
        if not any(adjacent.values()) or not all(part.startswith(_BOUNDS) for part in excluding):
            continue
        begin = [] if adjacent[older] else [f">={_short(version)}"]
        end = [] if newer is None or adjacent[newer] else [f"<{_short(newer)}"]
        rest = [part for part in _parts(text) if part not in excluding]
        alternatives[number] = ",".join([*begin, *rest, *end]) or ">=0"
        return alternatives
    end = [] if newer is None else [f"<{_short(newer)}"]
    return [*alternatives, ",".join([f">={_short(version)}", *end])]


def _without(
    affected: Range, version: Version, releases: Sequence[Version], shown: Mapping[Version, bool]
) -> list[str]:
    """Return the alternatives without ``version``: they end before it, unless a later release has
    the failure or was not run."""
    alternatives = []
    for text in affected.specifier.split(SEPARATOR):
        if _contains(text, version):
            later = [
                release for release in releases if release > version and _contains(text, release)
            ]
            if any(shown.get(release, True) for release in later):
                parts = [*_parts(text), f"!={_short(version)}"]
            else:
                parts = [part for part in _parts(text) if not part.startswith(_UPPER)] + [
                    f"<{_short(version)}"
                ]
            text = ",".join(parts)
            if not any(_contains(text, release) for release in releases):
                continue
        alternatives.append(text)
    return alternatives


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _contains(text: str, version: Version) -> bool:
    return SpecifierSet(text.strip()).contains(version, prereleases=True)


def _short(version: Version) -> str:
    """Return the version as ranges write it: 0.34 for 0.34.0."""
    return (
        str(version).removesuffix(".0")
        if len(version.release) == 3 and str(version).count(".") == 2
        else str(version)
    )
