"""Deployments in command lines, Dockerfiles, compose files, Kubernetes manifests and Helm values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_vllm_regress.answers.deployments.configuration import Deployment, read_deployments
from pytest_vllm_regress.answers.deployments.reader import UNSET
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


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (
            "--tensor-parallel 2",
            {"tensor_parallel_size": "2"},
        ),  # argparse accepts the beginning of a name
        ("--tensor_par=2", {"tensor_parallel_size": "2"}),
        ("--no-enable-prefix", {"no_enable_prefix_caching": True, "enable_prefix_caching": False}),
        (
            "--structured-outputs-c.backend xgrammar",
            {"structured_outputs_config.backend": "xgrammar"},
        ),
        (
            "--enable-lora -dcp 2 -n=3",
            {"enable_lora": True, "decode_context_parallel_size": "2", "nnodes": "3"},
        ),
        ("-O3 --enable-lora", {"optimization_level": "3", "enable_lora": True}),
        ("--help", {"help": True}),
    ],
)
def test_options_may_be_shortened(arguments: str, options: dict[str, Any]) -> None:
    (deployment,) = read_deployments(f"vllm serve M {arguments}")
    assert deployment.options == {"model": "M", **options}
    assert deployment.notes == ()


@pytest.mark.parametrize(
    ("arguments", "note", "open_options"),
    [
        ("--tensor-parallel-sizee 2", "'--tensor-parallel-sizee' is no option of vllm serve that is known; close to it: ", ["tensor_parallel_size"]),
        ("--no-enable-prefix-cachingg", "'--no-enable-prefix-cachingg' is no", ["enable_prefix_caching"]),
        ("--tool-c hermes --tool-call-parserr x", "'--tool-call-parserr' is no", []),  # given as well
        ("--enable-l", "'--enable-l' is no option of vllm serve that is known; close to it: --enable-layerwise-", ["enable_lora"]),
        ("--nothing-like-it", "'--nothing-like-it' is no option of vllm serve that is known", []),
        ("-xyz 2", "'-xyz' is no option of vllm serve that is known", []),
        (f"--{'a' * 10_000}", "'--aaa", []),
        (" ".join(f"--{'a' * n}" for n in range(3, 10)), "'--aaa' is no", []),
    ],
)  # fmt: skip
def test_options_that_no_release_has_are_noted(
    arguments: str, note: str, open_options: list[str]
) -> None:
    (deployment,) = read_deployments(f"vllm serve M {arguments}")
    assert deployment.notes[0].startswith(note)
    assert len(deployment.notes) <= 6
    for option in open_options:
        assert deployment.options[option] == UNSET


RUN = "docker run --rm --gpus all -e VLLM_USE_V1=0 --env=A=$B -e TOKEN --ipc=host -p 80:80 -v /opt/vllm:/x"


@pytest.mark.parametrize(
    "command",
    [
        f"{RUN} vllm/vllm-openai:v0.8.4 --model M -tp 2",
        f"{RUN} vllm/vllm-openai M -tp 2 && docker ps",
        f"sudo {RUN} registry/team/vllm:1 --model M -tp 2".replace(
            "docker run", "docker container run"
        ),
        f"{RUN} team/image vllm serve M -tp 2".replace("docker", "/usr/bin/podman"),
        f"{RUN} --entrypoint vllm vllm/vllm-openai serve M -tp 2",
        f"{RUN} --entrypoint bash vllm/vllm-openai -c 'pip list && exec vllm serve M -tp 2'",
        f"docker pull vllm/vllm-openai && {RUN} \\\n vllm/vllm-openai:v0.8.4 \\\n --model M -tp 2",
    ],
)
def test_docker_run_starts_the_server_of_the_image(tmp_path: Path, command: str) -> None:
    (tmp_path / "start.sh").write_text(f"#!/bin/sh\n{command}\n")
    for text in (command, str(tmp_path / "start.sh")):
        (deployment,) = read_deployments(text)
        assert deployment.options == {"model": "M", "tensor_parallel_size": "2"}
        assert deployment.variables == {"VLLM_USE_V1": "0", "A": UNSET, "TOKEN": UNSET}


@pytest.mark.parametrize("arguments", ["--config more.yaml", "$ARGUMENTS", '"$@"'])
def test_a_configuration_elsewhere_leaves_the_rest_open(arguments: str) -> None:
    (deployment,) = read_deployments(f"vllm serve M {arguments}")
    assert not deployment.complete


@pytest.mark.parametrize("arguments", ["--max-model-len ${LEN:-4096}", '--max-model-len="$LEN"'])
def test_a_variable_as_a_value_leaves_only_this_option_open(arguments: str) -> None:
    (deployment,) = read_deployments(f"vllm serve $MODEL {arguments} -tp 2")
    assert deployment.complete
    assert deployment.options == {
        "model": UNSET,
        "max_model_len": UNSET,
        "tensor_parallel_size": "2",
    }


def test_a_compose_file(tmp_path: Path) -> None:
    deployment = read(tmp_path, "compose.yaml", COMPOSE)
    assert deployment.options == {"model": "M", "tensor_parallel_size": UNSET, "enable_lora": True}
    assert deployment.variables == {"VLLM_USE_V1": "0"}
    assert deployment.release == "0.8.4"


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("docker run vllm/vllm-openai:v0.11.0 --model M", "0.11.0"),
        ("docker run vllm/vllm-openai:v0.9.0.1@sha256:00 --model M", "0.9.0.1"),
        ("docker run vllm/vllm-openai:latest --model M", ""),
        ("docker run team/vllm-fork:v0.11.0 vllm serve M", ""),
        ("vllm serve M", ""),
    ],
)
def test_the_tag_of_the_image_names_the_release(text: str, release: str) -> None:
    assert [deployment.release for deployment in read_deployments(text)] == [release]


def test_a_kubernetes_manifest(tmp_path: Path) -> None:
    deployment = read(tmp_path, "pod.yml", KUBERNETES)
    assert deployment.options == {"model": "M", "pipeline_parallel_size": "2", "port": "80"}
    assert deployment.variables == {"VLLM_USE_V1": "1", "TOKEN": UNSET}
    assert deployment.source.endswith("pod.yml (server)")


def test_helm_values(tmp_path: Path) -> None:
    options = read(tmp_path, "values.yaml", HELM).options
    assert options["tensor_parallel_size"] == 4
    assert options["enable_prefix_caching"] == UNSET  # some templates then add nothing: it is on
    assert options["tool_call_parser"] == "hermes"


def test_a_dockerfile(tmp_path: Path) -> None:
    deployment = read(tmp_path, "Dockerfile", DOCKERFILE)
    assert deployment.options == {
        "model": "M",
        "no_enable_prefix_caching": True,
        "enable_prefix_caching": False,
    }
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
        ("build.sh", "docker build -t vllm/vllm-openai .", "starts no vLLM"),
        ("other.sh", "docker run -v /opt/vllm:/x --name vllm redis --x y", "starts no vLLM"),
        (
            "shell.sh",
            "docker run rocm/vllm bash\ndocker run --entrypoint bash vllm/vllm-openai",
            "starts no vLLM",
        ),
        ("cut.sh", "docker run --name vllm", "starts no vLLM"),
    ],
)
def test_what_starts_no_vllm_is_refused(
    tmp_path: Path, name: str, content: str, words: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UsageError, match=words):
        read_deployments(str(tmp_path / name))


@pytest.mark.parametrize("text", ["nowhere.yaml", "echo hello", ""])
def test_neither_a_file_nor_a_command_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"Give|Allowed are"):
        read_deployments(text)


def test_aliases_that_grow_are_followed_once(tmp_path: Path) -> None:
    lines = ["a0: &a0 {image: vllm/vllm-openai, command: --model M}"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 4)]
    assert read(tmp_path, "growing.yaml", "\n".join(lines)).options == {"model": "M"}
