"""What a server counts: the samples of its /metrics, in the text format of Prometheus (https://prometheus.io/docs/instrumenting/exposition_formats/)."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

Labels = tuple[tuple[str, str], ...]
"""Names and values, sorted."""

_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})? +(\S+)(?: +-?\d+)?$")
_LABEL = re.compile(r'\s*([A-Za-z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_ESCAPED = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


@dataclasses.dataclass(frozen=True)
class Metrics:
    """``samples``: the value of each metric by its name and labels, as ``("vllm:num_requests_running", (("engine", "0"), ...))``."""

    samples: Mapping[tuple[str, Labels], float] = dataclasses.field(hash=False)

    @classmethod
    def parse(cls, text: str) -> Metrics:
        """From the text of /metrics. Raises ``ValueError`` for a line that is none of the format's."""
        samples = {}
        for line in text.splitlines():
            if line.strip() and not line.startswith("#"):
                found = _SAMPLE.match(line.strip())
                if found is None:
                    raise ValueError(f"no sample of Prometheus' text format: {line[:200]!r}")
                name, labels, value = found.groups()
                samples[name, _labels(labels or "", line)] = float(value)
        return cls(samples)

    def of(self, name: str, **labels: str) -> dict[Labels, float]:
        """The samples of this name that have these labels."""
        wanted = set(labels.items())
        return {
            has: value for (named, has), value in self.samples.items() if named == name and wanted.issubset(set(has))
        }

    def total(self, name: str, **labels: str) -> float:
        """Their sum, as over the engines of one server. Raises ``KeyError`` where there is none, naming metrics that are close."""
        found = self.of(name, **labels)
        if not found:
            import difflib

            close = difflib.get_close_matches(name, {named for named, _ in self.samples}, n=3)
            asked = f"{name} with {labels}" if labels else name
            raise KeyError(f"the server counts no {asked}; close to it: {', '.join(close) or 'nothing'}")
        return sum(found.values())


def _labels(text: str, line: str) -> Labels:
    found, place = [], 0
    while place < len(text):
        label = _LABEL.match(text, place)
        if label is None:
            raise ValueError(f"no labels of Prometheus' text format: {line[:200]!r}")
        value = re.sub(r"\\.", lambda each: _ESCAPED.get(each.group(), each.group()), label.group(2))
        found.append((label.group(1), value))
        place = label.end()
    return tuple(sorted(found))
