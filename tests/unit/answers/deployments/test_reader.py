"""The reader of deployment files: servers with their words and lines, names, pins; in any format."""

from __future__ import annotations

import time

import pytest

from pytest_vllm_regress.answers.deployments.reader import (
    MAX_COMMAND,
    Mention,
    Pin,
    ServerCommand,
    Unreadable,
    read,
    split,
)

OPTIONS = "--enable-lora -tp 2"
WORDS = ["m", "--enable-lora", "-tp", "2"]


def servers(text: str, name: str) -> list[ServerCommand]:
    return [finding for finding in read(text, name) if isinstance(finding, ServerCommand)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.sh", f"vllm serve m {OPTIONS} > log 2>&1 &"),
        ("a.sh", f"cat > Dockerfile <<EOF\nFROM python:3.12\nEOF\nvllm serve m {OPTIONS}"),
        ("a.sh", f"ARGS='{OPTIONS}'\n(cd x && vllm serve m $ARGS)"),
        ("a.sh", f"# don't\necho it's fine\npkill -f 'vllm serve'\nexec vllm serve m {OPTIONS} | tee log"),
        ("a.sh", f"IMAGE=vllm/vllm-openai:v0.8.5\ndocker run -p 80:80 ${{IMAGE}} m {OPTIONS}"),
        ("a.sh", f"docker run --new-option vllm/vllm-openai m {OPTIONS}"),
        ("a.sh", f"sh -c \"sh -c 'vllm serve m {OPTIONS}'\""),
        ("a.service", f"[Service]\nExecStart=-/usr/bin/vllm serve m \\\n  {OPTIONS}"),
        ("Dockerfile", f"ARG TAG=v1\nFROM vllm/vllm-openai:${{TAG}}\nCMD m {OPTIONS}"),
        ("a.Dockerfile", 'FROM x\nENTRYPOINT ["vllm", "serve"]\nCMD ["m", "--enable-lora", \\\n "-tp", "2"]'),
        ("compose.yaml", f"services:\n  a:\n    image: vllm/vllm-openai\n    command: m {OPTIONS}"),
        ("compose.yaml", f"entrypoint:\n  /bin/bash -c \"\n  python3 -m vllm.entrypoints.api_server \\\n  m \\\n  {OPTIONS}\""),
        ("pod.yaml", f"containers:\n- command: [sh, -c]\n  args: ['ls && vllm serve m {OPTIONS}']"),
        ("sky.yaml", f"run: |\n  vllm serve m \\\n    {OPTIONS}\n"),
        ("ci.yml", f"script:\n- pip list\n- vllm serve m {OPTIONS}\n"),
        ("values.yaml", "image: {repository: vllm/vllm-openai, tag: v1}\nextraArgs: [m, --enable-lora, -tp, 2]"),
        ("chart.tpl", "{{- if .Values.x }}\ncommand:\n- vllm\n- serve\n- m\n{{- end }}\n- --enable-lora\n- -tp\n- 2\n{{ .Values.y | indent 4 }}"),
        ("task.json", '{"command": ["vllm", "serve",\n "m", "--enable-lora", "-tp", 2]}'),
    ],
)  # fmt: skip
def test_every_format_has_the_words_of_the_server(name: str, text: str) -> None:
    (server,) = servers(text, name)
    assert [str(word) for word in server.words] == WORDS
    assert server.is_certain


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("values.yaml", "engine: VLLM\nargs:\n- --enable-lora"),
        ("catalog.yaml", "backend: vllm\nbackend_parameters: [--enable-lora]"),
        ("compose.yaml", "image: ${REGISTRY:-opea}/vllm-rocm:${TAG}\ncommand: --enable-lora"),
        ("a.sh", "docker run team/vllm-fork --enable-lora"),
    ],
)
def test_the_name_of_a_backend_or_of_another_image_is_no_certain_sign(name: str, text: str) -> None:
    (server,) = servers(text, name)
    assert (server.words, server.is_certain) == (("--enable-lora",), False)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Dockerfile", 'FROM vllm/vllm-openai:v0.26.0\nENTRYPOINT []\nCMD ["/bin/bash"]'),
        ("lws.yaml", "image: vllm/vllm-openai\ncommand: [sh, -c, 'bash /ray_init.sh worker']"),
        ("pod.yaml", "name: vllm\nimage: router\nargs: [--routing-logic, x]"),
        ("a.sh", "docker build -t vllm/vllm-openai --build-arg a=b ."),
        ("a.json", '{"expr": "rate(vllm:x[1m])"}'),
    ],
)
def test_what_starts_no_server(name: str, text: str) -> None:
    assert servers(text, name) == []


def test_a_file_may_start_several_servers_with_their_lines() -> None:
    text = "export VLLM_USE_V1=0\nvllm serve a \\\n  --x\nVLLM_B=1 vllm serve b; vllm serve c\n"
    found = servers(text, "run.sh")
    assert [[(str(word), word.line) for word in server.words] for server in found] == [
        [("a", 2), ("--x", 3)],
        [("b", 4)],
        [("c", 4)],
    ]
    assert [server.variables.get("VLLM_B") for server in found] == [None, "1", None]
    assert all(server.variables["VLLM_USE_V1"] == "0" for server in found)


def test_words_of_yaml_have_the_lines_on_which_they_are() -> None:
    text = "run: |\n  vllm serve m \\\n    --first\nother:\n  command: >-\n    vllm serve m\n    --second\n"
    found = servers(text, "sky.yaml")
    assert [(str(s.words[-1]), s.words[-1].line) for s in found] == [
        ("--first", 3),
        ("--second", 7),
    ]


def test_settings_of_the_chart_are_read_beside_and_in_its_configuration() -> None:
    text = "model: {modelURL: m, enableLoRA: true}\nvllmConfig: {tensorParallelSize: 4, extraArgs: [--x]}"
    (server,) = servers(text, "runtime.yaml")
    assert server.words == ("--x",)
    assert server.settings == {"model": "m", "enable_lora": True, "tensorParallelSize": 4}


def test_a_variable_with_two_values_is_not_replaced_and_growth_is_limited() -> None:
    (server,) = servers("if a; then X=1; else X=2; fi\nvllm serve m -tp $X", "a.sh")
    assert server.words == ("m", "-tp", "$X")
    doubling = "A0=aaaaaaaa\n" + "".join(f"A{n}=$A{n - 1}$A{n - 1}\n" for n in range(1, 40))
    (server,) = servers(f"{doubling}vllm serve $A39", "a.sh")
    assert len(server.words[0]) <= MAX_COMMAND


def test_what_can_be_read_of_a_template_is_read_and_said_to_be_no_yaml() -> None:
    text = "a: {{ .Values.x }}: b\ncommand: vllm serve m\n"
    unreadable, server = (f for f in read(text, "a.yaml") if not isinstance(f, (Mention, Pin)))
    assert isinstance(unreadable, Unreadable)
    assert isinstance(server, ServerCommand) and server.words == ("m",)


def test_names_and_pins_have_their_lines() -> None:
    text = (
        "FROM vllm/vllm-openai:v0.8.5\nENV VLLM_A=1 # VLLM_B\nRUN pip install 'vllm >= 0.8, <0.9'\n"
    )
    findings = [f for f in read(text, "Dockerfile") if not isinstance(f, ServerCommand)]
    assert findings == [
        Pin("==0.8.5", 1),
        Mention("environment", "VLLM_A", 2),
        Pin(">=0.8,<0.9", 3),
    ]


def test_a_step_of_a_build_is_told_apart() -> None:
    build, start = servers("FROM vllm/vllm-openai\nRUN vllm serve --help\n", "Dockerfile")
    assert (build.at_build, start.at_build) == (True, False)


@pytest.mark.parametrize(
    "text", ["'" * 10_000, '"' * 9_999, "{{" * 50_000, "\\" * 9_999, "$(" * 50_000, "`'\"" * 9_999]
)
def test_text_without_sense_is_split_in_little_time(text: str) -> None:
    assert isinstance(split(text), list)


@pytest.mark.parametrize(
    "text",
    [
        "docker run " * 3000,
        "docker run " * 32 + "vllm/vllm-openai",
        "docker run vllm/vllm-openai vllm serve " * 3000,
        "A+=(x)\n" * 3000 + 'vllm serve m "${A[@]}"',
        "if " * 20_000,
        "vllm serve " + "{{" * 50_000,
        "cat <<EOF | kubectl apply -f -\n" + "spec:\n" * 5000 + "kind: [\nEOF\n",
    ],
)
def test_repeated_commands_are_read_in_little_time(text: str) -> None:
    began = time.process_time()
    assert len(servers(text, "a.sh")) <= 1
    assert time.process_time() - began < 5
