"""One small file of each kind that public files have, with what is read of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_vllm_regress.answers.deployments.configuration import Deployment, read_deployments
from pytest_vllm_regress.answers.deployments.reader import UNSET
from pytest_vllm_regress.errors import UsageError

M = {"model": "org/m"}
LORA = M | {"enable_lora": True}
OPEN = M | {"enable_lora": UNSET}
PARSER = OPEN | {"tool_call_parser": UNSET}
DEFAULTS = "--enable-lora --tool-call-parser hermes"


def read(tmp_path: Path, name: str, text: str) -> tuple[Deployment, ...]:
    (tmp_path / name).write_text(text)
    return read_deployments(str(tmp_path / name))


def check(tmp_path: Path, name: str, text: str, options: dict[str, Any], complete: bool) -> None:
    (place,) = read(tmp_path, name, text)
    assert (dict(place.options), place.complete) == (options, complete)


@pytest.mark.parametrize(
    "text",
    [
        f'T=${{T:-"{DEFAULTS}"}}\nvllm serve org/m $T',
        f'T="${{T:-{DEFAULTS}}}"\nvllm serve org/m $T',
        f"vllm serve org/m ${{T:-'{DEFAULTS}'}}",
        f': "${{T:={DEFAULTS}}}"\nvllm serve org/m $T',
    ],
)
def test_options_in_the_default_of_a_variable_are_open(tmp_path: Path, text: str) -> None:
    check(tmp_path, "a.sh", text, PARSER, False)


@pytest.mark.parametrize(
    "text",
    [
        "ID=$(docker run -d vllm/vllm-openai:v1 --model org/m --enable-lora)",
        'if ! ID="$(docker run vllm/vllm-openai:v1 --model org/m --enable-lora)"; then exit; fi',
        "export JOB=$(sbatch --wrap 'vllm serve org/m --enable-lora')",
    ],
)
def test_a_command_whose_output_is_assigned_starts_a_server(tmp_path: Path, text: str) -> None:
    check(tmp_path, "a.sh", text, LORA, True)


PYTHON = "c = ['vllm', 'serve', 'org/m', '--port', '80']\n"
TEXT = "c = 'vllm serve org/m --port 80'\n"
FIELD = """
@dataclass
class C:
    lora: bool = True

    def run(self):
        c = ['vllm', 'serve', 'org/m', '--port', '80']
        if self.lora:
            c.append('--enable-lora')
"""
BRANCH = """
: "${ENGINE:=vllm}"
readonly NAME="$ENGINE"
has() { printf '%s' "$EXTRA" | grep -qE -- "$1"; }
if [ "$NAME" = "vllm" ]; then
  A=(/venv/bin/vllm serve org/m --port 80)
  has --enable-lora || A+=(--enable-lora)
else
  A=(python -m sglang.launch_server --model org/m --tp-size 2)
fi
nohup bash -c '"$@" 2>&1' _ "${A[@]}" &
"""
BY_DEFAULT = {
    "not given": ("a.sh", 'A=(--port 80)\nhas --enable-lora || A+=(--enable-lora)\nvllm serve org/m "${A[@]}"'),
    "in a branch": ("a.sh", BRANCH),
    "on": ("a.sh", 'A="--port 80"\nif [ "${X:-true}" = true ]; then A="$A --enable-lora"; fi\nvllm serve org/m $A'),
    "on, assigned": ("a.sh", 'X=${X:-1}\nA=(--port 80)\n[[ "$X" == 1 ]] && A+=(--enable-lora)\nvllm serve org/m "${A[@]}"'),
    "not off": ("a.sh", 'A=\nif [ -z "$NO_LORA" ]; then A=--enable-lora; fi\nvllm serve org/m $A --port 80'),
    "in Python": ("a.py", "X = os.getenv('X', 'True').lower() == 'true'\n" + PYTHON + "if X:\n    c += ['--enable-lora']\nrun(c)"),
    "a text": ("a.py", "X = bool(int(os.environ.get('X', '1')))\n" + TEXT + "if X:\n    c += ' --enable-lora'\nrun(c)"),
    "a field": ("a.py", FIELD),
}  # fmt: skip
ON_DEMAND = {
    "given": ("a.sh", 'A=(--port 80)\nis_set x && A+=(--enable-lora)\nvllm serve org/m "${A[@]}"'),
    "off": ("a.sh", 'A="--port 80"\nif [ "${X:-false}" = true ]; then A="$A --enable-lora"; fi\nvllm serve org/m $A'),
    "not set": ("a.sh", 'A=(--port 80)\nif [[ -n "$X" ]]; then A+=(--enable-lora); fi\nvllm serve org/m "${A[@]}"'),
    "in Python": ("a.py", PYTHON + "if os.getenv('X'):\n    c += ['--enable-lora']\nrun(c)"),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_DEFAULT)
def test_an_option_that_a_condition_adds_by_default_is_open(tmp_path: Path, name: str) -> None:
    check(tmp_path, *BY_DEFAULT[name], OPEN | {"port": "80"}, False)


@pytest.mark.parametrize("name", ON_DEMAND)
def test_an_option_that_only_somebody_else_turns_on_is_not_named(tmp_path: Path, name: str) -> None:
    check(tmp_path, *ON_DEMAND[name], M | {"port": "80"}, False)


ACTION = """
jobs:
  a:
    steps:
      - uses: team/ssh-action@v1
        with:
          host: vllm
          script: |
            docker start a || docker run vllm/vllm-openai:v1 --model org/m --enable-lora
"""


def test_a_script_that_an_action_runs_is_read(tmp_path: Path) -> None:
    check(tmp_path, "ci.yml", ACTION, LORA, True)


JINJA = """
{# One service
   for each model #}
{% set tls = (cert | default('') | length > 0) and
             (key | default('') | length > 0) %}
services:
{% for model in models %}
  vllm-{{ model.name }}:
    image: "{{ vllm_image }}"
    command:
      - "--model"
      - "org/m"
{% if tls %}
      - "--enable-lora"
{% endif %}
{# more #}
{% for more in model.more | default([]) %}
      - {{ more | to_json }}
{% endfor %}
{% endfor %}
"""
JINJA_UNITS = """
{% for model in models %}
[program:vllm-{{ model.name }}]
command=vllm serve org/m {% if model.lora %}--enable-lora{% endif %} --port {{ model.port }}
{% endfor %}
"""
JINJA_SCRIPT = """
{# docker run vllm/vllm-openai:v1 #}
{% for model in models %}
docker run vllm/vllm-openai:v1 --model org/m --port {{ model.port }} {{ extra }}
{% endfor %}
"""


@pytest.mark.parametrize(
    ("name", "text", "option"),
    [
        ("compose.yml.j2", JINJA, {"enable_lora": True}),
        ("vllm.conf.j2", JINJA_UNITS, {"port": UNSET}),
        ("start.sh.j2", JINJA_SCRIPT, {"port": UNSET}),
    ],
)
def test_the_body_of_a_loop_in_a_template_is_one_server(
    tmp_path: Path, name: str, text: str, option: dict[str, Any]
) -> None:
    check(tmp_path, name, text, M | option, False)


NAMED = """
containers:
- name: vllm
  image: 192.0.2.1:5000/team-vllm:latest
  ports: [{containerPort: 80}]
"""
JOINED = """
args = ["--model", "org/m"]
args += ["--enable-lora"]
cmd = f"python -m vllm.entrypoints.openai.api_server {' '.join(args)}"
"""
NIX_SUM = """
  flags = [ "serve" "org/m" ]
    ++ lib.optionals (svc.name != null) [ "--served-model-name" svc.name ]
    ++ [ "--enable-lora" ]
    ++ svc.extraFlags ++ clusterFlags;
  start = "vllm ${lib.concatStringsSep " " flags}";
"""


@pytest.mark.parametrize(
    ("name", "text", "options", "complete"),
    [
        ("pod.yaml", NAMED, {}, False),
        ("a.py", JOINED, LORA, True),
        ("a.nix", NIX_SUM, LORA, False),
    ],
)
def test_more_kinds(
    tmp_path: Path, name: str, text: str, options: dict[str, Any], complete: bool
) -> None:
    check(tmp_path, name, text, options, complete)


NOTEBOOK = json.dumps(
    {
        "cells": [
            {"cell_type": "markdown", "source": ["Start it with `vllm serve`:\n", "``` sh\n",
                "docker run --gpus all\n", "  -v a:b vllm/vllm-openai:v1 --model org/m\n", "--enable-lora\n", "```"]},
            {"cell_type": "code", "source": "client = OpenAI()"},
        ]
    }
)  # fmt: skip


def test_the_command_of_a_notebook_may_be_in_its_text(tmp_path: Path) -> None:
    check(tmp_path, "a.ipynb", NOTEBOOK, LORA, True)
    code = NOTEBOOK.replace("client = OpenAI()", "!vllm serve org/a")
    (place,) = read(tmp_path, "a.ipynb", code)
    assert dict(place.options) == {"model": "org/a"}


WORKER = """
FROM runpod/worker-v1-vllm:v2.1
ENV MODEL_NAME=org/m ENABLE_LORA=true \\
    MAX_MODEL_LEN=8 TENSOR_PARALLEL_SIZE=2 HOST=x BASE_PATH=/x EMPTY=""
"""
WORKER_SERVICE = """
services:
  a:
    image: team/runpod-worker-vllm:1
    environment: {MODEL_NAME: org/m, ENABLE_LORA: "true", MAX_MODEL_LEN: "8", TENSOR_PARALLEL_SIZE: "$TP"}
"""
WORKER_RUN = "docker run -e MODEL_NAME=org/m -e ENABLE_LORA=true -e MAX_MODEL_LEN=8 -e TENSOR_PARALLEL_SIZE team/worker-vllm:1"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Dockerfile", WORKER),
        ("Dockerfile", f'{WORKER}CMD ["python3", "/src/handler.py"]'),
        ("compose.yaml", WORKER_SERVICE),
        ("a.sh", WORKER_RUN),
    ],
)
def test_a_worker_takes_its_options_from_variables(tmp_path: Path, name: str, text: str) -> None:
    options = LORA | {"max_model_len": "8", "tensor_parallel_size": UNSET}
    check(tmp_path, name, text, options, False)


LAUNCHED = """
models:
  a:
    cmd: >
      env PORT=${PORT} MODEL_PATH=/m
      /app/launch-vllm-auto.sh
      --served-model-name a
      --enable-lora
      --kv-cache-dtype fp8
      --enable-prefix-caching
  b: {cmd: "/app/launch-b.sh ${PORT}", cmdStop: docker stop vllm-b}
  c: {cmd: "/app/launch-c.sh ${PORT}", cmdStop: docker stop llama-c}
"""


def test_options_after_a_launcher_that_is_called_after_vllm(tmp_path: Path) -> None:
    first, second = read(tmp_path, "config.yaml", LAUNCHED)
    assert dict(first.options) == {
        "served_model_name": "a",
        "enable_lora": True,
        "kv_cache_dtype": "fp8",
        "enable_prefix_caching": True,
    }
    assert (dict(second.options), first.complete, second.complete) == ({}, False, False)


TERRAFORM = """
locals {
  more = ["--hf-overrides", jsonencode({ "a" : true, b = [1, "2"] })]
}
resource "a" "b" {
  image = "vllm/vllm-openai:v1"
  args  = concat(["--model", "org/m"], local.more)
}
"""


def test_a_json_text_in_a_list_of_terraform(tmp_path: Path) -> None:
    options = M | {"hf_overrides": '{"a":true,"b":[1,"2"]}'}
    check(tmp_path, "main.tf", TERRAFORM, options, True)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ci.yml", ACTION.replace("script:", "prompt:")),
        ("a.sh", 'P=$(pgrep -f "vllm serve org/m")'),
        ("a.sh", "V=$(docker run --rm vllm/vllm-openai:v1 --version)"),
        ("a.sh", 'A=$(ps aux | grep "vllm serve org/m")'),
    ],
)
def test_what_only_looks_like_a_server(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(UsageError, match="starts no vLLM"):
        read(tmp_path, name, text)


MANIFEST = """
apiVersion: apps/v1
kind: Deployment
spec:
  template:
    spec:
      containers:
        - name: vllm
          image: vllm/vllm-openai:v0.9.1
          args: ["--model", "org/m", "--enable-lora", "--port", "{port}"]
"""


@pytest.mark.parametrize("quotes", ['"""', "'''"])
def test_a_manifest_in_a_string_of_a_program_or_a_notebook(tmp_path: Path, quotes: str) -> None:
    code = (
        f"port = 1\nmanifest = f{quotes}{MANIFEST}{quotes}\nopen('m.yaml', 'w').write(manifest)\n"
    )
    cells = [{"cell_type": "code", "source": f"{code}!kubectl apply -f m.yaml\\n"}]
    for name, text in (("m.py", code), ("m.ipynb", json.dumps({"cells": cells}))):
        (place,) = read(tmp_path, name, text)
        assert dict(place.options) == LORA | {"port": UNSET} and place.complete


def test_an_image_of_apptainer_that_is_the_default_of_a_variable(tmp_path: Path) -> None:
    text = 'SIF="${SIF:-vllm-openai.sif}"\napptainer run --nv "$SIF" --model org/m\n'
    check(tmp_path, "m.sh", text, M, True)


@pytest.mark.parametrize("python", ["python", "/opt/env/bin/python3.12", "python -u", '"$PYTHON"'])
def test_code_that_looks_for_vllm_starts_no_server(tmp_path: Path, python: str) -> None:
    code = (
        "import importlib.util as u; u.find_spec('vllm.entrypoints.openai.api_server') or exit(1)"
    )
    text = f'if {python} -c "{code}"; then\n  vllm serve org/m\nfi\n'
    check(tmp_path, "m.sh", text, M, True)


def test_containers_in_the_values_of_a_chart_get_options_of_its_template(tmp_path: Path) -> None:
    values = """
decode:
  containers:
    - name: vllm
      image: vllm/vllm-openai:v0.9.1
      modelCommand: vllmServe
      args: ["--model", "org/m"]
"""
    (place,) = read(tmp_path, "values.yaml", values)
    assert dict(place.options) == M and not place.names_all
    (place,) = read(tmp_path, "pod.yaml", f"kind: Pod\nspec:{values.replace('decode:', '')}")
    assert place.names_all
