"""A server's metrics, in the text format of Prometheus
(https://prometheus.io/docs/instrumenting/exposition_formats/)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

Labels = tuple[tuple[str, str], ...]
"""Names and values of labels, sorted."""


@dataclasses.dataclass(frozen=True)
class Metrics:
    """``samples``: values by name and labels, for example ``("vllm:num_requests_running",
    (("engine", "0"), ...))``."""

    samples: Mapping[tuple[str, Labels], float] = dataclasses.field(hash=False)

    @classmethod
    def parse(cls, text: str) -> Metrics:
        """Parse the text of /metrics. Names of counters end with ``_total``, as in the format.

        Raises ``ValueError`` for another format.
        """
        from prometheus_client.parser import text_string_to_metric_families

        try:
            samples = [
                sample
                for family in text_string_to_metric_families(text)
                for sample in family.samples
            ]
        except ValueError as error:
            raise ValueError(f"not Prometheus' text format: {str(error) or text[:200]!r}") from None
        return cls(
            {
                (sample.name, tuple(sorted(sample.labels.items()))): sample.value
                for sample in samples
            }
        )

    def of(self, name: str, **labels: str) -> dict[Labels, float]:
        """Return the samples of this name that have these labels."""
        required = set(labels.items())
        return {
            sample_labels: value
            for (sample_name, sample_labels), value in self.samples.items()
            if sample_name == name and required.issubset(set(sample_labels))
        }

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of these samples, for example over the engines of a server.

        Raises ``KeyError`` with similar names if there are none.
        """
        samples = self.of(name, **labels)
        if not samples:
            import difflib

            close = difflib.get_close_matches(
                name, {sample_name for sample_name, _ in self.samples}, n=3
            )
            metric = f"{name} with {labels}" if labels else name
            raise KeyError(
                f"the server counts no {metric}; close to it: {', '.join(close) or 'nothing'}"
            )
        return sum(samples.values())
