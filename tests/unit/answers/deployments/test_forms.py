"""What a deployment says, in every form: the options, whether they are all, and vLLM's version."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pytest_vllm_regress.answers.deployments.configuration import Deployment, read_deployments
from pytest_vllm_regress.answers.deployments.reader import UNSET
from pytest_vllm_regress.errors import UsageError


class Form(NamedTuple):
    """A file, and what is right: some options, whether there may be more, the version."""

    name: str
    text: str
    options: dict[str, Any]
    complete: bool = True
    release: str = ""


SKYPILOT = """
envs: {MODEL: org/m, LEN: "4096"}
resources:
  image_id: docker:vllm/vllm-openai:v0.9.1
setup: |
  pip list
run: |
  vllm serve $MODEL \\
    --max-model-len $LEN --enable-lora
"""
WORKFLOW = """
jobs:
  serve:
    env: {MODEL: org/m}
    steps:
      - run: |
          pip install "vllm==0.9.2"
          nohup vllm serve ${MODEL} --enable-lora > log 2>&1 &
"""
KUBEAI = """
catalog:
  small: {enabled: true, engine: VLLM, url: "hf://org/m", args: [--enable-lora, --max-model-len=8], replicas: 1}
  other: {enabled: true, engine: OLlama, url: "ollama://x", args: [--x]}
"""
GPUSTACK = """
- name: small
  source: huggingface
  huggingface_repo_id: org/m
  backend: vllm
  backend_version: 0.9.1
  backend_parameters: ["--enable-lora", "--max-model-len=8"]
"""
KSERVE = """
apiVersion: serving.kserve.io/v1alpha1
kind: ServingRuntime
spec:
  containers:
    - name: kserve-container
      image: registry/vllm-openai:v0.9.1
      command: [python, -m, vllm.entrypoints.openai.api_server]
      args: ["--model=/mnt/models", "--enable-lora"]
"""
KSERVE_SERVICE = """
kind: InferenceService
spec:
  predictor:
    model:
      modelFormat: {name: vLLM}
      runtime: vllm-runtime
      storageUri: hf://org/m
      args: [--enable-lora, --max-model-len=8]
"""
AIBRIX = """
containers:
  - name: prefill
    image: aibrix/vllm-openai:v0.9.2-cu128-nixl-v0.4.1
    env: [{name: ROLE, value: "1"}]
    command: [sh, -c]
    args:
      - |
        python3 -m vllm.entrypoints.openai.api_server \\
          --model org/m \\
          --enable-lora
"""
LWS = """
leaderWorkerTemplate:
  leaderTemplate:
    spec:
      containers:
        - name: leader
          image: vllm/vllm-openai:v0.9.1
          env: [{name: TP, value: "4"}]
          command: [sh, -c, "ray start --head; vllm serve org/m --enable-lora --tensor-parallel-size $TP"]
  workerTemplate:
    spec:
      containers:
        - {name: worker, image: "vllm/vllm-openai:v0.9.1", command: [sh, -c, "ray start --address=$(LEADER) --block"]}
        - name: more
          image: vllm/vllm-openai:v0.9.1
          command: [sh, -c, "vllm serve org/m --headless --data-parallel-size 4"]
"""
RUNPOD = """
{"name": "t", "imageName": "vllm/vllm-openai:v0.9.1", "dockerArgs": "--model org/m --enable-lora", "ports": "80/http"}
"""
MODAL = """
import os, subprocess, modal
MODEL = "org/m"
PORT = 8000
image = modal.Image.debian_slim().pip_install(
    "vllm==0.9.1",
    "transformers",
)
def serve():
    '''Runs `vllm serve x --wrong`.'''
    cmd = ["vllm", "serve", MODEL, "--port", str(PORT), "--max-model-len", os.environ.get("LEN", "8")]
    cmd += ["--enable-lora"]
    print("vllm serve y", " ".join(cmd))
    subprocess.Popen(" ".join(cmd), shell=True)
"""
MODAL_OPEN = MODAL.replace(
    '    cmd += ["--enable-lora"]',
    '    if x:\n        cmd += ["--quantization", "fp8"]\n    cmd += ["--enable-lora"]',
)
MODAL_TEXT = """
MODEL = "org/m"
def serve():
    subprocess.run(f"vllm serve {MODEL} --enable-lora", shell=True)
"""
MODAL_ARGUMENTS = """
import vllm.entrypoints.openai.api_server as api_server
args = AsyncEngineArgs(model="org/m", enable_lora=True, max_model_len=8)
"""
SLURM = """#!/bin/bash
#SBATCH --gres=gpu:4
module load vllm
MODEL=org/m
ARGS=(--model "$MODEL")
ARGS+=(--enable-lora)
srun python -m vllm.entrypoints.openai.api_server "${ARGS[@]}" &
"""
SLURM_OPEN = SLURM.replace("srun", 'if [ -n "$X" ]; then\n  ARGS+=(--quantization "$X")\nfi\nsrun')
SYSTEMD = """[Service]
Environment=MODEL=org/m "A=b c"
ExecStart=/opt/bin/vllm serve ${MODEL} \\
    --enable-lora
"""
JINJA = """[Service]
ExecStart={{ venv }}/bin/vllm serve {{ model }} --enable-lora{% if key is defined %} --api-key {{ key }}{% endif %}
"""
SUPERVISORD = """[program:vllm]
command=python -m vllm.entrypoints.openai.api_server --model %(ENV_MODEL)s --enable-lora
environment=MODEL=org/m,OTHER="1"
"""
SUPERVISORD_SCRIPT = (
    "[program:a]\ncommand=/opt/start_vllm.sh\nenvironment=VLLM_MODEL=org/m,VLLM_PORT=1\n"
)
QUADLET = "[Container]\nImage=docker.io/vllm/vllm-openai:v0.9.1\nExec=--model org/m --enable-lora\n"
TRUSS = """
base_image: {image: "vllm/vllm-openai:v0.9.1"}
docker_server:
  start_command: sh -c "HF=1 vllm serve org/m --enable-lora --port 80"
"""
LLM_D = """
modelArtifacts: {name: org/m}
decode:
  containers:
    - name: vllm
      image: ghcr.io/llm-d/llm-d:v0.2.0
      modelCommand: vllmServe
      args: ["--enable-lora", "--max-model-len=8"]
"""
LLM_D_SIMULATOR = (
    LLM_D.replace("llm-d:v0.2.0", "llm-d-inference-sim:v1")
    .replace("vllmServe", "imageDefault")
    .replace("--max-model-len=8", "--x")
)
STACK = """
servingEngineSpec:
  modelSpec:
    - name: a
      repository: vllm/vllm-openai
      tag: v0.9.1
      modelURL: org/m
      requestGPU: 1
      vllmConfig: {enableLoRA: true, maxModelLen: 8, extraArgs: ["--trust-remote-code"]}
"""
STACK_OPEN = STACK.replace("requestGPU: 1", "lmcacheConfig: {enabled: true}")
STACK_KEY = STACK.replace("maxModelLen: 8", "newSetting: 8")
CHART = """
model: {id: org/m}
image: {repository: vllm/vllm-openai, tag: v0.9.1}
toolCalling: {enabled: true, parser: hermes}
"""
COMPOSE_SCRIPT = """
services:
  a: {image: "vllm/vllm-openai:v0.9.1", entrypoint: [/usr/local/bin/vllm-entrypoint], command: []}
"""
COMPOSE_DEFAULT = "services:\n  a:\n    image: vllm/vllm-openai:${TAG:-v0.9.1}\n    command: |\n      --model org/m\n      --enable-lora\n"
NOTEBOOK = """
{"cells": [{"cell_type": "markdown", "source": ["vllm serve x"]},
 {"cell_type": "code", "source": ["!pip install vllm==0.9.1\\n", "!vllm serve org/m \\\\\\n", "  --enable-lora"], "outputs": []}]}
"""
CELL = (
    '{"cells": [{"cell_type": "code", "source": "%%bash --bg\\nvllm serve org/m --enable-lora"}]}'
)
ANSIBLE = """
vllm_version: "0.9.1"
vllm_package: vllm
vllm_model: org/m
vllm_install_arguments: "{{ x }}"
vllm_service_arguments: ["--enable-lora", "--host", "{{ vllm_host }}"]
"""
TASK = """
- name: start
  community.docker.docker_container:
    name: vllm
    image: vllm/vllm-openai:v0.9.1
    command: --model org/m --enable-lora
"""
TRUSS_MODEL = """
model_metadata:
  repo_id: org/m
  vllm_config: {enable_lora: true, max_model_len: 8, quantization: null}
requirements:
  - vllm==0.9.1
"""
RAY = """
applications:
  - args:
      llm_configs:
        - model_loading_config: {model_id: a, model_source: org/m}
          engine_kwargs: {enable_lora: true, tensor_parallel_size: 2}
"""
PATCH = """
kind: Kustomization
images:
  - name: vllm/vllm-openai
    newTag: v0.9.1
patches:
  - target: {kind: Deployment}
    patch: |-
      - op: add
        path: /spec/template/spec/containers/0/args/-
        value: --enable-lora
      - op: add
        path: /spec/template/spec/containers/0/args/-
        value: --max-model-len=8
"""
MERGE = """
patches:
  - patch: |
      kind: Deployment
      spec:
        containers:
          - name: a
            image: vllm/vllm-openai:v0.9.1
            args: [--model, org/m, --enable-lora]
"""
HEREDOC = """#!/bin/sh
cat <<END | kubectl apply -f -
kind: Deployment
containers:
  - name: a
    image: vllm/vllm-openai:v0.9.1
    args:
      - --model=org/m
      - --enable-lora
END
kubectl get pods
"""
APPTAINER = """#SBATCH -N 1
apptainer run --nv --bind /a:/b /images/vllm-openai_v0.9.1.sif --model org/m --enable-lora
"""
ROLE = """
vllm_image: vllm/vllm-openai:v0.9.1
vllm_model: org/m
vllm_tensor_parallel_size: 2
vllm_enable_lora: true
"""
MODEL_RESOURCE = """
kind: Model
metadata: {name: a}
spec: {engine: VLLM, url: "hf://org/m", features: [TextGeneration]}
"""
CREATE_POD = """
import runpod
IMAGE = "vllm/vllm-openai:v0.9.1"
runpod.create_pod(name="a", image_name=IMAGE, docker_args=f"--model org/m --enable-lora")
"""
FAST = """
FAST = True
cmd = ["vllm", "serve", "--uvicorn-log-level=info", "org/m", "--port", "80"]
cmd += ["--enforce-eager" if FAST else "--no-enforce-eager"]
"""
NEMO = """
deployment: {type: vllm, image: "vllm/vllm-openai:v0.9.1", hf_model_handle: org/m, tensor_parallel_size: 8}
"""
BROKEN = """apiVersion: apps/v1
    kind: Deployment
    spec:
      containers:
        - name: a
          image: vllm/vllm-openai:v0.9.1
          args: [--model, org/m, --enable-lora]
"""
OVERLAY = """
metadata: {name: vllm}
containers:
  - name: server
    args: ["--model=$(MODEL)", "--tensor-parallel-size=2"]
    env: [{name: MODEL, value: org/m}]
"""
KSERVE_LLM = """
kind: LLMInferenceService
spec:
  model: {uri: "hf://org/m", name: org/m}
  template:
    containers: [{name: main, image: "vllm/vllm-openai-cpu:v0.9.1"}]
"""
PARTS = """
image: {repository: vllm/vllm-openai, tag: v0.9.1}
model: {args: [--max-model-len=8]}
runtime: {command: [vllm, serve], args: [org/m, --enable-lora]}
"""
OTHER_DOCUMENT = "a: [\n---\n" + KSERVE
LORA = {"model": "org/m", "enable_lora": True}
UNIT_IN_SCRIPT = """#!/bin/sh
cat > /etc/systemd/system/vllm.service <<'UNIT'
[Service]
Environment=A=b
ExecStart=/usr/bin/docker run vllm/vllm-openai:v0.9.1 \\
  --model org/m --enable-lora
UNIT
"""
BESIDE_ARGUMENTS = """
image: {repository: vllm/vllm-openai, tag: v0.9.1}
model: {name: org/m, maxModelLen: "8"}
extraArgs: [--enable-lora]
"""
BELOW_A_KEY = """
vllm:
  image: {repository: vllm/vllm-openai, tag: v0.9.1}
  model: org/m
  maxModelLen: 8
  gpuMemoryUtilization: 0.9
"""
STAGES = """FROM vllm/vllm-openai:v0.9.1 AS base
ENTRYPOINT ["vllm", "serve"]
FROM base
CMD ["org/m", "--enable-lora"]
"""
TERRAFORM = """
variable "image" { default = "vllm/vllm-openai:v0.9.1" }
variable "more" { type = list(string) }
locals { common = ["--max-model-len", "8"] }
resource "kubernetes_deployment" "a" {
  spec { template { spec { container {
    name  = "vllm" # not a comment of YAML
    image = var.image
    args  = concat(["--model", "org/m", "--enable-lora"], local.common%s)
    env {
      name  = "VLLM_USE_V1"
      value = "0"
    }
  } } } }
}
"""
USER_DATA = """
resource "aws_instance" "a" {
  user_data = <<-EOF
    docker run --gpus all vllm/vllm-openai:v0.9.1 --model org/m --enable-lora
  EOF
}
"""
TASK_DEFINITION = """
resource "aws_ecs_task_definition" "a" {
  container_definitions = jsonencode([{
    image = "vllm/vllm-openai:v0.9.1", command = ["--model", "org/m", "--enable-lora"]
  }])
}
"""
NOMAD = """
job "llm" {
  task "vllm" {
    config {
      image = "vllm/vllm-openai:v0.9.1"
      args  = ["--model", "org/m", "--enable-lora", "--port", "${NOMAD_PORT_http}"]
    }
  }
}
"""
BUILT = """
services:
  a:
    build: {context: ., args: {BASE: "${IMAGE:-vllm/vllm-openai:v0.9.1}"}}
    command: --model org/m --enable-lora
"""
BUILT_ELSEWHERE = """
services:
  a:
    build: {context: ., dockerfile: docker/vllm/Dockerfile}
    environment: [MODEL_NAME=org/m, GPU_MEMORY_UTILIZATION=0.9]
"""
JINJA_BLOCK = """[Service]
ExecStart=/opt/vllm serve org/m \\
{% if parser %}
    --tool-call-parser {{ parser }} \\
{% endif %}
    --enable-lora
"""
JINJA_COMPOSE = """
services:
  vllm:
    image: {{ vllm_image }}
    volumes:
      - {{ cache }}:/root
    command: >-
      --model org/m
      --max-model-len {{ length }}
"""
HELM_TEMPLATE = """
{{- range .Values.models }}
spec:
  containers:
    - image: "{{ .image | default "x" }}"
      command: [/bin/sh]
      args:
        - -c
        - >-
          vllm serve
          {{- if .local }}
          /models/m
          {{- end }}
          --enable-lora
{{- end }}
"""
OWN_CHART = """
image: {repository: vllm/vllm-openai, tag: v0.9.1, command: [vllm, serve, org/m, --enable-lora]}
"""
OWN_KEYS = """
image: {repository: vllm/vllm-openai, tag: v0.9.1}
model: org/m
maxModelLen: 8
enforceEager: false
"""
CONFIGURATION = """
server: {port: 8000}
vllm: {model: org/m, max_model_len: 8, gpu_memory_utilization: 0.9}
"""
RAY_SERVICE = """
kind: RayService
spec:
  serveConfigV2: |
    applications:
    - args:
        llm_configs:
          - model_loading_config: {model_source: org/m}
            engine_kwargs: {max_model_len: 8, enable_lora: true}
"""
PROGRAM_IN_MAP = """
kind: ConfigMap
data:
  serve.py: |
    from vllm.entrypoints.openai.protocol import Request
    args = AsyncEngineArgs(model="org/m", enable_lora=True)
"""
MORE_ARGUMENTS = """
kind: LLMInferenceService
spec:
  model: {uri: hf://org/m}
  template:
    containers: [{name: main, env: [{name: VLLM_ADDITIONAL_ARGS, value: --enable-lora}]}]
  worker:
    containers: [{name: main, env: [{name: VLLM_ADDITIONAL_ARGS, value: --enable-lora}]}]
"""
KEPT = """
command_of() {
  local cmd="vllm serve org/m --enable-lora"
  cmd="$cmd --port $1"
  echo "$cmd"
}
eval "$(command_of 8000)"
"""
FOLDER = """
HERE="$(cd "$(dirname "$0")" && pwd)"
bash -c "vllm serve $HERE/m --enable-lora"
"""
SPEAKS = """
usage() {
  cat <<EOF
Usage: vllm serve org/other
EOF
}
log_info "would run vllm serve org/other"
vllm serve org/m --enable-lora
"""
MODULE = """
module load vllm/0.9.1
srun vllm serve org/m --enable-lora
"""
SUPERVISED = """[program:vllm]
command=vllm serve org/m
  --enable-lora
"""
COPIED = """FROM cuda
RUN pip install vllm==0.9.1
COPY <<EOF /start.sh
vllm serve org/m --enable-lora
EOF
CMD ["bash", "/start.sh"]
"""
METADATA = """# /// script
# dependencies = ["vllm==0.9.1"]
# ///
run(["vllm", "serve", "org/m", "--enable-lora"])
"""
CONDITIONAL_LIST = """
def other():
    args = []
def start(quantization):
    args = ["vllm", "serve", "org/m", "--enable-lora"]
    if quantization:
        args.extend(["--quantization", quantization])
"""
BUILT_IMAGE = """
services:
  api: {build: ., image: "team/app:api", command: uvicorn app}
  llm:
    image: team/app:vllm-1
    build: {context: .., dockerfile: docker/Dockerfile.vllm}
    ports: ["80:80"]
"""
COMPOSE_ARGUMENTS = """
services:
  a:
    image: ${IMAGE:-vllm/vllm-openai:v0.9.1}
    entrypoint:
      - bash
      - -c
      - |
        MORE=()
        if [ "$$DRAFT" -gt 0 ]; then MORE=(--speculative-config "$$DRAFT"); fi
        if [ "$$FAST" = 1 ]; then
          exec vllm serve "$$@" "$${MORE[@]}"
        else
          exec vllm serve --disable-custom-all-reduce "$$@" "$${MORE[@]}"
        fi
      - --
    command: [--model, org/m, --enable-lora, --served-model-name, a, b]
"""
KSERVE_ALONE = """
kind: InferenceService
spec:
  predictor:
    model: {modelFormat: {name: vLLM}, runtime: mine, storageUri: "oci://registry/m:1"}
"""
KSERVE_PAIR = """
kind: ServingRuntime
spec:
  containers:
    - {name: main, image: "x/vllm:1", command: [python, -m, vllm.entrypoints.openai.api_server], args: [--model=/mnt/models]}
---
kind: InferenceService
spec:
  predictor:
    model: {modelFormat: {name: vLLM}, runtime: mine, storageUri: "oci://registry/m:1", args: [--enable-lora]}
"""
LANGUAGE_MODEL = """
kind: LLMInferenceService
spec:
  model: {uri: "hf://org/m"}
  template: {containers: [{name: main, image: "vllm/vllm-openai:v0.9.1"}]}
"""
MANIFEST_IN_TERRAFORM = """
resource "kubectl_manifest" "a" {
  yaml_body = <<-YAML
    kind: Deployment
    spec:
      containers:
        - name: a
          image: vllm/vllm-openai:v0.9.1
          args: [--model, org/m, --enable-lora]
  YAML
}
"""
HELM_IN_TERRAFORM = """
resource "helm_release" "a" {
  chart = "vllm-stack"
  set = [
    { name = "servingEngineSpec.modelSpec[0].modelURL", value = "org/m" },
    { name = "servingEngineSpec.modelSpec[0].vllmConfig.maxModelLen", value = "8" },
    { name = "servingEngineSpec.modelSpec[0].repository", value = "vllm/vllm-openai" },
  ]
}
"""
ARGO = """
kind: Application
spec:
  source:
    helm:
      parameters:
        - {name: engine.modelSpec.modelURL, value: org/m}
        - {name: engine.modelSpec.vllmConfig.maxModelLen, value: "8"}
"""
UNIT_OF_A_SCRIPT = """[Unit]
Description=Model server (vLLM)
[Service]
ExecStart=/usr/bin/env bash /opt/models/up.sh
"""
BRANCHES = """
cmd="$(find_program)"
if [ "$cmd" = "vllm serve" ]; then
  cmd="$cmd org/m --max-model-len 8"
else
  cmd="$cmd --model org/m --max-model-len 8 --enforce-eager"
fi
eval "$cmd"
"""
KNOWN_BRANCH = """
TOOLS=1
ARGS=(org/m)
if [ "$TOOLS" = 1 ]; then
  ARGS+=(--enable-lora)
fi
vllm serve "${ARGS[@]}"
"""
PRINTED = """FROM cuda
RUN pip install vllm==0.9.1
RUN echo '#!/bin/bash\\n\\
MODEL=org/m\\n\\
vllm serve $MODEL \\\\\\n\\
  --enable-lora\\n\\
' > /start.sh
CMD ["bash", "/start.sh"]
"""
BROKEN_PYTHON = """
image = image.pip_install("vllm==0.9.1")
@function(image=image timeout=1)
def serve():
    pass
def start():
    run(["vllm", "serve", "org/m", "--enable-lora"])
"""
CALLED_VLLM = """
kind: Deployment
spec:
  containers:
    - name: vllm
      image: "{{ .Values.image.repository }}:{{ .Values.image.tag }}"
      args: ["--model", "{{ .Values.model }}", "--enable-lora"]
{{ toYaml .Values.more | indent 6 }}
"""
PYTHON_IN_SCRIPT = """
exec "$PYTHON" - "$CONFIG" <<'PY'
args = ["vllm", "serve", "org/m", "--enable-lora"]
if more:
    args.append("--enforce-eager")
PY
"""
ARRAY_OF_FUNCTION = """
command() {
  local cmd=("vllm" "serve" "org/m" "--enable-lora")
  printf "%s " "${cmd[@]}"
}
start "$(command)"
"""
LIST_SUM = """
if which("vllm"):
    base = ["vllm", "serve"]
else:
    base = ["uv", "run", "vllm", "serve"]
cmd = base + ["org/m", "--enable-lora", "--max-model-len", "8"]
"""
MAKEFILE = """
MODEL = org/m
TAG ?= v0.9.1
IMAGE := vllm/vllm-openai:$(TAG)
ARGS = --max-model-len 8
ARGS += --enable-lora
ifdef FAST
EXTRA = --enforce-eager
else
EXTRA = --no-enable-prefix-caching
endif
.PHONY: up
up: ## Start it.
\t@docker run -e A=$$HOME -v $(shell pwd):/x \\
\t\t$(IMAGE) --model $(MODEL) \\
\t\t$(ARGS)
down:
\tdocker stop x
"""
POWERSHELL = """
<# Starts
   vllm serve #>
param(
    [string]$Model = "org/m",
    [switch]$Debug
)
$VllmArgs = @(
    "--max-model-len", "8"
    "--enable-lora"
)
if ($Debug) {
    $VllmArgs += "--enforce-eager"
} else {
    Write-Host "no"
}
docker exec -it $Id vllm serve $Model `
    $VllmArgs
"""
POWERSHELL_RUN = """
$Image = 'vllm/vllm-openai:v0.9.1'
$env:HF_HOME = "C:/x"
& docker run --gpus all -e "A=$env:A" $Image --model org/m --enable-lora --max-model-len 8
"""
BATCH = """
@echo off
rem vllm serve other
set MODEL=org/m
set "TAG=v0.9.1"
docker run --gpus all ^
  vllm/vllm-openai:%TAG% ^
  --model %MODEL% --enable-lora --max-model-len 8
"""
NIX = """
{ pkgs, ... }:
let
  model = "org/m";
in {
  systemd.services.vllm.serviceConfig.ExecStart = builtins.concatStringsSep " " [
    "${pkgs.vllm}/bin/vllm serve ${model}"
    # the longest
    "--max-model-len" (toString 8)
    "--enable-lora"
  ];
}
"""
NIX_CONTAINER = """
virtualisation.oci-containers.containers.vllm = {
  image = "vllm/vllm-openai:v0.9.1";
  cmd = [ "--model" "org/m" "--max-model-len" "8" "--enable-lora" ];
};
"""
TFTPL = """
apiVersion: v1
kind: Pod
spec:
%{ if debug ~}
  hostNetwork: true
%{ endif ~}
  containers:
    - image: vllm/vllm-openai:v0.9.1
      args: ["--model", "org/m", "--enable-lora", "--max-model-len", "8"]
"""
RUNTIME = """
if command -v podman; then RUNTIME=podman; else RUNTIME=docker; fi
ARGS=(--model org/m --max-model-len 8 --enable-lora)
FLAGS=(--rm -p 8000:8000)
"${RUNTIME}" run "${FLAGS[@]}" "${IMAGE}" "${ARGS[@]}"
"""
AFTER_AND = """
ARGS=(serve org/m --max-model-len 8)
[ -n "$PARSER" ] &&
    ARGS+=(--tool-call-parser "$PARSER")
vllm "${ARGS[@]}" --enable-lora
"""
TWO_ARGS = """
ARG VERSION=v0.9.1
ARG BASE=vllm/vllm-openai:${VERSION}
FROM ${BASE}
ENTRYPOINT ["/usr/bin/tini", "-g", "--", "/app/launch_vllm.sh"]
"""
ENTRYPOINT_AROUND = """
services:
  a:
    image: vllm/vllm-openai:v0.9.1
    entrypoint: [/entry.sh]
    command: [vllm, serve, org/m, --enable-lora, --max-model-len, "8"]
"""
CHOSEN = """
FAST = True
cmd = ["vllm", "serve", "org/m", "--max-model-len", "8"]
cmd += ["--enable-lora"] if FAST else ["--no-enforce-eager"]
"""
KEYWORDS_OF_BEAM = """
from beam.integrations import VLLM, VLLMArgs
app = VLLM(vllm_args=VLLMArgs(model="org/m", enable_lora=True, max_model_len=8))
"""
OLD_RUNTIME = """
kind: VLLMRuntime
spec:
  maxModelLen: 8
  model: {modelURL: org/m, enableLoRA: true}
  image: {registry: docker.io, name: "lmcache/vllm-openai:v0.9.1"}
"""
ONE_TEXT = """
image: {name: vllm/vllm-openai, tag: v0.9.1}
args: ["--model org/m", "--load-format auto"]
"""
FORMS = [
    Form("sky.yaml", SKYPILOT, {**LORA, "max_model_len": "4096"}, release="0.9.1"),
    Form("ci.yml", WORKFLOW, LORA, release="0.9.2"),
    Form("values.yaml", KUBEAI, LORA),
    Form("models.yaml", GPUSTACK, LORA, release="0.9.1"),
    Form("runtime.yaml", KSERVE, {"model": "/mnt/models", "enable_lora": True}, release="0.9.1"),
    Form("service.yaml", KSERVE_SERVICE, LORA, complete=False),
    Form("pd.yaml", AIBRIX, LORA, release="0.9.2"),
    Form("lws.yaml", LWS, {**LORA, "tensor_parallel_size": "4"}, release="0.9.1"),
    Form("template.json", RUNPOD, LORA, release="0.9.1"),
    Form("app.py", MODAL, {**LORA, "port": "8000", "max_model_len": UNSET}, release="0.9.1"),
    Form("app.py", MODAL_OPEN, LORA, complete=False, release="0.9.1"),
    Form("app.py", MODAL_TEXT, LORA),
    Form("app.py", MODAL_ARGUMENTS, {**LORA, "max_model_len": 8}),
    Form("job.slurm", SLURM, LORA),
    Form("job.slurm", SLURM_OPEN, LORA, complete=False),
    Form("vllm.service", SYSTEMD, LORA),
    Form("vllm.service.j2", JINJA, {"model": UNSET, "enable_lora": True}, complete=False),
    Form("vllm.conf", SUPERVISORD, LORA),
    Form("vllm.conf", SUPERVISORD_SCRIPT, {"model": "org/m"}, complete=False),
    Form("vllm.container", QUADLET, LORA, release="0.9.1"),
    Form("config.yaml", TRUSS, {**LORA, "port": "80"}, release="0.9.1"),
    Form("values.yaml", LLM_D, LORA),
    Form("values.yaml", STACK, {**LORA, "max_model_len": 8, "trust_remote_code": True}, release="0.9.1"),
    Form("values.yaml", STACK_OPEN, LORA, complete=False, release="0.9.1"),
    Form("values.yaml", STACK_KEY, LORA, complete=False, release="0.9.1"),
    Form("values.yaml", CHART, {"model": "org/m"}, complete=False, release="0.9.1"),
    Form("compose.yaml", COMPOSE_SCRIPT, {}, complete=False, release="0.9.1"),
    Form("compose.yaml", COMPOSE_DEFAULT, LORA, release="0.9.1"),
    Form("a.ipynb", NOTEBOOK, LORA, release="0.9.1"),
    Form("a.ipynb", CELL, LORA),
    Form("main.yml", ANSIBLE, {**LORA, "host": UNSET}, complete=False, release="0.9.1"),
    Form("tasks.yml", TASK, LORA, release="0.9.1"),
    Form("config.yaml", TRUSS_MODEL, {**LORA, "max_model_len": 8}, release="0.9.1"),
    Form("serve.yaml", RAY, {"enable_lora": True, "tensor_parallel_size": 2}),
    Form("kustomization.yaml", PATCH, {"enable_lora": True, "max_model_len": "8"}, complete=False, release="0.9.1"),
    Form("kustomization.yaml", MERGE, LORA, complete=False, release="0.9.1"),
    Form("apply.sh", HEREDOC, LORA, release="0.9.1"),
    Form("job.sbatch", APPTAINER, LORA, release="0.9.1"),
    Form("main.yml", ROLE, {"model": "org/m"}, complete=False, release="0.9.1"),
    Form("model.yaml", MODEL_RESOURCE, {"model": "org/m"}),
    Form("pod.py", CREATE_POD, LORA, release="0.9.1"),
    Form("app.py", FAST, {"model": "org/m", "enforce_eager": True, "port": "80"}),
    Form("deploy.yaml", NEMO, {}, complete=False, release="0.9.1"),
    Form("broken.yaml", BROKEN, LORA, complete=False, release="0.9.1"),
    Form("patch.yaml", OVERLAY, {"model": "org/m", "tensor_parallel_size": "2"}),
    Form("llm.yaml", KSERVE_LLM, {}, complete=False, release="0.9.1"),
    Form("values.yaml", PARTS, {**LORA, "max_model_len": "8"}, complete=False, release="0.9.1"),
    Form("all.yaml", OTHER_DOCUMENT, {"enable_lora": True}, release="0.9.1"),
    Form("a.sh", 'V="${V:-0.9.1}"\ndocker run "vllm/vllm-openai:v$V" --model org/m --enable-lora', LORA, release="0.9.1"),
    Form("a.sh", "X=1\nif a; then\n  MORE='--api-key x'\nfi\nvllm serve org/m --enable-lora $MORE", LORA, complete=False),
    Form("a.sh", 'vllm serve org/m --enable-lora --max-model-len "${LEN:-8}"', {**LORA, "max_model_len": UNSET}),
    Form("a.sh", "vllm serve --enable-lora org/m", LORA),
    Form("a.sh", "vllm serve org/m --enable-lora $MORE", LORA, complete=False),
    Form("Dockerfile", "FROM cuda\nRUN pip install \\\n  vllm==0.9.1 \\\n  x\nENTRYPOINT [\"vllm\", \"serve\"]", {}, complete=False, release="0.9.1"),
    Form("main.tf", TERRAFORM % "", {**LORA, "max_model_len": "8"}, release="0.9.1"),
    Form("main.tf", TERRAFORM % ", var.more", {**LORA, "max_model_len": "8"}, complete=False, release="0.9.1"),
    Form("main.tf", TERRAFORM % ", var.x ? ['a'] : []".replace("'", '"'), LORA, complete=False, release="0.9.1"),
    Form("main.tf", USER_DATA, LORA, release="0.9.1"),
    Form("ecs.tf", TASK_DEFINITION, LORA, release="0.9.1"),
    Form("a.nomad", NOMAD, {**LORA, "port": UNSET}, release="0.9.1"),
    Form("compose.yaml", BUILT, LORA, release="0.9.1"),
    Form("compose.yaml", BUILT_ELSEWHERE, {"model": None}, complete=False),
    Form("vllm.service.j2", JINJA_BLOCK, LORA, complete=False),
    Form("compose.yml.j2", JINJA_COMPOSE, {"model": "org/m", "max_model_len": UNSET}, complete=False),
    Form("deployment.yaml", HELM_TEMPLATE, {"model": "/models/m", "enable_lora": True}, complete=False),
    Form("values.yaml", OWN_CHART, LORA, release="0.9.1"),
    Form("values.yaml", OWN_KEYS, {"model": "org/m", "max_model_len": 8, "enforce_eager": None}, complete=False, release="0.9.1"),
    Form("serving.yaml", CONFIGURATION, {"model": "org/m", "max_model_len": 8}, complete=False),
    Form("ray.yaml", RAY_SERVICE, {"model": "org/m", "enable_lora": True}),
    Form("map.yaml", PROGRAM_IN_MAP, {"model": "org/m", "enable_lora": True}),
    Form("llm.yaml", MORE_ARGUMENTS, LORA, complete=False),
    Form("a.sh", KEPT, LORA, complete=False),
    Form("a.sh", FOLDER, {"enable_lora": True}),
    Form("a.sh", SPEAKS, LORA),
    Form("a.sh", MODULE, LORA, release="0.9.1"),
    Form("a.sh", "srun --container-image=vllm/vllm-openai:v0.9.1 vllm serve org/m --enable-lora", LORA, release="0.9.1"),
    Form("a.ps1", "docker run vllm/vllm-openai:v0.9.1 `\n  --model org/m `\n  --enable-lora", LORA, release="0.9.1"),
    Form("pod.yaml", "command: [sh, -c, 'vllm serve \"$@\"', --]\nargs: [org/m, --enable-lora]", LORA),
    Form("vllm.conf", SUPERVISED, LORA),
    Form("Dockerfile", COPIED, LORA, release="0.9.1"),
    Form("Dockerfile", 'FROM vllm/vllm-openai:v0.9.1\nENTRYPOINT ["/usr/bin/serve"]', {}, complete=False, release="0.9.1"),
    Form("Dockerfile", 'FROM cuda\nCMD ["sh", "-c", "vllm serve org/m \\\n --enable-lora"]', LORA),
    Form("a.py", METADATA, LORA, release="0.9.1"),
    Form("a.py", "cmd = 'vllm serve org/m --enable-lora'\nif x:\n    cmd += ' --port 1'\nrun(cmd)", LORA, complete=False),
    Form("a.py", "cmd = ['vllm', 'serve', 'org/m']\ncmd = cmd + ['--enable-lora']\nif x:\n    cmd = [*cmd, '--port', '1']", LORA, complete=False),
    Form("pod.yaml", "{{- if .Values.on }}\r\nargs:\r\n- --model=org/m\r\n- --max-model-len=8\r\n{{- end }}\r\n", {"model": "org/m"}, complete=False),
    Form("user_data.sh", UNIT_IN_SCRIPT, LORA, release="0.9.1"),
    Form("values.yaml", BESIDE_ARGUMENTS, {"enable_lora": True, "max_model_len": "8"}, complete=False, release="0.9.1"),
    Form("values.yaml", "model: org/m\nmaxModelLen: 8\ngpuMemoryUtilization: 0.9", {"model": "org/m", "max_model_len": 8}, complete=False),
    Form("values.yaml", BELOW_A_KEY, {"model": "org/m"}, complete=False, release="0.9.1"),
    Form("Dockerfile", STAGES, LORA, release="0.9.1"),
    Form("a.sh", "RUN='vllm serve org/m --enable-lora'\nif x; then RUN+=' --port 1'; fi\n$RUN", LORA, complete=False),
    Form("a.py", CONDITIONAL_LIST, LORA, complete=False),
    Form("a.py", "V = getenv('V', '0.9.1')\npip(f'vllm=={V}')\nrun(['vllm', 'serve', 'org/m', '--enable-lora'])", LORA, release="0.9.1"),
    Form("compose.yaml", BUILT_IMAGE, {}, complete=False),
    Form("compose.yaml", COMPOSE_ARGUMENTS, {**LORA, "served_model_name": "a b", "disable_custom_all_reduce": None}, complete=False, release="0.9.1"),
    Form("service.yaml", KSERVE_ALONE, {"model": None}, complete=False),
    Form("service.yaml", KSERVE_PAIR, {"model": "/mnt/models", "enable_lora": True}),
    Form("llm.yaml", LANGUAGE_MODEL, {"model": "org/m"}, complete=False, release="0.9.1"),
    Form("main.tf", MANIFEST_IN_TERRAFORM, LORA, release="0.9.1"),
    Form("main.tf", HELM_IN_TERRAFORM, {"model": "org/m", "max_model_len": "8"}, complete=False),
    Form("app.yaml", ARGO, {"model": "org/m", "max_model_len": "8"}, complete=False),
    Form("vllm.service", UNIT_OF_A_SCRIPT, {}, complete=False),
    Form("vllm.service", "[Service]\nExecStart=/usr/bin/python3 /opt/launch_vllm_server.py --config a", {}, complete=False),
    Form("a.sh", BRANCHES, {"model": "org/m", "max_model_len": "8", "enforce_eager": None}, complete=False),
    Form("a.sh", KNOWN_BRANCH, LORA),
    Form("a.sh", "$BIN serve org/m --enable-lora --max-model-len 8", {**LORA, "max_model_len": "8"}),
    Form("a.sh", "vllm serve --port 80 org/m --enable-lora", LORA),
    Form("a.sh", "vllm serve ${MORE:---enable-lora} org/m", {"enable_lora": UNSET}, complete=False),
    Form("a.sh", "docker run team/vllm-avx2:1 org/m --enable-lora", LORA),
    Form("Dockerfile", 'FROM cuda\nRUN pip install vllm\nENTRYPOINT ["bash", "/vllm_entrypoint.sh"]', {}, complete=False),
    Form("Dockerfile", 'FROM cuda\nENTRYPOINT ["vllm", "serve", "--port", "80"]', {"port": "80"}, complete=False),
    Form("Dockerfile", PRINTED, LORA, release="0.9.1"),
    Form("a.py", BROKEN_PYTHON, LORA, release="0.9.1"),
    Form("deployment.yaml", CALLED_VLLM, {"model": UNSET, "enable_lora": True}, complete=False),
    Form("sky.yaml", "run: |\n  pip install vllm==0.9.1+gptoss\n  vllm serve org/m --enable-lora", LORA, release="0.9.1"),
    Form("a.sh", PYTHON_IN_SCRIPT, LORA, complete=False),
    Form("a.sh", ARRAY_OF_FUNCTION, LORA, complete=False),
    Form("a.py", LIST_SUM, LORA),
    Form("Dockerfile", 'FROM vllm/vllm-openai:v0.9.1\nENTRYPOINT ["python3", "/src/main.py"]', {}, complete=False, release="0.9.1"),
    Form("Dockerfile", 'FROM vllm/vllm-openai:v0.9.1\nENTRYPOINT ["python3", "-m", "team.launcher"]', {}, complete=False, release="0.9.1"),
    Form("Makefile", MAKEFILE, LORA, release="0.9.1"),
    Form("run.ps1", POWERSHELL, LORA, complete=False),
    Form("run.ps1", POWERSHELL_RUN, LORA, release="0.9.1"),
    Form("run.bat", BATCH, LORA, release="0.9.1"),
    Form("vllm.nix", NIX, LORA),
    Form("vllm.nix", NIX_CONTAINER, LORA, release="0.9.1"),
    Form("vllm.tftpl", TFTPL, LORA, release="0.9.1"),
    Form("run.sh", RUNTIME, LORA),
    Form("run.sh", AFTER_AND, LORA, complete=False),
    Form("Dockerfile", TWO_ARGS, {}, complete=False, release="0.9.1"),
    Form("compose.yaml", ENTRYPOINT_AROUND, LORA, complete=False, release="0.9.1"),
    Form("a.py", CHOSEN, LORA),
    Form("a.py", KEYWORDS_OF_BEAM, LORA),
    Form("runtime.yaml", OLD_RUNTIME, LORA, complete=False),
    Form("values.yaml", ONE_TEXT, {"model": "org/m", "load_format": "auto"}, release="0.9.1"),
]  # fmt: skip


def read(tmp_path: Path, name: str, text: str) -> Deployment:
    (tmp_path / name).write_text(text)
    (deployment,) = read_deployments(str(tmp_path / name))
    return deployment


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_every_form_has_its_options_and_its_version(tmp_path: Path, form: Form) -> None:
    deployment = read(tmp_path, form.name, form.text)
    assert {name: deployment.options.get(name) for name in form.options} == form.options
    assert (deployment.complete, deployment.release) == (form.complete, form.release)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("values.yaml", LLM_D_SIMULATOR),
        ("a.py", "from vllm import LLM\nLLM('org/m', enable_lora=True)"),
        ("ci.yml", "jobs: {a: {steps: [{name: Dump vllm serve flags, run: ls}]}}"),
        ("a.py", "p.add_argument('--x', help='options of vllm serve are taken')"),
        ("build.yaml", "services: {a: {build: {context: vllm}, image: 'opea/vllm:latest'}}"),
        ("Dockerfile", "FROM rocm/vllm-dev:1\nRUN pip list\n"),
        ("a.sh", "echo 'start with: vllm serve org/m'"),
        ("a.sh", "if pgrep -f 'vllm serve m'; then exit; fi"),
        ("kserve.yaml", "image: kserve/huggingfaceserver\nargs: [--backend=huggingface, --max-model-len=8]"),
        ("pod.yaml", "containers:\n- {name: a, image: vllm/vllm-openai, command: [sh, -c, sleep infinity]}"),
        ("values.yaml", "image: x/text-embeddings-inference:1\nargs: [--dtype=float32, --model-id=org/m]\nnext: vllm"),
        ("pod.yaml", "image: nvcr.io/vllm-runtime:1\ncommand: [python3, -m, planner]\nargs: [--backend=vllm]"),
        ("compose.yaml", "services: {a: {build: vllm, environment: [VLLM_MODEL=m, 'VLLM_BASE_URL=http://x']}}"),
        ("main.tf", 'resource "a" "vllm" { image = "app:1" }'),
        ("compose.yaml", "services: {a: {image: 'team/rag-vllm:1', environment: [MODEL=m], ports: [1]}}"),
        ("compose.yaml", "services: {a: {build: {context: ., dockerfile: Dockerfile.vllm}, container_name: vllm-client, ports: [1]}}"),
        ("ci.yml", "jobs: {a: {steps: [{uses: push, with: {image: team-vllm}}]}}"),
        ("ci.yml", "jobs: {a: {strategy: {matrix: {include: [{image: vllm}]}}, steps: [{run: ls}]}}"),
        ("values.yaml", "image: {repository: nvcr.io/nvidia/tritonserver, tag: 24.06-vllm-python-py3}"),
        ("Dockerfile", 'FROM vllm/vllm-openai\nENTRYPOINT ["python3", "bench.py"]'),
        ("engines.yaml", "- {name: vllm-like, engine: sglang, args: [--trust-remote-code, --max-num-seqs=8]}"),
        ("bench.yaml", "kind: vllm-bench\nvllmArgs: {model: org/m, num-prompts: 9, max_model_len: 8}"),
        ("jobs.yaml", "job: {args: [--pdf-dir=a, --pages=1, --out=b, --max-num-seqs=64], backend: vllm}"),
        ("bench.yaml", "runs: [{engine: vllm, args: [--num-prompts, '9', --max-model-len, '8']}]"),
        ("vllm.service", "[Unit]\nDescription=vLLM proxy\n[Service]\nExecStart=/opt/up.sh"),
        ("a.sh", '$PYTHON bench.py --max-model-len 8 # vllm'),
    ],
)  # fmt: skip
def test_what_only_looks_like_a_server(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match="starts no vLLM"):
        read_deployments(str(tmp_path / name))


@pytest.mark.parametrize(
    ("image", "release"),
    [
        ("vllm/vllm-openai:v0.9.1", "0.9.1"),
        ("vllm/vllm-openai-cpu:v0.22.0", "0.22.0"),
        ("public.ecr.aws/q9t5s3a7/vllm-cpu-release-repo:v0.9.1", "0.9.1"),
        ("registry:5000/mirror/vllm-openai:v0.9.1-cu130", "0.9.1"),
        ("rocm/vllm:rocm6.4.1_vllm_0.10.0_20250812", "0.10.0"),
        ("763104351884.dkr.ecr.us-west-2.amazonaws.com/vllm:0.9.0-gpu-py312", "0.9.0"),
        ("aibrix/vllm-openai:v0.7.3.self.post1", "0.7.3"),
        ("vllm/vllm-openai:nightly-a1b2", ""),
        ("nvcr.io/nvidia/vllm:25.11-py3", ""),
        ("lmcache/vllm-openai:v0.3.7", ""),
        ("team/vllm-dev-pplx:0.1.0", ""),
    ],
)
def test_the_tag_is_the_version_where_the_image_is_vllms(image: str, release: str) -> None:
    (deployment,) = read_deployments(f"docker run {image} --model org/m")
    assert deployment.release == release
    assert deployment.distribution == ("vllm-cpu" if "-cpu" in image else "vllm")


def test_branches_with_different_models_are_two_servers(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text(
        "if big; then\n  vllm serve org/a --port 1 --dtype half\n"
        "else\n  vllm serve org/b --port 1 --dtype half\nfi\n"
    )
    found = read_deployments(str(tmp_path / "a.sh"))
    assert [place.options["model"] for place in found] == ["org/a", "org/b"]
    (tmp_path / "a.sh").write_text(
        "if big; then\n  vllm serve org/a --port 1 --dtype half\n"
        "else\n  vllm serve org/a --port 1 --dtype auto\nfi\n"
    )
    (place,) = read_deployments(str(tmp_path / "a.sh"))
    assert (place.options, place.complete) == ({"model": "org/a", "port": "1"}, False)


def test_two_versions_in_a_file_are_none(tmp_path: Path) -> None:
    text = "pip install vllm==0.9.1\npip install vllm==0.9.2\nvllm serve org/m"
    assert read(tmp_path, "a.sh", text).release == ""


def test_one_bad_document_is_noted_and_the_others_are_read(tmp_path: Path) -> None:
    deployment = read(tmp_path, "all.yaml", OTHER_DOCUMENT)
    assert "not valid and was left out" in deployment.notes[0]
