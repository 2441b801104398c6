"""Deployments in command lines, Dockerfiles, compose files, Kubernetes manifests and Helm values."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_vllm_regress.deployments.configuration import UNSET, Deployment, read_deployments
from pytest_vllm_regress.errors import UsageError

COMPOSE = """
x-env: &env {VLLM_USE_V1: 0}
services:
  cache: {image: "redis:7", command: ["--appendonly", "yes"]}
  model:
    image: docker.io/vllm/vllm-openai:v0.8.4
    command: ["--model", "M", "-tp", "${TP:-2}", "--enable-lora"]
    environment: *env
"""
KUBERNETES = """
kind: Deployment
spec:
  template:
    spec:
      containers:
        - name: server
          image: registry/team/image:1
          command: ["sh", "-c"]
          args: ["pip list && exec vllm serve M --pipeline-parallel-size=2 --port 80 | tee log"]
          env: [{name: VLLM_USE_V1, value: "1"}, {name: TOKEN, valueFrom: {secretKeyRef: {name: a}}}]
"""
HELM = """
servingEngineSpec:
  modelSpec:
    - name: llama
      modelURL: M
      vllmConfig: {tensorParallelSize: 4, enablePrefixCaching: false, extraArgs: ["--tool-call-parser", "hermes"]}
"""
DOCKERFILE = """
FROM vllm/vllm-openai:v0.8.4
ENV VLLM_USE_V1=1 OTHER=2
CMD ["--model", "M", \\
     "--no-enable-prefix-caching"]
"""
SCRIPT = """#!/bin/sh
# vllm serve commented-out
VLLM_USE_V1=0 python -m vllm.entrypoints.openai.api_server --model M \\
    --limit-mm-per-prompt '{"image": 2}'
"""


def read(tmp_path: Path, name: str, content: str) -> Deployment:
    (tmp_path / name).write_text(content)
    (deployment,) = read_deployments(str(tmp_path / name))
    return deployment


def test_a_command_line() -> None:
    (deployment,) = read_deployments(
        "CUDA_VISIBLE_DEVICES=0 /opt/bin/vllm serve M -tp 2 --enable-lora --no-x --port=8000"
    )
    assert deployment.options == {
        "model": "M",
        "tensor_parallel_size": "2",
        "enable_lora": True,
        "port": "8000",
        "no_x": True,
        "x": False,
    }
    assert deployment.variables == {"CUDA_VISIBLE_DEVICES": "0"}
    assert deployment.complete


@pytest.mark.parametrize("arguments", ["--config more.yaml", "$ARGUMENTS", '"$@"'])
def test_a_configuration_elsewhere_leaves_the_rest_open(arguments: str) -> None:
    (deployment,) = read_deployments(f"vllm serve M {arguments}")
    assert not deployment.complete


def test_a_compose_file(tmp_path: Path) -> None:
    deployment = read(tmp_path, "compose.yaml", COMPOSE)
    assert deployment.options == {"model": "M", "tensor_parallel_size": UNSET, "enable_lora": True}
    assert deployment.variables == {"VLLM_USE_V1": "0"}


def test_a_kubernetes_manifest(tmp_path: Path) -> None:
    deployment = read(tmp_path, "pod.yml", KUBERNETES)
    assert deployment.options == {"model": "M", "pipeline_parallel_size": "2", "port": "80"}
    assert deployment.variables == {"VLLM_USE_V1": "1", "TOKEN": UNSET}
    assert deployment.source.endswith("pod.yml (server)")


def test_helm_values(tmp_path: Path) -> None:
    options = read(tmp_path, "values.yaml", HELM).options
    assert (options["tensor_parallel_size"], options["enable_prefix_caching"]) == (4, False)
    assert options["tool_call_parser"] == "hermes"


def test_a_dockerfile(tmp_path: Path) -> None:
    deployment = read(tmp_path, "Dockerfile", DOCKERFILE)
    assert deployment.options == {"model": "M", "no_enable_prefix_caching": True, "enable_prefix_caching": False}
    assert deployment.variables == {"VLLM_USE_V1": "1", "OTHER": "2"}


def test_a_script(tmp_path: Path) -> None:
    deployment = read(tmp_path, "start.sh", SCRIPT)
    assert deployment.options == {"model": "M", "limit_mm_per_prompt": '{"image": 2}'}
    assert deployment.variables == {"VLLM_USE_V1": "0"}


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("chart.yaml", "a: {{ .Values.x }}: b", "helm template"),
        ("empty.yaml", "", "starts no vLLM"),
        ("redis.yaml", "services: {a: {image: redis, command: --x}}", "starts no vLLM"),
        ("deep.yaml", "[" * 100_000, "not valid YAML"),
    ],
)
def test_what_starts_no_vllm_is_refused(tmp_path: Path, name: str, content: str, words: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UsageError, match=words):
        read_deployments(str(tmp_path / name))


@pytest.mark.parametrize("text", ["nowhere.yaml", "echo hello"])
def test_neither_a_file_nor_a_command_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"Give|Allowed are"):
        read_deployments(text)


def test_aliases_that_grow_are_followed_once(tmp_path: Path) -> None:
    lines = ["a0: &a0 {image: vllm/vllm-openai, command: --model M}"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 4)]
    assert read(tmp_path, "growing.yaml", "\n".join(lines)).options == {"model": "M"}
