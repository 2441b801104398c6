"""Servers whose command is in another file, or whose image is left to a variable: what is known of
them is said, and that there may be more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_vllm_regress.answers.deployments.configuration import Deployment, read_deployments
from pytest_vllm_regress.answers.deployments.reader import UNSET
from pytest_vllm_regress.errors import UsageError

MODEL = {"model": "org/m"}
LORA = MODEL | {"enable_lora": True}


def read(tmp_path: Path, name: str, text: str) -> tuple[Deployment, ...]:
    (tmp_path / name).write_text(text)
    return read_deployments(str(tmp_path / name))


ALTERNATIVES = """
if [ "$MODE" = a ]; then
  VLLM_ARGS="--model org/a"
else
  exit 1
fi
docker run $VLLM_IMAGE $VLLM_ARGS
"""
TEMPLATE_TASK = """
- name: Install the unit
  ansible.builtin.template: {src: vllm.service.j2, dest: /etc/systemd/system/vllm.service}
- service: {name: vllm, state: started}
"""
COMPOSE_TASK = """
- template: {src: compose.yml.j2, dest: /opt/vllm/compose.yml}
- community.docker.docker_compose_v2: {project_src: /opt/vllm}
"""
CONTAINER_TASK = """
- community.docker.docker_container:
    name: vllm-server
    image: "{{ llm_image }}"
    command: "{{ llm_command }}"
"""
RAY = """
kind: RayService
spec:
  serveConfigV2: |
    applications:
      - name: llm
        import_path: app:model
        runtime_env:
          pip: ["vllm==0.9.1"]
          env_vars: {MODEL_ID: org/m}
"""
SERVICE = """
jobs:
  test:
    services:
      vllm: {image: "${{ env.VLLM_IMAGE }}", ports: ["8000:8000"]}
    steps: [{run: pytest}]
"""
LAUNCHER = """
services:
  llm:
    image: team/serving-${BACKEND:-vllm}-server:1
    command: ocr llm_server --port 1 --backend ${BACKEND:-vllm}
"""
PARSER = """
from vllm.entrypoints.openai.cli_args import make_arg_parser
args = make_arg_parser(Parser()).parse_args()
args.model = "org/m"
"""
FROM_ARGUMENTS = """
import vllm.entrypoints.openai.api_server
engine = Client(AsyncEngineArgs.from_cli_args(args))
"""


@pytest.mark.parametrize(
    ("name", "text", "options", "release"),
    [
        ("job.sbatch", 'srun --container-image="$VLLM_IMAGE" bash scripts/launch_vllm.sh', {}, ""),
        ("a.sh", "MODEL=org/m nohup ./start_vllm_server.sh 8000 > log &", MODEL, ""),
        ("a.sh", "for i in 1 2; do bash serve_vllm.sh; done; bash serve_vllm.sh", {}, ""),
        ("a.sh", "sbatch -p gpu run_vllm.sh", {}, ""),
        ("Makefile", "serve:\n\tuv run python -u tools/serve_vllm.py --config x\n", {}, ""),
        ("ci.yml", "jobs: {a: {steps: [{run: ./scripts/start-vllm.sh}, {run: pytest}]}}", {}, ""),
        ("pod.yaml", "image: team/app:1\ncommand: [bash, /app/start_vllm.sh]", {}, ""),
        ("a.sh", ALTERNATIVES, {}, ""),
        ("a.sh", 'docker run --name vllm "$IMAGE" $ARGS', {}, ""),
        ("ci.yml", SERVICE, {}, ""),
        ("tasks.yml", TEMPLATE_TASK, {}, ""),
        ("tasks.yml", COMPOSE_TASK, {}, ""),
        ("tasks.yml", CONTAINER_TASK, {}, ""),
        ("ray.yaml", RAY, MODEL, "0.9.1"),
        ("a.sh", "team serve --model org/m --backend vllm --port 1", {}, ""),
        ("a.sh", "CUDA_VISIBLE_DEVICES=0 team deploy --infer_backend=vllm", {}, ""),
        ("compose.yaml", LAUNCHER, {}, ""),
        ("a.py", PARSER, {}, ""),
        ("a.py", FROM_ARGUMENTS, {}, ""),
        ("serve.yaml", "applications: [{name: a, import_path: 'app.vllm_serve:build'}]", {}, ""),
    ],
)
def test_what_is_elsewhere_is_one_server_that_may_have_more_options(
    tmp_path: Path, name: str, text: str, options: dict[str, Any], release: str
) -> None:
    (place,) = read(tmp_path, name, text)
    assert (dict(place.options), place.complete, place.release) == (options, False, release)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.sh", "chmod +x start_vllm.sh\ncp start_vllm.sh /opt\necho 'then: ./start_vllm.sh'"),
        ("a.sh", "bash install_vllm.sh; ./test_vllm_serve.sh; bash stop_vllm_server.sh"),
        ("a.sh", "python run_vllm.py --out x"),
        ("a.sh", "vllm bench serve --backend vllm"),
        ("a.sh", "echo team serve --backend vllm"),
        ("a.sh", "team infer --backend vllm; team train api --backend vllm"),
        ("ci.yml", "on: {push: {paths: [scripts/start-vllm.sh]}}"),
        ("tasks.yml", "- template: {src: vllm-router.service.j2, dest: /etc/vllm-router.service}"),
        ("tasks.yml", "- systemd: {name: vllm, state: stopped}"),
        (
            "job.yaml",
            "kind: RayJob\nspec: {entrypoint: python a.py, runtime: {pip: [vllm==0.9.1]}}",
        ),
        (
            "pod.yaml",
            "name: vllm\nimage: '{{ image }}'\nargs: [--ctx-size, '8', --n-gpu-layers, '9']",
        ),
        ("a.sh", "kubectl run a --image=vllm/vllm-router:1 -- --routing-logic x"),
    ],
)
def test_a_file_that_is_named_or_written_is_no_server(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(UsageError, match="starts no vLLM"):
        read(tmp_path, name, text)


def test_a_script_counts_only_where_the_file_starts_no_server_itself(tmp_path: Path) -> None:
    (place,) = read(tmp_path, "a.sh", "bash start_vllm.sh\nvllm serve org/m")
    assert dict(place.options) == MODEL


SCRIPT_IN_MAP = """
kind: ConfigMap
data:
  run.sh: |
    exec vllm serve org/m --enable-lora
---
kind: Pod
spec: {containers: [{image: "vllm/vllm-openai:v0.9.1", command: [bash, /x/start.sh]}]}
"""
UNIT_IN_TASK = """
- copy:
    dest: /etc/systemd/system/vllm.service
    content: |
      [Service]
      ExecStart=/opt/bin/vllm serve org/m --enable-lora
"""
OPERATOR = """
kind: Model
metadata: {name: a}
spec: {source: "hf://org/m@0123"}
---
kind: InferenceService
spec:
  modelRef: a
  vllmConfig: {maxModelLen: 8}
  extraArgs: [--enable-lora]
"""
CHART = """
image: {repository: vllm/vllm-openai, tag: v0.9.1}
configuration: {modelReference: org/m}
extraArgs: [--enable-lora]
"""
RENDER = """
image: {url: "vllm/vllm-openai:v0.9.1"}
dockerCommand: --model org/m --enable-lora
"""
DSTACK = """
image: vllm/vllm-openai:v0.9.1
commands: [vllm serve org/m --enable-lora]
"""
MAPPING = "spec: {engine: vllm, model: org/m, args: {enable-lora: true}}"
RUNPOD = '{"imageName": "vllm/vllm-openai:v0.9.1", "dockerStartCmd": ["--model", "org/m", "--enable-lora"]}'
PM2 = '{"apps": [{"name": "llm", "script": "vllm", "args": "serve org/m --enable-lora"}]}'
CONTAINER = "[Container]\nImage={{ vllm_image }}\nExec=--model org/m --enable-lora"
ECOSYSTEM = """
module.exports = {apps: [  // vllm serve other
  {name: 'llm', script: 'vllm', args: 'serve org/m --enable-lora', interpreter: 'none'},
]};
"""
CONTAINER_IN_CODE = """
new Container("vllm", {
  image: registry.image("vllm/vllm-openai:v0.9.1"),
  command: ["--model", "org/m", "--enable-lora"],
});
console.error("start: vllm serve other");
"""
PROPERTY_LIST = """
<key>ProgramArguments</key>
<array><string>/opt/vllm</string><string>serve</string><string>org/m</string>
<string>--enable-lora</string></array>
"""
OPTION_IF_SET = (
    'docker run ${TOKEN:+-e "T=$TOKEN"} vllm/vllm-openai:v0.9.1 --model org/m --enable-lora'
)


@pytest.mark.parametrize(
    ("name", "text", "release"),
    [
        ("a.yaml", SCRIPT_IN_MAP, "0.9.1"),
        ("tasks.yml", UNIT_IN_TASK, ""),
        ("model.yaml", OPERATOR, ""),
        ("values.yaml", CHART, "0.9.1"),
        ("render.yaml", RENDER, "0.9.1"),
        ("a.dstack.yml", DSTACK, "0.9.1"),
        ("model.yaml", MAPPING, ""),
        ("runpod.json", RUNPOD, "0.9.1"),
        ("pm2.json", PM2, ""),
        ("vllm.container.j2", CONTAINER, ""),
        ("ecosystem.config.js", ECOSYSTEM, ""),
        ("stack.ts", CONTAINER_IN_CODE, "0.9.1"),
        ("main.rs", 'Command::new("vllm").args(["serve", "org/m", "--enable-lora"]);', ""),
        ("a.plist", PROPERTY_LIST, ""),
        ("a.toml", 'entrypoint = ["vllm", "serve", "org/m", "--enable-lora"]', ""),
        ("a.sh", OPTION_IF_SET, "0.9.1"),
        ("a.sh", "uvx vllm@0.9.1 serve org/m --enable-lora", "0.9.1"),
        ("a.sh", "uvx --from 'vllm==0.9.1' vllm serve org/m --enable-lora", "0.9.1"),
        ("a.sh", "python vllm/entrypoints/openai/api_server.py --model org/m --enable-lora", ""),
        ("a.sh", "screen -S a -X stuff 'vllm serve org/m --enable-lora\\n'", ""),
        ("a.sh", "kubectl run a --image=vllm/vllm-openai:v0.9.1 -- --model org/m --enable-lora", "0.9.1"),
        ("a.sh", "gcloud run deploy a --image vllm/vllm-openai:v0.9.1 --args=--model=org/m,--enable-lora", "0.9.1"),
        ("a.service", "[Service]\nExecStart={{ runtime }} run vllm/vllm-openai:v0.9.1 --model org/m --enable-lora", "0.9.1"),
        ("Makefile", "serve:\n\tvllm serve org/m \\\n\t\t--enable-lora \\", ""),
    ],
)  # fmt: skip
def test_other_places_of_the_command(tmp_path: Path, name: str, text: str, release: str) -> None:
    (place,) = read(tmp_path, name, text)
    assert {key: place.options.get(key) for key in LORA} == LORA
    assert place.release == release


def test_an_option_that_a_variable_adds_is_open(tmp_path: Path) -> None:
    (place,) = read(tmp_path, "a.sh", 'vllm serve ${Q:+--quantization "$Q"} org/m')
    assert (dict(place.options), place.complete) == (MODEL | {"quantization": UNSET}, False)


def test_what_is_between_the_words_in_source_may_add_options(tmp_path: Path) -> None:
    text = 'cmd := exec.Command("vllm", "serve", "org/m", more...)\ncmd.Run()\n'
    (place,) = read(tmp_path, "main.go", text)
    assert (dict(place.options), place.complete) == (MODEL, False)


CHANGED = {
    "sys.argv": 'sys.argv = ["vllm.entrypoints.openai.api_server", "--model", "org/m"]\nif x.lora:\n    sys.argv.append("--lora")\n',
    "an attribute": 'class A:\n    def f(self):\n        self.c = ["vllm", "serve", "org/m"]\n    def g(self):\n        self.c += [*self.more]\n',
    "a parameter": 'def more(c, x):\n    c.extend(x.options)\nc = ["vllm", "serve", "org/m"]\nmore(c, x)\n',
    "a result": 'def make():\n    c = ["vllm", "serve", "org/m"]\n    return c\ndef run(x):\n    c = make()\n    c += x.options\n',
    "engine arguments": 'import vllm.entrypoints\nargs = AsyncEngineArgs(model="org/m")\nargs.enforce_eager = True\n',
}


@pytest.mark.parametrize("name", CHANGED)
def test_what_is_changed_elsewhere_in_a_program_is_open(tmp_path: Path, name: str) -> None:
    (place,) = read(tmp_path, "a.py", CHANGED[name])
    assert (dict(place.options), place.complete) == (MODEL, False)


def test_the_arguments_in_a_chart_and_its_image_are_one_server(tmp_path: Path) -> None:
    text = "model: {name: org/m, args: [--dtype half, --enable-lora]}\nimage: {repository: vllm/vllm-openai, tag: v0.9.1}"
    (place,) = read(tmp_path, "values.yaml", text)
    assert dict(place.options) == LORA | {"dtype": "half"}
    assert (place.complete, place.release) == (False, "0.9.1")


def test_two_ways_to_start_a_server_are_two(tmp_path: Path) -> None:
    text = (
        "if x; then exec docker run vllm/vllm-openai --model org/m\nelse exec vllm serve org/m\nfi"
    )
    assert [dict(place.options) for place in read(tmp_path, "a.sh", text)] == [MODEL, MODEL]
