"""Documented vLLM failures as pytest cases, on real vLLM wheels, with or without a GPU.

The names in ``__all__`` are the public API: the types of the fixtures, the values that their
methods return, the errors that they raise, and the strategies for JSON schemas. All other modules
are private and may change. Names are loaded at first use, so importing the package is cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._version import __version__
    from .engines.checkpoints.adapters import Adapter
    from .engines.engine import (
        AsyncEngine,
        Beam,
        CompletionOutput,
        Engine,
        Prompt,
        RequestOutput,
        Sampling,
        StartReport,
    )
    from .engines.http.faults import Fault
    from .engines.http.health import Health, Metrics
    from .engines.http.requests import Ranked
    from .engines.inputs.client_request import ClientRequest
    from .engines.inputs.media import png_url, tensor_base64, wav
    from .engines.inputs.messages import (
        ChatChoice,
        ChatChunk,
        ChatCompletion,
        ChatDelta,
        ChatMessage,
        Message,
        ToolCall,
    )
    from .engines.inputs.script import Script
    from .engines.inputs.script_rules import ScriptRule
    from .engines.probe import AtWork, Probe
    from .engines.running import ProcessInfo
    from .engines.server import Server
    from .engines.spec import EngineSpec
    from .engines.standalone import Engines, engine
    from .engines.target import Target
    from .errors import (
        BuildError,
        CaseFileError,
        ChildDied,
        ChildError,
        DeadlineExceeded,
        EnvironmentFileError,
        LimitExceeded,
        ProtocolError,
        RegressError,
        RemoteError,
        ScriptError,
        Unsupported,
        UsageError,
    )
    from .schemas import (
        PROFILES,
        Budget,
        Dialect,
        Feature,
        Invalid,
        Profile,
        invalid_instances,
        json_schemas,
        near_misses,
        valid_instances,
    )
    from .surveys.states.growth import Growth, Reading, Slope, measure_growth
    from .surveys.upstream.drop_ins import RemoteOpenAIServer, VllmRunner

_PUBLIC_NAMES = {
    "_version": ("__version__",),
    "engines.checkpoints.adapters": ("Adapter",),
    "engines.inputs.messages": (
        "ChatChoice",
        "ChatChunk",
        "ChatCompletion",
        "ChatDelta",
        "ChatMessage",
        "Message",
        "ToolCall",
    ),
    "engines.inputs.media": ("png_url", "tensor_base64", "wav"),
    "engines.inputs.client_request": ("ClientRequest",),
    "engines.inputs.script": ("Script",),
    "engines.inputs.script_rules": ("ScriptRule",),
    "engines.engine": (
        *(
            "AsyncEngine",
            "Beam",
            "CompletionOutput",
            "Engine",
            "Prompt",
            "RequestOutput",
            "Sampling",
            "StartReport",
        ),
    ),
    "engines.http.faults": ("Fault",),
    "engines.http.health": ("Health", "Metrics"),
    "engines.http.requests": ("Ranked",),
    "engines.probe": ("AtWork", "Probe"),
    "engines.running": ("ProcessInfo",),
    "engines.server": ("Server",),
    "engines.spec": ("EngineSpec",),
    "engines.standalone": ("Engines", "engine"),
    "engines.target": ("Target",),
    "errors": (
        *(
            "BuildError",
            "CaseFileError",
            "ChildDied",
            "ChildError",
            "DeadlineExceeded",
            "EnvironmentFileError",
        ),
        *(
            "LimitExceeded",
            "ProtocolError",
            "RegressError",
            "RemoteError",
            "ScriptError",
            "Unsupported",
            "UsageError",
        ),
    ),
    "schemas": (
        *("PROFILES", "Budget", "Dialect", "Feature", "Invalid", "Profile"),
        *("invalid_instances", "json_schemas", "near_misses", "valid_instances"),
    ),
    "surveys.states.growth": ("Growth", "Reading", "Slope", "measure_growth"),
    "surveys.upstream.drop_ins": ("RemoteOpenAIServer", "VllmRunner"),
}
_MODULE_OF = {name: module for module, names in _PUBLIC_NAMES.items() for name in names}

__all__ = [
    "PROFILES",
    "Adapter",
    "AsyncEngine",
    "AtWork",
    "Beam",
    "Budget",
    "BuildError",
    "CaseFileError",
    "ChatChoice",
    "ChatChunk",
    "ChatCompletion",
    "ChatDelta",
    "ChatMessage",
    "ChildDied",
    "ChildError",
    "ClientRequest",
    "CompletionOutput",
    "DeadlineExceeded",
    "Dialect",
    "Engine",
    "EngineSpec",
    "Engines",
    "EnvironmentFileError",
    "Fault",
    "Feature",
    "Growth",
    "Health",
    "Invalid",
    "LimitExceeded",
    "Message",
    "Metrics",
    "Probe",
    "ProcessInfo",
    "Profile",
    "Prompt",
    "ProtocolError",
    "Ranked",
    "Reading",
    "RegressError",
    "RemoteError",
    "RemoteOpenAIServer",
    "RequestOutput",
    "Sampling",
    "Script",
    "ScriptError",
    "ScriptRule",
    "Server",
    "Slope",
    "StartReport",
    "Target",
    "ToolCall",
    "Unsupported",
    "UsageError",
    "VllmRunner",
    "__version__",
    "engine",
    "invalid_instances",
    "json_schemas",
    "measure_growth",
    "near_misses",
    "png_url",
    "tensor_base64",
    "valid_instances",
    "wav",
]


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}; the public names are {', '.join(__all__)}"
        )
    value = getattr(importlib.import_module(f".{_MODULE_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
