"""Servers in YAML: compose files, Kubernetes manifests and custom resources, Helm values, workflows,
catalogues of models, and scripts in any of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise, takewhile
from textwrap import dedent
from typing import Any

from ...util.documents import MAX_NODES, YamlSyntaxError, parse_yaml
from .findings import DEFAULT_OF_VARIABLE, UNSET, ServerCommand, Unreadable, Word, literal
from .kserve import kind_of, with_runtimes
from .programs import of_python
from .shell import (
    is_called_vllm,
    is_image,
    is_own_image,
    is_telling,
    model_of_variables,
    names_model,
    of_image,
    of_script,
    servers,
    starts_elsewhere,
)
from .shell_words import expanded, split, without_blocks, without_comments
from .units import OF_OTHER_UNITS, is_unit, of_unit
from .unread import names

MAX_BLOCK = 400
"""Lines of a YAML scalar that are searched for a word, and characters of a path."""
MAX_REPAIRED = 20
MAX_REPAIRED_TEXT = 100_000
"""Lines that are left out of YAML which cannot be parsed, and the size of a text that is parsed so
often."""
MAX_DOCUMENTS = 500
MAX_PATH = 20
_BLOCK_KEY = re.compile(
    r"[ \t]*(?:- )?(?:containers|services|modelSpec|predictor|spec):[ \t]*(?:#.*)?"
)
_COMPOSE = re.compile(r"(?m)^services:")
"""A compose file, in which a dollar sign for the shell is written twice."""
_TEMPLATE = re.compile(r"\{\{[^{}]*\}\}|\{%[^{}]*%\}|%\{[^{}]*\}")
_NO_LINE = "\0"
_NAME_IN_TEMPLATE = re.compile(r"\{\{-?[ \t]*([A-Za-z_]\w*)[ \t]*-?\}\}")
_ONLY_TEMPLATES = re.compile(rf"(?m)^[ \t]*(?:(?:{_TEMPLATE.pattern})[ \t]*)+$|^\{{\w+\}}[ \t]*$")

_WORDS = ("entrypoint", "command", "args", "extraArgs")
_MORE_WORDS = re.compile(
    r"(?i)(?:.*[a-z_-])?(?:args|arguments|parameters|flags)|docker_?(?:start_?)?(?:cmd|command)"
)
_SEVERAL_WORDS = re.compile(r"--[\w-]+ +[^\s='\"{}][^='\"{}]*")
_OF_OTHERS = re.compile(r"(?i).*(?:install|build|router|docker_?build|helm|mount).*")
_SCRIPTS = {"commands", "script"}
_LABELS = ("name", "container_name")
_ENVIRONMENTS = ("environment", "env", "envs", "envVars")
_IMAGES = ("image", "imageName", "image_name", "containerImage", "container_image", "image_id")
_TAGS = ("tag", "imageTag", "image_tag")
_OF_CONTAINERS = ("image", "imageName", "containerImage", "container_image")
_PATCHES = re.compile(r"(?i)patch|overlay|override")
_WRITTEN = re.compile(
    r"(?i)vllm[^/]*\.(?:service|container)(?:\.j2)?$|(?=.*vllm).*(?:compose|deployment)[^/]*\.ya?ml(?:\.j2)?$"
)
_RUN_BY_ACTION = re.compile(r"(?i)(?:.*[_-])?(?:script|run|commands?|cmd|shell|exec)")
_REQUIREMENT = re.compile(r"vllm\b(?![-/])")
_SERVES = frozenset(("ports", "expose", "deploy", "resources"))
"""Keys that suggest that a container is a server: it exposes ports or reserves a GPU."""
_TEXTS = re.compile(
    r"(?i)(?:display_?)?name|run-name|description|title|notes?|comment|readme|summary|message"
)
"""Keys of texts for people."""
_MODEL_KEY = re.compile(
    r"(?i)(?:\w*_)?model_?(?:id|name|url|uri|path|repo|source|ref|reference)?|(?:hugging_?face|hf)_?(?:repo|model)_?(?:id)?|storage_?uri|uri|url|repo_?id"
)
_MODEL_NAME = re.compile(r"(?:hf://)?([\w.-]+/[\w.-]+|/[\w./-]+)(?:@[\w.-]+|/)?")
_CHART = {
    "enableLoRA": "enable_lora",
    "enableTool": "enable_auto_tool_choice",
    "modelURL": "model",
    "toolCallParser": "tool_call_parser",
}
"""Settings of vLLM's Helm chart and operator beside ``vllmConfig``, and what they mean."""
_ON_UNLESS_SAID = ("enablePrefixCaching", "enableChunkedPrefill")
_OF_KUBERNETES = re.compile(
    r"(?i)name|namespace|repository|tag|image\w*|replica\w*|request\w*|limit\w*|resources|pvc\w*|storage\w*|node\w*|env\w*"
    r"|labels|annotations|\w*secret\w*|hf_?token|api_?key|toleration\w*|affinity|service\w*|priority\w*|shm\w*|init\w*|extra(?:volume|port)\w*"
    r"|\w*probe\w*|runtime\w*|security\w*|pod\w*|container\w*|volume\w*|autoscal\w*|keda\w*|strategy|\w*port|type|kind|apiversion|metadata"
    r"|model|vllmconfig|modelurl|device\w*|serviceaccount\w*|raySpec|health\w*|scheduler\w*"
)
"""Keys beside ``vllmConfig`` that add no option."""
_LOOKS_LIKE_OPTION = re.compile(
    r"(?i).*(?:lora|parser|tool_?call|parallel|quantiz|max_?model|max_?num|gpu_?mem|dtype|reasoning|specul"
    r"|prefix_?cach|chunked|chat_?template|kv_?(?:cache|transfer)|served_?(?:model)?_?name|enforce_?eager|trust_?remote"
    r"|extra_?(?:args|flags)).*"
)
_USUAL = re.compile(
    r"--(?:tensor-parallel-size|pipeline-parallel-size|served-model-name|quantization|dtype|trust-remote-code|enable-lora)(?:=.*)?"
)
"""Options that say enough where vLLM is named, too."""


_SERVER_VARIABLE = re.compile(
    r"VLLM_(?:MODEL\w*|HOST|PORT|\w*ARGS)|(?:VLLM_)?(?:MAX_MODEL_LEN|GPU_MEMORY_UTILI\w*|TENSOR_PARALLEL\w*)"
)
_ARGUMENTS = re.compile(r"(?i)(?:extra|engine|server|serve|runtime)?_?(?:args|flags)")
"""Keys of options as a mapping, if something else says that the engine is vLLM."""
_ENGINE_ARGUMENTS = re.compile(
    r"(?i)vllm(?:_?(?:config|args|arguments|kwargs|options|server_args))?|engine_?(?:kwargs|args|config)|server[_-]arguments|arguments|config"
)
_TELLING_NAMES = {
    "max_model_len",
    "gpu_memory_utilization",
    "tensor_parallel_size",
    "enforce_eager",
    "max_num_seqs",
    "max_num_batched_tokens",
    "trust_remote_code",
}


_WHERE_SERVER_IS = re.compile(
    r"VLLM_\w*(?:URL|ENDPOINT|API_BASE)|(?:OPENAI|LLM)_(?:API_)?BASE(?:_URL)?|(?:\w+_)?SERVER_URL"
)
"""Variables of clients."""
_OF_BENCHMARK = re.compile(
    r"--(?:num[-_]prompts|dataset[-_](?:name|path)|(?:input|output)[-_]len)\b"
)
"""Options of ``vllm bench``."""
_OF_CLIENTS = re.compile(
    r"(?i)(?<![a-z])(?:client|bench\w*|tests?|router|proxy|gateway|ui|api|monitor\w*|exporter|ray)(?![a-z])"
)
"""Names of what is built beside a server."""
_OTHER_ENGINE = re.compile(
    r"inference-sim|simulat|router|sglang|lmdeploy|text-(?:generation|embeddings)|triton|ollama|trt|llama[._-]?cpp|infinity|whisper|localai"
)
"""Images of other servers, which have options of the same names."""


@dataclass(frozen=True)
class _Scope:
    """What the mappings around a node say: variables, and a model. ``says_vllm``: the document names
    vLLM somewhere. ``is_anchor``: it is a part that others include.
    ``service``: the name of the one in a compose file."""

    variables: Mapping[str, str] = field(default_factory=dict, hash=False)
    model: str = ""
    says_vllm: bool = False
    is_anchor: bool = False
    is_patch: bool = False
    service: str = ""


def of_yaml(text: str) -> Iterator[ServerCommand | Unreadable]:
    """Yield the servers of all documents. One that cannot be parsed is repaired by itself."""
    if _COMPOSE.search(text):
        text = text.replace("$$", "$")
    lines = text.splitlines()
    found: list[tuple[Any, ServerCommand]] = []
    documents = list(_documents(text))
    models = dict(_named_models(document for document, _ in documents))
    for document, problem in documents:
        if problem:
            yield Unreadable(problem)
        # The blocks of a broken document may overlap.
        for server in dict.fromkeys(_of_document(document)):
            words = tuple(_located(server.words, lines))
            complete = server.complete and not problem
            settings = {**_model_elsewhere(document, models), **server.settings}
            server = replace(server, words=words, complete=complete, settings=settings)
            found.append((document, server))
    found = _with_scripts(found)
    elsewhere = (server for document, _ in documents for server in _started_elsewhere(document))
    every = [document for document, _ in documents]
    yield from with_runtimes(found, every) if found else islice(elsewhere, 1)


def _with_scripts(
    found: list[tuple[Any, ServerCommand]],
) -> list[tuple[Any, ServerCommand]]:
    """Return the servers, in which a script from a ConfigMap and the container that runs it are one, if
    there is one of each."""
    scripts = [pair for pair in found if kind_of(pair[0]) == "ConfigMap"]
    bare = [
        pair
        for pair in found
        if pair not in scripts and not (pair[1].is_certain or pair[1].words or pair[1].settings)
    ]
    if len(scripts) != 1 or len(bare) != 1:
        return found
    (document, container), server = bare[0], scripts[0][1]
    variables = {**container.variables, **server.variables}
    server = replace(server, image=container.image, label=container.label, variables=variables)
    return [pair for pair in found if pair not in (*scripts, *bare)] + [(document, server)]


def _named_models(documents: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """Yield name and model of each resource ``Model`` of an operator."""
    for document in documents:
        if kind_of(document) == "Model":
            metadata, spec = document.get("metadata"), document.get("spec")
            if isinstance(metadata, dict) and isinstance(spec, dict):
                yield str(metadata.get("name")), _model({"model": spec.get("source"), **spec})


def _model_elsewhere(document: Any, models: Mapping[str, str]) -> dict[str, Any]:
    """Return the model to whose resource a document refers, as a setting."""
    spec = document.get("spec") if isinstance(document, dict) else None
    reference = spec.get("modelRef") if isinstance(spec, dict) else None
    name = reference.get("name") if isinstance(reference, dict) else reference
    model = models.get(str(name))
    return {"model": model} if model else {}


def _started_elsewhere(document: Any) -> Iterator[ServerCommand]:
    """Yield servers of which a document has neither command nor options: those of units and compose
    files that a task makes of a template, and of Ray's applications."""
    nodes = [*_mappings(document)]
    for text in _scalars(document):
        if "import_path" in text and re.search(r"\s", text):
            nodes += (node for part, _ in _documents(str(text)) for node in _mappings(part))
    for node in nodes:
        if _is_written(node) or _is_application(node):
            runtime = node.get("runtime_env")
            variables = _variables(runtime.get("env_vars")) if isinstance(runtime, dict) else {}
            yield ServerCommand(
                (),
                next((key.line for key in node if isinstance(key, Word)), 1),
                variables,
                settings=model_of_variables(variables),
                is_certain=False,
                complete=False,
            )


def _is_written(node: Mapping[Any, Any]) -> bool:
    """Return whether a task writes a unit or a compose file that is called after vLLM."""
    paths = [str(node.get(key, ""))[-MAX_BLOCK:] for key in ("src", "dest")]
    written = " ".join(path for path in paths if _WRITTEN.search(path))
    return all(paths) and bool(written) and not OF_OTHER_UNITS.search(written)


def _is_application(node: Mapping[Any, Any]) -> bool:
    """Return whether an application of Ray Serve is called after vLLM or installs it."""
    if "import_path" not in node:
        return False
    installed = _scalars(node.get("runtime_env"))
    return "vllm" in str(node["import_path"]) or any(map(_REQUIREMENT.match, installed))


def of_document(document: Any) -> Iterator[ServerCommand]:
    """Yield the servers of a document that another reader made."""
    yield from _servers_of(document)


def _documents(text: str) -> Iterator[tuple[Any, str]]:
    """Yield the documents; of one that cannot be parsed what can be read of it, and why."""
    try:
        yield from ((document, "") for document in parse_yaml(text, text_type=Word))
        return
    except ValueError as error:
        problem = _reason(error)
    parts = re.split(r"(?m)^---.*\n", text)
    at = 0
    for part in parts if 1 < len(parts) <= MAX_DOCUMENTS else [text]:
        lines = "\n" * at  # so that words have their lines
        at += part.count("\n") + 1
        try:
            documents, why = parse_yaml(lines + part, text_type=Word), ""
        except ValueError as error:
            documents, why = _repaired(lines + part), _reason(error)
        if why and not any(map(_starts_server, documents)):
            documents = _blocks(lines + part)
        yield from ((document, why) for document in documents or ([None] if why else []))
        problem = problem or why


def _starts_server(document: Any) -> bool:
    return next(_of_document(document), None) is not None


def _reason(error: ValueError) -> str:
    return " ".join(str(error).split())[:200]


def _repaired(text: str) -> list[Any]:
    """Return what can be read of a text that is no YAML: without its templates, and without the
    lines that cannot be parsed."""
    text = without_comments(text)
    text = _ONLY_TEMPLATES.sub(lambda m: _NO_LINE + f"\n{_NO_LINE}" * m[0].count("\n"), text)
    lines = _TEMPLATE.sub(_for_template, text).splitlines()
    # A line of templates only is none; an empty one would break a folded text.
    numbers = [number for number, line in enumerate(lines, 1) if line != _NO_LINE]
    lines = [line for line in lines if line != _NO_LINE]

    def located(text: str, line: int) -> Word:
        return Word(text, numbers[min(line, len(numbers)) - 1] if numbers else 1)

    for _ in range(MAX_REPAIRED if len(text) <= MAX_REPAIRED_TEXT else 1):
        try:
            return parse_yaml("\n".join(lines), text_type=located)
        except YamlSyntaxError as error:
            at = min(error.line, len(lines)) - 1
            while at > 0 and not lines[at].strip():  # an error may be noticed later
                at -= 1
            lines[at] = ""
        except ValueError:
            break
    return []


def _for_template(match: re.Match[str]) -> str:
    name = _NAME_IN_TEMPLATE.fullmatch(match[0])
    return f"${name[1] if name else 'TEMPLATE'}" + "\n" * match[0].count("\n")


def _blocks(text: str) -> list[Any]:
    """Return the lists of containers and services in a text whose structure around them is wrong."""
    lines = text.splitlines()
    found: list[Any] = []
    read_to = tried = 0
    for number, line in enumerate(lines):
        if number < read_to or not _BLOCK_KEY.fullmatch(line) or tried == MAX_REPAIRED:
            continue
        tried += 1
        block = _indented(lines[number + 1 :])
        try:
            found += parse_yaml("\n" * (number + 1) + "\n".join(block), text_type=Word)
        except ValueError:
            continue
        read_to = number + 1 + len(block)
    return found


def _indented(lines: Sequence[str]) -> list[str]:
    """Return the first lines, as far as they are indented as the first of them that is not empty."""
    first = next((line for line in lines if line.strip()), "")
    indent = first[: len(first) - len(first.lstrip())]
    item = f"{indent}-" if first.startswith(f"{indent}-") else indent

    def belongs(line: str) -> bool:
        return not line.strip() or line.startswith((item, f"{indent} "))

    return list(takewhile(belongs, lines))


def _located(words: Iterable[Word], lines: Sequence[str]) -> Iterator[Word]:
    """Yield words, each with the line on which it is found: YAML tells the line at which a scalar
    begins, and may fold its lines."""
    begins = at = 0
    for word in words:
        begins, at = word.line, max(at, word.line) if word.line == begins else word.line
        end = min(at + MAX_BLOCK, len(lines) + 1)
        at = next((number for number in range(at, end) if word in lines[number - 1]), at)
        yield Word(word, at, word.quoted)


def _of_document(document: Any) -> Iterator[ServerCommand]:
    """Yield the servers of a document. If there is none, but vLLM's own image is named beside what
    is left to a template, it starts one that is not known."""
    found = list(_servers_of(document))
    named = [node for node in _scalars(document) if is_own_image(node)]
    bare = [s for s in found if not s.words and (not s.settings or _is_root(s, found))]
    if len(found) > len(bare):  # an image of a chart, or the base of another one
        is_chart = isinstance(document, dict) and not {"kind", "services"} & document.keys()
        uncertain = [s for s in bare if s.label == _ONLY_IMAGE or (is_chart and not s.label)]
        images = {server.image for server in uncertain if server.image}
        image = images.pop() if len(images) == 1 else ""
        is_whole = not any(server.settings for server in uncertain)
        found = [
            replace(server, image=server.image or image, complete=server.complete and is_whole)
            for server in found
            if server not in uncertain
        ]
        found = _merged(found) if is_chart else found
    has_template = _has_template(document)
    of_chart = has_template and bool(found) and _is_of_chart(document)
    for server in found:
        label = "" if server.label == _ONLY_IMAGE else server.label
        if _is_language_model(document) and not server.words and not server.settings:
            model = _model_of_document(document)
            server = replace(server, settings={"model": model} if model else {}, complete=False)
        # The command of a bare image may be in a template.
        is_open = not server.words and not server.settings and has_template
        yield replace(
            server,
            label=label,
            complete=server.complete and not is_open,
            of_chart=of_chart,
        )
    if not found and named and _leaves_command_open(document):
        image = named[0]
        yield ServerCommand(
            (), image.line, image=image.removeprefix("docker:"), is_certain=False, complete=False
        )


def _is_root(server: ServerCommand, found: Sequence[ServerCommand]) -> bool:
    """Return whether a mapping with an image only repeats the model of one that has arguments."""
    others = (other for other in found if other.words)
    return not server.label and any(server.settings == other.settings for other in others)


def _has_template(document: Any) -> bool:
    """Return whether a document only changes a template that is elsewhere: values of a chart, and
    KServe's services."""
    if not isinstance(document, dict):
        return False
    return _is_language_model(document) or not {"kind", "services"} & document.keys()


def _is_language_model(document: Any) -> bool:
    """Return whether a document is one of KServe's services for language models."""
    return str(kind_of(document)).startswith("LLMInferenceService")


def _is_of_chart(document: Any) -> bool:
    """Return whether a document looks like the values of a Helm chart: it splits an image into
    repository and tag, or has containers without a command."""
    return any(
        ("tag" in node and ("repository" in node or "name" in node))
        or ("args" in node and "command" not in node and isinstance(node.get("image"), str))
        for node in _mappings(document)
    )


def _merged(found: list[ServerCommand]) -> list[ServerCommand]:
    """Return the servers of a chart: arguments beside its only command belong to that one."""
    certain = [server for server in found if server.is_certain and server.words]
    more = [server for server in found if not server.is_certain and not server.label]
    if len(certain) != 1 or len(certain) + len(more) != len(found):
        return found
    words = [word for server in (*certain, *more) for word in server.words]
    return [replace(certain[0], words=tuple(words), complete=certain[0].complete and not more)]


_SERVICES = "services"
_ONLY_IMAGE = "\0image"
"""The label of a mapping that has an image and nothing else: it may be the base of another one."""


def _leaves_command_open(document: Any) -> bool:
    run = document.get("run") if isinstance(document, dict) else None
    return isinstance(run, str) and re.fullmatch(r"\s*(?:\{\w+\}|\$\w+)?\s*", run) is not None


def _scalars(document: Any) -> Iterator[Word]:
    return (node for node in _nodes(document) if isinstance(node, Word))


def _mappings(document: Any) -> Iterator[Mapping[Any, Any]]:
    return (node for node in _nodes(document) if isinstance(node, dict))


def _nodes(document: Any) -> Iterator[Any]:
    visited: set[int] = set()
    waiting = [document]
    while waiting and len(visited) < MAX_NODES:
        node = waiting.pop()
        if isinstance(node, Word):
            yield node
        elif isinstance(node, (dict, list)) and id(node) not in visited:
            visited.add(id(node))
            yield node
            waiting += node.values() if isinstance(node, dict) else node


def _servers_of(document: Any) -> Iterator[ServerCommand]:
    """Yield the servers of the mappings and texts in a document. Aliases are followed once."""
    visited: set[int] = set()
    says_vllm = any("vllm" in text.lower() for text in _scalars(document))
    waiting = [(document, _Scope(model=_model_of_document(document), says_vllm=says_vllm))]
    found = 0
    while waiting and len(visited) < MAX_NODES:
        node, scope = waiting.pop()
        if id(node) in visited or (scope.is_anchor and found):
            continue
        visited.add(id(node))
        if isinstance(node, dict):
            scope = replace(scope, variables={**scope.variables, **_own_variables(node)})
            started = list(_of_mapping(node, scope))
            taken = _engine_key(node) if any(server.settings for server in started) else None
            started += _of_programs(node)
            started += _of_launcher(node, scope) if not started else ()
            waiting += ((part, scope) for part in _set_by_path(node))
            found += len(started)
            yield from started
            given = node.get("with") if _is_of_action(node, "with") else None
            for name, text in given.items() if isinstance(given, dict) else ():
                if isinstance(text, Word) and "vllm" in text and _RUN_BY_ACTION.fullmatch(name):
                    yield from of_script(text, text.line, scope.variables)
            waiting += reversed(
                [
                    (value, _within(scope, key, value))
                    for key, value in sorted(node.items(), key=_is_anchor)
                    if (key not in _WORDS or isinstance(value, dict))
                    and not _TEXTS.fullmatch(str(key))
                    and not str(key).endswith(".py")
                    and not (started and key in (*_IMAGES, "vllmConfig"))
                    and not (started and key == taken)
                    and not _is_of_action(node, key)
                    and not (key == "matrix" and isinstance(value, dict))
                ]
            )
        elif isinstance(node, list):
            started = list(servers(_words(node), scope.variables)) or list(_of_patch(node))
            found += len(started)
            yield from started
            items = [item for item in node if not started or isinstance(item, dict)]
            waiting += reversed([(item, scope) for item in items])
        elif (
            isinstance(node, Word)
            and re.search(r"(?i)vllm|/args|engine_kwargs", node)
            and re.search(r"\s|^\./", node)
        ):
            yield from _of_text(node, scope)


def _is_of_action(node: Mapping[Any, Any], key: Any) -> bool:
    """Return whether a key has the inputs of a step that is elsewhere. Only scripts are read."""
    return key == "with" and "uses" in node


def _is_anchor(pair: tuple[Any, Any]) -> bool:
    """Return whether a key is for a part that others include, or that belongs to another server. It
    is read after these."""
    return str(pair[0]).startswith(("x-", "_", ".")) or pair[0] == "worker"


def _within(scope: _Scope, key: Any, value: Any) -> _Scope:
    """Return the scope of a value in a mapping."""
    if _PATCHES.search(str(key)):
        scope = replace(scope, is_patch=True)
    if _is_anchor((key, value)):
        return replace(scope, is_anchor=True)
    if scope.service == _SERVICES:
        return replace(scope, service=str(key))
    return replace(scope, service=_SERVICES if key == _SERVICES else "")


def _of_patch(operations: list[Any]) -> Iterator[ServerCommand]:
    """Yield the server whose arguments a list of JSON patches adds or replaces."""
    words: list[Word] = []
    for operation in operations:
        if not isinstance(operation, dict) or "op" not in operation:
            return
        if re.search(r"/args(?:/|$)", str(operation.get("path"))):
            value = operation.get("value")
            words += _words([value] if isinstance(value, Word) else value)
    if any(map(is_telling, words)):
        yield ServerCommand(tuple(words), words[0].line, is_certain=False, complete=False)


def _of_text(text: Word, scope: _Scope) -> Iterator[ServerCommand]:
    """Yield the servers of a script, or of a manifest in a manifest, such as a patch."""
    if "\n" in text and re.match(r"\s*(?:#.*\n\s*)*(?:---\s*)?(?:- )?[\w.-]+:(?:\s|$)", text):
        try:
            documents = parse_yaml(str(text), text_type=Word)
        except ValueError:
            documents = _repaired(text) if "{{" in text else []
            scope = replace(scope, is_patch=True)
        if documents and all(isinstance(document, (dict, list)) for document in documents):
            for document in documents:
                for server in _servers_of(document):
                    # More is in what a patch changes.
                    yield replace(server, complete=server.complete and not scope.is_patch)
            return
    if is_unit(text):
        yield from of_unit("\n" * text.line + dedent(text))
    else:
        yield from of_script(text, text.line, scope.variables)


def words_run(words: Sequence[Word]) -> bool:
    """Return whether words begin with a program, not with an option."""
    return bool(words) and not words[0].startswith("-")


def _of_programs(node: Mapping[Any, Any]) -> Iterator[ServerCommand]:
    """Yield the servers of the Python programs that a ConfigMap holds."""
    for key, value in node.items():
        if str(key).endswith(".py") and isinstance(value, Word) and "vllm" in value:
            for server in of_python(value):
                if isinstance(server, ServerCommand):
                    yield replace(server, line=server.line + value.line)


def _of_launcher(node: Mapping[Any, Any], scope: _Scope) -> Iterator[ServerCommand]:
    """Yield the server of a script elsewhere, if the command that stops it names vLLM: of a proxy that
    starts servers when they are needed."""
    command, stop = node.get("cmd"), node.get("cmdStop")
    if isinstance(command, Word) and "vllm" not in command and "vllm" in str(stop):
        words = split(command, command.line)
        if starts_elsewhere(words[:1], is_vllm=True):
            yield ServerCommand(
                (),
                command.line,
                scope.variables,
                label=str(words[0]),
                is_certain=False,
                complete=False,
            )


def _set_by_path(node: Mapping[Any, Any]) -> Iterator[dict[Any, Any]]:
    """Yield the values that a release of a chart sets by their paths: Terraform's ``set``, Argo CD's
    ``parameters``."""
    for key in ("set", "parameters", "helmParameters"):
        entries = node[key] if isinstance(node.get(key), list) else []
        pairs = {
            str(entry["name"]): entry["value"]
            for entry in entries
            if isinstance(entry, dict) and {"name", "value"} <= entry.keys()
        }
        if any("." in path for path in pairs):
            yield nested(pairs)


def nested(values: Mapping[str, Any]) -> dict[Any, Any]:
    """Return a document of values by their paths (``a.b[0].c``). Items of lists are keys in it."""
    document: dict[Any, Any] = {}
    for path, value in values.items():
        names = re.findall(r"[^.\[\]\\]+", path)[:MAX_PATH]
        part = document
        for name in names[:-1]:
            inner = part.setdefault(name, {})
            part = inner if isinstance(inner, dict) else {}
        if names:
            part[names[-1]] = value
    return document


def _own_variables(node: Mapping[Any, Any]) -> dict[str, str]:
    values = (_variables(node.get(key)) for key in _ENVIRONMENTS)
    return {name: text for variables in values for name, text in variables.items()}


def _of_mapping(node: Mapping[Any, Any], scope: _Scope) -> Iterator[ServerCommand]:
    label = next((node[key] for key in _LABELS if isinstance(node.get(key), str)), scope.service)
    image = _image(node)
    config = node.get("vllmConfig", {} if {"modelURL", "repository"} <= node.keys() else None)
    model = node.get("model")
    if config is None and isinstance(model, dict) and "modelURL" in model:
        # An older form of the operator's resource, with the options beside each other.
        config = {
            key: value
            for key, value in {**node, **model}.items()
            if key == "extraArgs"
            or not (key in _CHART or isinstance(value, dict) or _OF_KUBERNETES.fullmatch(str(key)))
        }
    if isinstance(config, dict):
        yield _of_chart(node, config, scope, image, label)
        return
    nested = node.get("image")
    holder = {**nested, **node} if isinstance(nested, dict) else node  # vLLM's own chart
    keys = ("script", *_WORDS) if "args" in node else _WORDS  # of pm2
    words = [word for key in keys for word in _words(holder.get(key), key)]
    words = [part for word in words for part in expanded(word, _known(scope))]
    # In the values of a chart more may be elsewhere.
    has_image = any(isinstance(node.get(key), str) for key in _OF_CONTAINERS)
    has_image = has_image or ("build" in node and bool(image))
    has_image = has_image and not _SCRIPTS & node.keys()  # which replace the image's own command
    started: list[ServerCommand] = []
    if has_image and not words:  # RunPod's dockerArgs
        words = next((w for key in node if _is_list(str(key)) and (w := _words(node[key]))), [])
    if has_image or words:
        started = list(of_image(image, words, scope.variables))
    if "build" in node and any(server.is_certain for server in started):
        # What the image adds to a program without arguments is not known.
        started = [replace(s, complete=s.complete and bool(s.words)) for s in started]
    elif not started and not words and _is_built_server(node):
        line = next((key.line for key in node if isinstance(key, Word)), 1)
        started = [ServerCommand((), line, scope.variables, is_certain=False, complete=False)]
    elif started and not is_own_image(image) and not any(server.words for server in started):
        started = list(_of_variables(started, node, image, scope))
    if "extends" in node or any(
        re.search(r"(?i)args|extra", name) for name in _own_variables(node)
    ):
        started = [s if s.words else replace(s, complete=False) for s in started]
    if has_image and len(node) == 1:
        label = _ONLY_IMAGE
    if _OTHER_ENGINE.search(label):
        return
    if not started:
        started = list(_of_values(node, scope, image, words)) or list(_of_more(node, scope))
        if not started and _is_called_vllm(node, image) and _are_options_of_vllm(words):
            started = list(of_image(image, words, scope.variables, label=label))
    else:
        # In the values of a chart keys beside the arguments are options, too.
        is_chart = isinstance(node.get("image"), dict) and image and not words_run(words)
        settings = _options_of_keys(node) if is_chart else {}
        if is_chart and (model := _model(node)) and not names_model(words):
            settings["model"] = model
        settings |= _engine_arguments(node) or {}
        started = [
            replace(
                server,
                settings={**settings, **server.settings},
                complete=server.complete and not _has_options(node),
            )
            for server in started
        ]
    yield from (replace(server, label=label) for server in started)


def _of_variables(
    started: list[ServerCommand], node: Mapping[Any, Any], image: str, scope: _Scope
) -> Iterator[ServerCommand]:
    """Yield the servers of an image that makes its command of variables, such as RunPod's worker; no
    others without arguments, which may be built here, or be Ray's."""
    # What is built here has its own names of variables.
    settings = model_of_variables(scope.variables)
    is_called = _is_called_vllm({**node, "name": node.get("name", scope.service)}, image)
    is_bare = not any(node.get(key) for key in _WORDS)
    serves = not _SERVES.isdisjoint(node)
    is_called = is_called or (serves and is_called_vllm(str(node.get("name", scope.service))))
    if "build" in node and not _is_of_server(node):
        if _is_built_server(node):
            yield from (replace(server, complete=False) for server in started)
        return
    if re.search(r"\bray", image) or _is_client(node):
        return
    is_plain = re.search(r"(?:^|/)vllm(?::|$)", image) is not None
    for server in started:
        if (
            settings
            or is_plain
            or (is_called and is_bare)
            or any(starts_elsewhere(_words(node.get(key)), False) for key in _WORDS)
            or (not server.is_certain and not server.complete and "entrypoint" in node)
        ):
            given = {**settings, **server.settings}
            yield replace(server, settings=given if "build" not in node else {})


def _of_more(node: Mapping[Any, Any], scope: _Scope) -> Iterator[ServerCommand]:
    """Yield the server of a container whose variable adds arguments to a command elsewhere: of
    KServe's services for language models."""
    for key in _ENVIRONMENTS:
        for name, text in _variables(node.get(key)).items():
            if re.fullmatch(r"VLLM_(?:ADDITIONAL|EXTRA)_ARGS", name) and text.startswith("--"):
                line = next((key.line for key in node if isinstance(key, Word)), 1)
                yield ServerCommand(
                    tuple(split(text, line)),
                    line,
                    scope.variables,
                    settings={"model": scope.model} if scope.model else {},
                    is_certain=False,
                    complete=False,
                )


def _is_of_server(node: Mapping[Any, Any]) -> bool:
    """Return whether the variables of a container that is built configure a server, not a client."""
    names = _own_variables(node)
    is_named = any(node.get(key) for key in _IMAGES)
    return not is_named and not _is_client(node) and any(map(_SERVER_VARIABLE.fullmatch, names))


def _is_client(node: Mapping[Any, Any]) -> bool:
    """Return whether the variables of a container say where a server is."""
    names = _own_variables(node)
    return any(map(_WHERE_SERVER_IS.fullmatch, names))


def _of_chart(
    node: Mapping[Any, Any], config: Mapping[Any, Any], scope: _Scope, image: Word, label: str
) -> ServerCommand:
    """Return the server of vLLM's own Helm chart or operator."""
    line = next((key.line for key in node if isinstance(key, Word)), 1)
    model = node.get("model")
    chart = {**(model if isinstance(model, dict) else {}), **node}
    settings = {option: chart[key] for key, option in _CHART.items() if chart.get(key)}
    settings |= {
        # Some templates add an option to turn it off, others nothing, so that it is on.
        str(key): UNSET if value is False and key in _ON_UNLESS_SAID else value
        for key, value in config.items()
        if key != "extraArgs"
    }
    words = [*_words(config.get("extraArgs")), *_words(node.get("extraArgs"))]
    complete = all(key in _CHART or _OF_KUBERNETES.fullmatch(str(key)) for key in chart)
    complete = complete and any(isinstance(key, Word) for key in node)  # else it was set by paths
    return ServerCommand(
        tuple(words), line, scope.variables, image, label, settings, complete=complete
    )


def _of_values(
    node: Mapping[Any, Any], scope: _Scope, image: Word, words: Sequence[Word]
) -> Iterator[ServerCommand]:
    """Yield the server of a mapping whose words or keys become a command elsewhere: values of a
    chart, an entry of a catalogue, engine arguments."""
    lists = {str(key): _words(node[key], str(key)) for key in node if _is_list(str(key))}
    lists["command"] = list(words) if isinstance(node.get("command"), (str, list)) else []
    more = next((words for words in lists.values() if _are_arguments(words)), [])
    telling = any(map(is_telling, more)) or (
        scope.says_vllm and any(_USUAL.fullmatch(word.replace("_", "-")) for word in more)
    )
    is_vllm = is_image(image) or _says_vllm(node) or _is_called_vllm(node, image)
    is_vllm = is_vllm or _is_model_of_vllm(node)
    image = image or _versioned(node)
    is_other = _OTHER_ENGINE.search(image) is not None or _is_other_backend(more)
    is_other = is_other or _runs_other(_words(node.get("command")))
    is_other = is_other or _names_other_engine(node) or not _are_options_of_vllm(more)
    if more and (is_vllm or telling) and not is_other:
        model = _model(node) or scope.model
        settings = {"model": model} if model and not names_model(more) else {}
        settings = {**_options_of_keys(node), **settings}
        yield ServerCommand(
            tuple(part for word in more for part in expanded(word, _known(scope))),
            more[0].line,
            scope.variables,
            image,
            settings=settings,
            is_certain=False,
            complete=not _has_options(node) and not _has_runtime(node),
        )
    elif (given := _engine_arguments(node)) is not None:
        model = _model(node) or scope.model
        yield ServerCommand(
            (),
            next((key.line for key in node if isinstance(key, Word)), 1),
            scope.variables,
            image=image if is_image(image) else "",
            settings={**({"model": model} if model else {}), **given},
            is_certain=False,
            complete="vllm" not in node,
        )
    elif _names_engine(node) and not more and not words and (model := _model(node)):
        line = next((key.line for key in node if isinstance(key, Word)), 1)
        yield ServerCommand(
            (),
            line,
            scope.variables,
            image,
            settings={"model": model},
            is_certain=False,
            complete=not _has_options(node),
        )
    elif (
        (isinstance(node.get("image"), dict) and is_image(image) and not words)
        or (_is_model_of_vllm(node) and not more)
        or _is_role(node)
        or (isinstance(node.get("model"), str) and _telling(node) > 1 and not words)
    ):
        model = _model(node) or scope.model
        yield ServerCommand(
            (),
            next((key.line for key in node if isinstance(key, Word)), 1),
            scope.variables,
            image,
            settings={**_options_of_keys(node), **({"model": model} if model else {})},
            is_certain=False,
            complete=False,
        )


def _versioned(node: Mapping[Any, Any]) -> Word:
    """Return the image that a version of the backend means: ``backend: vllm`` with
    ``backend_version: 0.9.1``."""
    names = {str(node.get(key)).lower() for key in ("engine", "backend", "backendName")}
    keys = ("backend_version", "backendVersion", "version")
    version = next((node[key] for key in keys if isinstance(node.get(key), str)), "")
    return Word(f"vllm:{version}") if version and "vllm" in names else Word("")


def _names_engine(node: Mapping[Any, Any]) -> bool:
    return any(str(node.get(key)).lower() == "vllm" for key in ("engine", "backend"))


def _engine_key(node: Mapping[Any, Any]) -> Any:
    """Return the key, such as ``vllm_config`` or ``engine_kwargs``, below which options have their
    own names; None if there is none."""
    for key, value in node.items():
        of_chart = key == "config" and isinstance(node.get("image"), dict)
        if _ARGUMENTS.fullmatch(str(key)) and isinstance(value, dict):
            if _says_vllm(node) or is_image(_image(node)):
                return key
            continue
        if not isinstance(value, dict) or not _ENGINE_ARGUMENTS.fullmatch(str(key)) or of_chart:
            continue
        telling, is_whole = _telling(value), key == "vllm"  # which may be anything of vLLM's
        if is_whole and telling > 1 and not isinstance(value.get("image"), dict):
            return key
        if not is_whole and ("vllm" in str(key).lower() or telling):
            return key
    return None


def _engine_arguments(node: Mapping[Any, Any]) -> dict[str, Any] | None:
    """Return the options below such a key; None if there is none."""
    key = _engine_key(node)
    options = node[key].items() if key is not None else ()
    if any(_OF_BENCHMARK.match(f"--{name}") for name, _ in options):
        return None
    given = {str(name): option for name, option in options if option not in (None, "")}
    return given if key is not None else None


def _telling(node: Mapping[Any, Any]) -> int:
    """Return how many keys are options that hardly any other server has, in any spelling."""
    names = {re.sub(r"[A-Z]", lambda m: f"_{m[0].lower()}", str(n)).replace("-", "_") for n in node}
    return len(names & _TELLING_NAMES)


def _parts(node: Mapping[Any, Any]) -> list[Mapping[Any, Any]]:
    """Return a mapping and those below it in which charts have options."""
    inner = (node.get(key) for key in ("model", "vllm", "config"))
    return [node, *(part for part in inner if isinstance(part, dict))]


def _options_of_keys(node: Mapping[Any, Any]) -> dict[str, Any]:
    """Return what keys of a chart's values, or of a part of them, probably mean to its template. What
    is off or empty is left out: the template may see it otherwise."""
    return {
        re.sub("^vllm_", "", str(key)): value
        for part in _parts(node)
        for key, value in part.items()
        if _LOOKS_LIKE_OPTION.fullmatch(str(key))
        and not _is_list(str(key))
        and not isinstance(value, (dict, list))
        and value not in (None, "", False, "false")
    }


def _is_role(node: Mapping[Any, Any]) -> bool:
    """Return whether a mapping has the variables of a role that serves: ``vllm_model`` and others."""
    names = [str(key) for key in node if str(key).startswith("vllm_")]
    return len(names) >= 3 and any(re.fullmatch(r"vllm_model(?:_\w+)?", name) for name in names)


def _runs_other(words: Sequence[Word]) -> bool:
    """Return whether a command runs a program of Python that is not vLLM's."""
    module = next((after for word, after in pairwise(words) if word == "-m"), "vllm")
    return "vllm" not in module


def _names_other_engine(node: Mapping[Any, Any]) -> bool:
    """Return whether a mapping says that another engine serves."""
    values = (node.get(key) for key in ("engine", "backend", "framework", "runtime"))
    return any(
        isinstance(value, str)
        and _OTHER_ENGINE.search(value.lower())
        and "vllm" not in value.lower()
        for value in values
    )


def _are_options_of_vllm(words: Sequence[Word]) -> bool:
    """Return whether vLLM's server has most of the options in a list, and none is of a benchmark."""
    options = [word.partition("=")[0].split()[0] for word in words if word.startswith("--")]
    known = sum(names().find(option) is not None for option in options)
    return not any(map(_OF_BENCHMARK.match, options)) and known * 2 >= len(options)


def _is_list(key: str) -> bool:
    return _MORE_WORDS.fullmatch(key) is not None and not _OF_OTHERS.fullmatch(key)


def _are_arguments(words: Sequence[Word]) -> bool:
    """Return whether words are options, perhaps behind the path of a model."""
    if words and "/" in words[0] and not words[0].rpartition("/")[0].endswith("bin"):
        words = words[1:]
    return bool(words) and words[0].startswith("-")


def _is_other_backend(words: Sequence[Word]) -> bool:
    """Return whether arguments choose another engine than vLLM (KServe's own server)."""
    return any(re.fullmatch(r"--backend=(?!vllm|auto).*", word) for word in words)


def _is_model_of_vllm(node: Mapping[Any, Any]) -> bool:
    """Return whether a mapping is the model of a KServe service that a runtime with vLLM serves."""
    named = node.get("modelFormat")
    name = named.get("name") if isinstance(named, dict) else None
    return _has_runtime(node) and "vllm" in f"{name} {node.get('runtime')}".lower()


def _has_runtime(node: Mapping[Any, Any]) -> bool:
    """Return whether a mapping is the model of a KServe service, to whose arguments a runtime
    elsewhere adds its own."""
    return "storageUri" in node or "modelFormat" in node


def _has_options(node: Mapping[Any, Any]) -> bool:
    """Return whether a key, which was not understood, looks like an option."""
    ignored = {*_WORDS, *_IMAGES, *_LABELS, *_ENVIRONMENTS}
    return any(
        key not in ignored
        and _LOOKS_LIKE_OPTION.fullmatch(str(key))
        and not _is_list(str(key))
        and not _MODEL_KEY.fullmatch(str(key))
        for part in _parts(node)
        for key in part
    ) or ("vllm_model" in node)


def _says_vllm(node: Mapping[Any, Any]) -> bool:
    """Return whether a mapping says ``engine: vllm``, ``backend: vllm``, ``modelCommand: vllmServe``
    or names such an image."""
    values = (value for key, value in node.items() if key not in _LABELS)
    return any(
        isinstance(value, str) and re.fullmatch(r"(?i)vllm(?:serve|[\w-]*runtime)?", value)
        for value in values
    )


def _is_called_vllm(node: Mapping[Any, Any], image: str) -> bool:
    """Return whether a container whose image is left to a template or variable is called vLLM."""
    is_open = "$" in image or "{{" in image
    return is_open and any(is_called_vllm(str(node.get(key, ""))) for key in _LABELS)


def _model(node: Any, depth: int = 3) -> str:
    """Return the model that a mapping names: below a key for one, the name of a repository or a
    path."""
    for key, value in node.items() if isinstance(node, dict) and depth else ():
        if isinstance(value, str) and _MODEL_KEY.fullmatch(str(key)):
            if match := _MODEL_NAME.fullmatch(value):
                return match[1]
        elif isinstance(value, dict) and re.search(
            r"(?i)model|storage|predictor|spec|config", str(key)
        ):
            for name in ("id", "name", "modelURL"):
                if isinstance(value.get(name), str) and (m := _MODEL_NAME.fullmatch(value[name])):
                    return m[1]
            if found := _model(value, depth - 1):
                return found
    return ""


def _model_of_document(document: Any) -> str:
    return _model(document) if isinstance(document, dict) else ""


def _image(node: Mapping[Any, Any]) -> Word:
    """Return the image of a container, also one that is given as a repository and a tag."""
    image = next((node[key] for key in _IMAGES if node.get(key)), None) or _base(node) or node
    if isinstance(image, Mapping):
        name = (
            image.get("repository")
            or (image is not node and image.get("url"))
            or (image.get("name") if "tag" in image else None)
        )
        parts = (name, image.get("tag"))
        text = ":".join(str(part) for part in parts if part is not None) if name else ""
        registry = image.get("registry")
        text = f"{registry}/{text}" if isinstance(registry, str) and text else text
        return Word(text, getattr(name, "line", 1))
    if not isinstance(image, Word):
        return Word("")
    tag = next((node[key] for key in _TAGS if isinstance(node.get(key), str)), "")
    text = f"{image}:{tag}" if tag and ":" not in image else image.removeprefix("docker:")
    return Word(text, image.line)


def _base(node: Mapping[Any, Any]) -> Word | None:
    """Return the image on which a container's image is built: the argument of the build that names
    vLLM's, or else ``vllm`` if the Dockerfile's name says so."""
    build = node.get("build")
    if isinstance(build, Word):
        build = {"context": build}
    if not isinstance(build, dict):
        return None
    for value in _variables_as_written(build.get("args")).values():
        if is_own_image(DEFAULT_OF_VARIABLE.sub(r"\1", value)):
            return Word(value)
    return Word("vllm", getattr(next(iter(node)), "line", 1)) if _names_vllm(build) else None


def _names_vllm(build: Mapping[Any, Any]) -> bool:
    """Return whether the Dockerfile of a container, or its folder, is called after vLLM."""
    paths = (str(build.get(key, "")) for key in ("dockerfile", "context"))
    return any(re.search(r"(?:^|[/._-])vllm(?:[/._-]|$)", path) for path in paths)


def _is_built_server(node: Mapping[Any, Any]) -> bool:
    """Return whether a container runs what is built from a Dockerfile that is called after vLLM, and
    no client or router."""
    build = node.get("build")
    build = {"context": build} if isinstance(build, Word) else build
    texts = (
        (node.get("image"), node.get("container_name"), *(build or {}).values())
        if isinstance(build, dict)
        else ()
    )
    is_other = any(_OF_CLIENTS.search(text) for text in texts if isinstance(text, str))
    runs = not node.keys() <= {"build", "image", "extends", "platform", "depends_on"}
    return (
        runs
        and isinstance(build, dict)
        and _names_vllm(build)
        and not (is_other or _is_client(node))
    )


def _words(value: Any, key: str = "command") -> list[Word]:
    if isinstance(value, Word):
        return split(without_blocks(value), value.line, newlines_end=False)
    words: list[Word] = []
    for item in value if isinstance(value, list) else []:
        if isinstance(item, Word):
            several = _SEVERAL_WORDS.fullmatch(item) is not None
            words += split(item, item.line) if several else [Word(item, item.line, True)]
        elif not isinstance(item, (dict, list, type(None))):
            words.append(Word(str(item), words[-1].line if words else 1))
    return words


def _known(scope: _Scope) -> dict[str, Word | list[Word] | None]:
    return {name: Word(value) for name, value in scope.variables.items() if value != UNSET}


def _variables(value: Any) -> dict[str, str]:
    """Return variables, with ``UNSET`` for values that other variables decide."""
    return {name: literal(text) for name, text in _variables_as_written(value).items()}


def _variables_as_written(value: Any) -> dict[str, str]:
    """Return variables from a mapping, from texts ``NAME=value``, or from Kubernetes' list of name
    and value."""
    if isinstance(value, dict):
        return {
            str(name): str(text)
            for name, text in value.items()
            if not isinstance(text, (dict, list))
        }
    variables = {}
    for entry in value if isinstance(value, list) else ():
        if isinstance(entry, str) and "=" in entry:
            name, _, text = entry.partition("=")
            variables[name] = text
        elif isinstance(entry, dict) and "name" in entry:
            variables[str(entry["name"])] = str(entry.get("value", UNSET))
    return variables
