"""Scripts with functions, loops and conditions, and texts that are read as scripts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_vllm_regress.answers.deployments.configuration import Deployment, read_deployments
from pytest_vllm_regress.answers.deployments.reader import UNSET
from pytest_vllm_regress.errors import UsageError


def read(tmp_path: Path, text: str, name: str = "a.sh") -> list[Deployment]:
    (tmp_path / name).write_text(text)
    return list(read_deployments(str(tmp_path / name)))


def options(tmp_path: Path, text: str, name: str = "a.sh") -> list[dict[str, Any]]:
    found = read(tmp_path, text, name)
    assert all(place.complete for place in found)
    return [dict(place.options) for place in found]


def known(place: Deployment) -> dict[str, Any]:
    return {name: value for name, value in place.options.items() if value != UNSET}


A = {"model": "org/a", "port": "1"}
B = {"model": "org/b", "port": "2"}
LORA = {"enable_lora": True}

FUNCTIONS = {
    "positions": 'start() {\n  vllm serve "$1" --port $2\n}\nstart org/a 1 &\nstart org/b 2 &\n',
    "locals": 'function start {\n  local m="$1"\n  local p="$2"\n  vllm serve "$m" --port "$p"\n}\nstart org/a 1\nstart org/b 2\n',
    "shift": 'start()\n{\n  m=$1; shift\n  vllm serve $m "$@"\n}\nstart org/a --port 1\nstart org/b --port 2\n',
    "rest": 'start() { vllm serve "$1" "${@:2}"; }\nstart org/a --port 1\nstart org/b --port 2\n',
    "in a substitution": 'start() {\n  vllm serve "$1" --port $2 &\n  echo $!\n}\nX="$(start org/a 1)"\nY=$(start org/b "2")\n',
    "a wrapper": 'run() { echo "+ $*"; "$@"; }\nstart() { run vllm serve "$1" --port "$2"; }\nstart org/a 1\nstart org/b 2\n',
    "defined after use of a global": "start() { vllm serve $M --port $P; }\nM=org/a P=1\nstart\nM=org/b P=2\nstart\n",
    "called in a case": 'start() { vllm serve $1 --port $2; }\ncase "$1" in\n  a) start org/a 1 ;;\n  b|c) start org/b 2 ;;\nesac\n',
    "called in two branches": (
        "all() { start org/a 1; start org/b 2; }\nstart() { vllm serve $1 --port $2; }\n"
        "case $1 in\n  start) all;;\n  restart)\n    stop\n    all\n    ;;\nesac\n"
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_starts_a_server_wherever_it_is_called(tmp_path: Path, name: str) -> None:
    assert options(tmp_path, FUNCTIONS[name]) == [A, B]


def test_a_function_that_nothing_calls_is_read_with_unknown_arguments(tmp_path: Path) -> None:
    text = 'P=1\nstart() { vllm serve "$1" --port $P; }\nP=2\n"$@"\n'
    assert options(tmp_path, text) == [{"model": UNSET, "port": "2"}]
    (place,) = read(tmp_path, 'start() { vllm serve org/a "$@"; }\n')
    assert not place.complete


def test_a_brace_that_nothing_closes_hides_no_server(tmp_path: Path) -> None:
    assert options(tmp_path, "start() {\nvllm serve org/a --port 1\n") == [A]


CERTAIN = {
    "a test that holds": 'L=1\nA=(--port 1)\nif [ "$L" = 1 ]; then A+=(--enable-lora); fi\n',
    "a test that does not hold": 'L=1\nA=(--port 1 --enable-lora)\nif [[ $L == 0 ]]; then A=(); fi\n',
    "the other branch": 'L=0\nif [ $L -gt 0 ]; then A=(); else A=(--port 1 --enable-lora); fi\n',
    "and": 'L=1\nA=(--port 1)\n[[ -n "$L" && $L != 0 ]] && A+=(--enable-lora)\n',
    "or": 'L=\nA=(--port 1)\n[ -n "$L" ] || A+=(--enable-lora)\n',
    "not": 'L=\nA=(--port 1)\nif ! [ -n "$L" ]; then A+=(--enable-lora); fi\n',
    "a virtual environment": 'L=1\nsource v/bin/activate\nA=(--port 1)\n[ $L = 1 ] && A+=(--enable-lora)\n',
    "a shell of its own": 'f() { L=0; }\nL=1\nX=$(f)\nA=(--port 1)\n[ $L = 1 ] && A+=(--enable-lora)\n',
    "a default for an empty variable": 'L=\nA=(--port 1)\n[ "${L:-1}" = 1 ] && A+=(--enable-lora)\n',
    "a word of a variable": "L=true\nA=(--port 1)\nif $L; then A+=(--enable-lora); fi\n",
    "a case": 'M=big\ncase "$M" in\n  small) A=();;\n  b*) A=(--port 1 --enable-lora);;\n  *) A=(--enforce-eager);;\nesac\n',
    "the length of an array": 'E=(--enable-lora)\nA=(--port 1)\nif [ ${#E[@]} -gt 0 ]; then A+=("${E[@]}"); fi\n',
    "the body of a loop": 'for x in 1 2; do\nA=()\nA+=(--port 1)\nA+=(--enable-lora)\ndone\n',
    "a function": "f() { A+=(--enable-lora); }\nA=(--port 1)\nf\n",
    "the arguments of the script": 'set -- --port 1\nset -- "$@" --enable-lora\nA=("$@")\n',
    "a comment in backquotes": "A=(--port 1 `# (two) of them` --enable-lora)\n",
}  # fmt: skip


@pytest.mark.parametrize("name", CERTAIN)
def test_what_a_script_decides_itself_is_followed(tmp_path: Path, name: str) -> None:
    text = f'{CERTAIN[name]}vllm serve org/a "${{A[@]}}"\n'
    assert options(tmp_path, text) == [A | LORA]


OPEN = {
    "a variable of the environment": 'L=${L:-1}\nA=(--port 1)\nif [ "$L" = 1 ]; then A+=(--enable-lora); fi\n',
    "an argument": "L=0\ncase $1 in\n--lora) L=1;;\nesac\nA=(--port 1)\nif [ $L = 1 ]; then A+=(--enable-lora); fi\n",
    "a loop over arguments": 'A=(--port 1)\nwhile [ $# -gt 0 ]; do\n  A+=("$1")\n  shift\ndone\n',
    "a file that is sourced": 'E=\n. ./settings\nA=(--port 1)\nif [ -n "$E" ]; then A+=($E); fi\n',
    "an assignment in a test": 'E=\nif ! E="$(get)"; then exit; fi\nA=(--port 1 $E)\n',
    "an answer": 'E=\nread -r E\nA=(--port 1)\nif [ -n "$E" ]; then A+=($E); fi\n: --enable-lora\n',
    "a command": "A=(--port 1)\nif nvidia-smi; then A+=(--enable-lora); fi\n",
    "a function on a condition": "f() { A+=(--enable-lora); }\nA=(--port 1)\nnvidia-smi && f\n",
    "arguments on a condition": 'set -- --port 1\nA=("$@")\n[ -n "$L" ] && set -- "$@" --enable-lora\nA+=("$@")\n',
    "the output of a command": "E=`get`\nA=(--port 1 $E)\n",
    "the output of a command as a word": "A=(--port 1 `get --all`)\n",
    "a case of an argument": 'A=(--port 1)\ncase "${1:-x}" in\n  l) A+=(--enable-lora);;\nesac\n',
}


@pytest.mark.parametrize("name", OPEN)
def test_what_something_else_decides_is_open(tmp_path: Path, name: str) -> None:
    (place,) = read(tmp_path, f'{OPEN[name]}vllm serve org/a "${{A[@]}}"\n')
    assert (known(place), place.complete) == (A, False)
    assert not place.has_default("enable_lora")
    assert not place.has_default("enforce_eager")


def test_a_branch_that_is_not_taken_still_names_its_options(tmp_path: Path) -> None:
    (place,) = read(tmp_path, "L=0\nif [ $L = 1 ]; then A=--enable-lora; fi\nvllm serve org/a $A\n")
    assert not place.has_default("enable_lora")


def test_a_server_in_a_loop_is_beside_the_one_of_the_other_branch(tmp_path: Path) -> None:
    text = "if a; then\nfor i in 1 2; do vllm serve m --dtype half --port $i; done\nelse\nvllm serve m --dtype half --port 9\nfi\n"
    assert len(read(tmp_path, text)) == 2


def test_two_servers_of_one_branch_are_both_started(tmp_path: Path) -> None:
    text = "if x; then\n  vllm serve m --dtype half --port 1\n  vllm serve m --dtype half --port 2\nfi\n"
    assert [found["port"] for found in options(tmp_path, text)] == ["1", "2"]


def test_a_command_in_a_variable_has_what_all_branches_give_it(tmp_path: Path) -> None:
    text = 'f() {\n  c="vllm serve org/a --port 1"\n  if x; then c="$c --enable-lora"; fi\n  echo "$c"\n}\n$(f)\n'
    (place,) = read(tmp_path, text)
    assert (known(place), place.complete) == (A, False)


def test_a_value_from_elsewhere_leaves_only_this_option_open(tmp_path: Path) -> None:
    text = (
        'args=("$@")\nM=${args[0]}\n'
        'for i in {0..3}; do\nP=$((10 + i))\nCUDA_VISIBLE_DEVICES=$i vllm serve "$M" --port $P --seed "`date`" &\ndone\n'
    )
    (place,) = read(tmp_path, text)
    assert dict(place.options) == {"model": UNSET, "port": UNSET, "seed": UNSET}
    assert (place.complete, dict(place.variables)) == (True, {"CUDA_VISIBLE_DEVICES": UNSET})


def test_lines_of_a_backslash_and_comments_do_not_end_a_command(tmp_path: Path) -> None:
    text = "vllm serve org/a \\\n  \\\n  `# Port: one (1); more` \\\n  --port 1\n"
    assert options(tmp_path, text) == [A]


def test_texts_with_blanks_stay_whole_in_two_branches(tmp_path: Path) -> None:
    first = "X=\"--port 1 --chat-template 'a b' --seed 1\"\n"
    second = "X=\"--port 1 --chat-template 'a b' --enable-lora\"\n"
    (place,) = read(tmp_path, f"if x; then\n{first}else\n{second}fi\neval vllm serve org/a $X\n")
    assert dict(place.options) == A | {"chat_template": "a b"}


BATCH = {
    "a condition": 'set Q=TRUE\nif /i "%Q%"=="true" (\n  set F=--enable-lora\n) else (\n  set F=\n)\n',
    "a condition in a line": 'set "Q=2"\nif %Q% GTR 1 (set F=--enable-lora) else (set F=)\n',
    "without a block": 'set Q=a\nif not "%Q%"=="" set F=--enable-lora\n',
    "several conditions": "set Q=2\nif %Q% EQU 1 (\n  set F=\n) else if %Q% EQU 2 (\n  set F=--enable-lora\n) else (\n  set F=--x\n)\n",
    "a block in a loop": "for %%i in (1 2) do (\n  echo %%i (x^)\n)\nset F=--enable-lora\n",
    "a text in a value": 'set F=--enable-lora --chat-template "a"\n',
}
WSL = 'wsl -d x -- bash -c ^\n"docker run ^\n  vllm/vllm-openai:v0.9.1 ^\n  --model org/a %F% ^\n  --port 1"\n'


@pytest.mark.parametrize("name", BATCH)
def test_conditions_of_a_batch_file_are_followed(tmp_path: Path, name: str) -> None:
    (place,) = read(tmp_path, f"@echo off\n{BATCH[name]}{WSL}", "a.bat")
    expected = A | LORA
    assert {key: place.options.get(key) for key in expected} == expected
    assert (place.complete, place.release) == (True, "0.9.1")


OPEN_BATCH = {
    "a variable of the environment": "if defined Q set F=--enable-lora\n",
    "a file": "set F=\nif exist lora (\n  set F=--enable-lora\n)\n",
    "labels": "set F=\nif errorlevel 1 goto b\n:a\nset F=--enable-lora\ngoto run\n:b\nset F=--seed 1\n:run\n",
    "an answer": "set F=\nset /p F=Options: --enable-lora?\n",
    "the arguments": "set F=%*\n",
}


@pytest.mark.parametrize("name", OPEN_BATCH)
def test_what_something_else_decides_in_a_batch_file_is_open(tmp_path: Path, name: str) -> None:
    (place,) = read(tmp_path, f"{OPEN_BATCH[name]}vllm serve org/a --port 1 %F%\n", "a.bat")
    assert (known(place), place.complete) == (A, False)


PROGRAMS = {
    "a prefix that is not known": "$PREFIX vllm serve org/a --port 1 --max-model-len 8",
    "an interpreter in a variable": "$PY -m vllm.entrypoints.openai.api_server --model org/a --port 1 --max-model-len 8",
    "a program with a default": "${VLLM:-vllm} serve org/a --port 1 --max-model-len 8",
    "a requirement before it": "uv run --with vllm==0.9.1 vllm serve org/a --port 1 --max-model-len 8",
    "text for tmux": 'tmux new -d -s vllm "X=0 vllm serve org/a --port 1 --max-model-len 8"',
    "docker create": "docker create --name v vllm/vllm-openai --model org/a --port 1 --max-model-len 8",
    "an image in a variable of a template": "docker run {{ vllm_image }} --model org/a --port 1 --max-model-len 8",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_program_is_found_behind_others(tmp_path: Path, name: str) -> None:
    (place,) = read(tmp_path, PROGRAMS[name])
    assert dict(place.options) == A | {"max_model_len": "8"}
    assert "vllm" not in place.variables


def test_the_image_around_a_shell_is_the_servers(tmp_path: Path) -> None:
    text = 'srun --container-image=vllm/vllm-openai:v0.9.1 bash -c "vllm serve org/a"'
    (place,) = read(tmp_path, text)
    assert place.release == "0.9.1"
    (place,) = read(tmp_path, "apptainer exec --nv /i/vllm_0.9.1.sif vllm serve org/a")
    assert place.release == "0.9.1"


def test_a_script_around_the_server_may_add_options(tmp_path: Path) -> None:
    text = "python x/serve_vllm.py --model=org/a --port 1 --tensor-parallel-size=2"
    (place,) = read(tmp_path, text)
    assert (dict(place.options), place.complete) == (A | {"tensor_parallel_size": "2"}, False)
    assert len(read(tmp_path, f"{text}\nvllm serve org/b")) == 1  # it is rather a client


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.sh", "python bench_vllm_serve.py --model org/a --max-model-len 8"),
        ("a.sh", "python run_vllm.py --model org/a --max-model-len 8"),
        ("a.sh", "docker network create vllm"),
        ("a.md", "Use `vllm serve` without options. vllm serve is slow.\n```bash\nls\n```\n"),
        ("a.py", "from x import build_vllm_command\n"),
        ("a.py", "LLMConfig(engine_kwargs=dict(a=1))  # vllm"),
    ],
)
def test_what_only_looks_like_a_server(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(UsageError, match="starts no vLLM"):
        read(tmp_path, text, name)


def test_examples_in_markdown_are_read_in_their_language(tmp_path: Path) -> None:
    text = (
        "# vllm serve me\n```bash\nvllm serve org/a \\\n  --port 1\n```\n"
        "Then vllm serve it:\n~~~yaml\nimage: vllm/vllm-openai\nargs: [--model, org/b, --port, '2']\n~~~\n"
    )
    first, second = read(tmp_path, text, "README.md")
    assert (dict(first.options), dict(second.options)) == (A, B)
    assert first.command is not None and first.command.line == 3
    text = "```\nls\n```\nThen vllm serve it:\n\n    vllm serve org/a --port 1\n"
    assert options(tmp_path, text, "README.md") == [A]


SUPERVISOR = """
[supervisord]
nodaemon=true
[program:a]
command=vllm serve org/a
  --port 1
environment=VLLM_USE_V1="0"
[program:b]
command=vllm serve org/b --port 2
"""


def test_programs_of_supervisord_have_their_own_variables(tmp_path: Path) -> None:
    first, second = read(tmp_path, SUPERVISOR, "vllm.conf")
    assert (dict(first.options), dict(second.options)) == (A, B)
    assert (dict(first.variables), dict(second.variables)) == ({"VLLM_USE_V1": "0"}, {})


JUSTFILE = """
model := "org/a"
serve port="1":
    @uv run vllm serve {{model}} --port {{ port }}
"""
QUADLET = """
cat > a.container <<EOF
  [Container]
  Image=vllm/vllm-openai:v0.9.1
  Exec=--model org/a --port 1
EOF
"""
QUADLET_NIX = """
{ text = ''
    [Container]
    Image=vllm/vllm-openai:v0.9.1
    Exec=--model org/a --port 1
  ''; }
"""
NIX_LIST = """
{ virtualisation.x = { image = "vllm/vllm-openai"; cmd = [ "--model" "org/a" "--port" "1"
  "--speculative-config" ''{"method":"mtp"}'' ]; }; }
"""
NIX_ARGUMENTS = """
let args = [ "serve" "org/a" "--port" (toString 1) ] ++ lib.optionals c [ "--enable-lora" ]; in
{ ExecStart = "${pkgs.vllm}/bin/vllm ${lib.escapeShellArgs args}"; }
"""
RAY = """
from ray.serve.llm import LLMConfig
options = {"port": 1}
LLMConfig(model_loading_config=dict(model_id="x", model_source="org/a"), engine_kwargs=options)
"""
DOCKER = """
cmd = ["--model", "org/a", "--port", "1"]
client.containers.run("vllm/vllm-openai:v0.9.1", command=cmd, detach=True)
"""
ELSEWHERE = """
from team.vllm import build_vllm_command
subprocess.Popen(build_vllm_command("org/a"))
"""
CHART = """
image: {repository: vllm/vllm-openai, tag: v0.9.1}
config: {model: org/a, max_model_len: 8}
"""


@pytest.mark.parametrize(
    ("name", "text", "expected", "complete", "release"),
    [
        ("justfile", JUSTFILE, {"model": "org/a"}, True, ""),
        ("a.sh", QUADLET, A, True, "0.9.1"),
        ("a.nix", QUADLET_NIX, A, True, "0.9.1"),
        ("a.nix", NIX_LIST, A | {"speculative_config": '{"method":"mtp"}'}, True, ""),
        ("a.nix", NIX_ARGUMENTS, {"model": "org/a", "port": UNSET}, False, ""),
        ("a.py", RAY, {"model": "org/a", "port": 1}, True, ""),
        ("a.py", DOCKER, A, True, "0.9.1"),
        ("a.py", ELSEWHERE, {}, False, ""),
        ("a.py", 'run(["vllm", "serve", "org/a"] + x["args"])', {"model": "org/a"}, False, ""),
        ("a.py", 'c = ["vllm", "serve", "org/a"]\nrun(c + more)', {"model": "org/a"}, False, ""),
        ("a.py", 'run(["vllm", "serve"] + ["org/a"] + ["--port", "1"])  # vllm', A, True, ""),
        ("values.yaml", CHART, {"model": "org/a"}, False, "0.9.1"),
    ],
)
def test_more_forms(
    tmp_path: Path, name: str, text: str, expected: dict[str, Any], complete: bool, release: str
) -> None:
    (place,) = read(tmp_path, text, name)
    assert {key: place.options.get(key) for key in expected} == expected
    assert (place.complete, place.release) == (complete, release)
