"""What a server counts: the samples of its /metrics, in the text format of Prometheus (https://prometheus.io/docs/instrumenting/exposition_formats/)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

Labels = tuple[tuple[str, str], ...]
"""Names and values, sorted."""


@dataclasses.dataclass(frozen=True)
class Metrics:
    """``samples``: the value of each metric by its name and labels, as ``("vllm:num_requests_running", (("engine", "0"), ...))``."""

    samples: Mapping[tuple[str, Labels], float] = dataclasses.field(hash=False)

    @classmethod
    def parse(cls, text: str) -> Metrics:
        """From the text of /metrics; a counter's name ends with ``_total``, as the format asks. Raises ``ValueError`` for another format."""
        from prometheus_client.parser import text_string_to_metric_families

        try:
            found = [each for family in text_string_to_metric_families(text) for each in family.samples]
        except ValueError as error:
            raise ValueError(f"not Prometheus' text format: {str(error) or text[:200]!r}") from None
        return cls({(each.name, tuple(sorted(each.labels.items()))): each.value for each in found})

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
