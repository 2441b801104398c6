"""KServe's serving runtimes and the inference services that use them, which may add arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .findings import ServerCommand, literal
from .shell import names_model

_RUNTIMES = ("ServingRuntime", "ClusterServingRuntime")


def kind_of(document: Any) -> Any:
    return document.get("kind") if isinstance(document, dict) else ""


def with_runtimes(
    found: Sequence[tuple[Any, ServerCommand]], documents: Sequence[Any]
) -> Iterator[ServerCommand]:
    """Yield the servers that were found in documents. A runtime and each service that uses it start one, with the
    arguments of both. If it is not known which runtime a service uses, it may be any."""
    runtimes = [pair for pair in found if kind_of(pair[0]) in _RUNTIMES]
    services = [
        pair for pair in found if kind_of(pair[0]) == "InferenceService" and not pair[1].is_certain
    ]
    users: dict[int, list[tuple[Any, ServerCommand]]] = {}
    open_runtimes: set[int] = set()
    used: set[int] = set()
    understood = {id(document) for document, _ in services}
    for document in documents:
        if _model_of(document).get("args") and id(document) not in understood:
            open_runtimes |= {
                id(server) for runtime, server in runtimes if _may_use(document, runtime)
            }
    for document, service in services:
        possible = [server for runtime, server in runtimes if _may_use(document, runtime)]
        if len(possible) == 1:
            users.setdefault(id(possible[0]), []).append((document, service))
        open_runtimes |= {id(server) for server in possible[1:] and possible}
        used |= {id(service)} if possible else set()
    for _, server in found:
        if services_of := users.get(id(server)):
            is_open = id(server) in open_runtimes
            for joined in dict.fromkeys(_joined(server, *pair) for pair in services_of):
                yield replace(joined, complete=joined.complete and not is_open)
        elif id(server) not in used:
            yield replace(server, complete=server.complete and id(server) not in open_runtimes)


def _may_use(service: Any, runtime: Any) -> bool:
    """Return whether a service may use a runtime: both have the same name for it, or one's name is
    not known."""
    wanted = str(_model_of(service).get("runtime", "$"))
    name = str(_part(runtime, "metadata").get("name", "$"))
    return "?" in (literal(wanted), literal(name)) or wanted == name


def _model_of(service: Any) -> Mapping[Any, Any]:
    return _part(_part(_part(service, "spec"), "predictor"), "model")


def _part(node: Any, key: str) -> Mapping[Any, Any]:
    part = node.get(key) if isinstance(node, Mapping) else None
    return part if isinstance(part, Mapping) else {}


def _joined(runtime: ServerCommand, document: Any, service: ServerCommand) -> ServerCommand:
    is_known = bool(service.words) or not _model_of(document).get("args")
    settings = {**service.settings, **runtime.settings}
    return replace(
        runtime,
        words=(*runtime.words, *service.words),
        complete=runtime.complete and is_known,
        settings={} if names_model(runtime.words) else settings,
    )
