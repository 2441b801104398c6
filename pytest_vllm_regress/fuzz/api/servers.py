"""The servers that are asked: one for each kind of routes, with the options that register most of
them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ...engines.spec import EngineSpec

MODEL = "m"
"""Name of the model in requests."""
ADAPTER = "{adapter}"
"""Stands for the path of a forged adapter in a body."""
ADAPTER_NAME = "a"
"""Name of the adapter that is loaded when a server starts."""


@dataclasses.dataclass(frozen=True)
class ServerKind:
    """A kind of server.

    Attributes:
        spec: without the options of ``optional``.
        optional: options of `vllm serve` that register more routes; those that a release lacks are
            left out.
        adapters: whether an adapter is loaded.
        probe: path and body of the request that a working engine answers with status 200.
    """

    spec: EngineSpec
    probe: tuple[str, Mapping[str, Any]]
    optional: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    adapters: bool = False

    def options(self) -> str:
        """Return the options of `vllm serve` for people, without the model."""
        options = {**self.spec.extra, **self.spec.server_options, **self.optional}
        flags = [
            f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}")
            for name, value in options.items()
        ]
        variables = [f"{name}={value}" for name, value in self.spec.env.items()]
        return " ".join([*variables, "vllm serve MODEL", *flags])


def _kind(probe: str, body: Mapping[str, Any], **spec: Any) -> ServerKind:
    extra = {"served_model_name": MODEL, **spec.pop("extra", {})}
    return ServerKind(EngineSpec.create(extra=extra, **spec), (probe, {"model": MODEL, **body}))


_COMPLETION = {"prompt": "Hello", "max_tokens": 1}

SERVERS: Mapping[str, ServerKind] = MappingProxyType(
    {
        "text": dataclasses.replace(
            _kind(
                "/v1/completions",
                _COMPLETION,
                extra={"enable_lora": True},
                server_options={"enable_auto_tool_choice": True, "tool_call_parser": "hermes"},
                env={"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True", "VLLM_SERVER_DEV_MODE": "1"},
            ),
            optional={"enable_tokenizer_info_endpoint": True, "enable_server_load_tracking": True},
            adapters=True,
        ),
        "vision": _kind("/v1/completions", _COMPLETION, model="vision", max_model_len=1024),
        "embed": _kind("/v1/embeddings", {"input": "Hello"}, task="embed"),
        "classify": _kind("/classify", {"input": "Hello"}, task="classify", model="classifier"),
        "score": _kind("/score", {"text_1": "a", "text_2": "b"}, task="score", model="reranker"),
        "speech": _kind("/tokenize", {"prompt": "Hello"}, model="speech", max_model_len=448),
    }
)
