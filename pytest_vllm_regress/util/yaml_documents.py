"""Parse untrusted YAML within bounds of size and depth. It builds plain values only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import yaml

MAX_NODES = 100_000
"""Limit of the values in all documents of a text. What an alias stands for counts at each alias: ten lines of aliases may mean 10^10 values."""
MAX_DEPTH = 100
MAX_NUMBER = 100
"""Limit of a number's digits. PyYAML takes time with the square of the digits of ``1:1:1:1``, a number with the base 60."""


def parse_yaml(text: str) -> list[Any]:
    """Return the YAML documents in ``text``. Raises ``ValueError``, also for one with too many or too deeply nested values."""
    import yaml  # takes 20 ms, and most commands read no YAML

    try:
        _check_bounds(text)
        return list(yaml.safe_load_all(text))
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


def _check_bounds(text: str) -> None:
    """Raise ``ValueError`` for more than ``MAX_NODES`` values after the aliases are followed, and for huge numbers."""
    import yaml

    count = 0
    sizes: dict[str, int] = {}
    open_nodes: list[tuple[str | None, int]] = []
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            if event.anchor in (anchor for anchor, _ in open_nodes):
                raise ValueError(f"the alias {event.anchor} stands for something that contains it")
            count += sizes.get(event.anchor or "", 0)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_nodes.pop()
            if anchor is not None:
                sizes[anchor] = count - before
        elif isinstance(event, yaml.NodeEvent):
            count += 1
            if isinstance(event, yaml.CollectionStartEvent):
                open_nodes.append((event.anchor, count - 1))
            elif event.anchor is not None:
                sizes[event.anchor] = 1
            if isinstance(event, yaml.ScalarEvent):
                _check_number(event)
        if count > MAX_NODES:
            raise ValueError(f"more than {MAX_NODES} values, with what its aliases stand for")
        if len(open_nodes) > MAX_DEPTH:
            raise ValueError("nested too deeply")


def _check_number(event: yaml.ScalarEvent) -> None:
    if len(event.value) > MAX_NUMBER and not event.value.strip("+-.0123456789:_"):
        raise ValueError(f"a number of more than {MAX_NUMBER} digits")
