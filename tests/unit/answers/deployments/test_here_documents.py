"""Here-documents: those that become a command, and manifests that belong together."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_vllm_regress.answers.deployments.configuration import Deployment, read_deployments

POD = """cat > pod.yaml <<EOF
kind: Pod
spec:
  containers:
  - image: vllm/vllm-openai:v1
    args: [--model, org/m]
EOF
"""
HELD = """{start} <<{quoted}
set -e
docker run -d \\{more}
  vllm/vllm-openai:v1 \\{more}
  --model org/m "--port" 80
EOF
{end}
ssh host "$CMD"
"""
RUNTIME = """kubectl apply -f - <<EOF
kind: ServingRuntime
metadata: {{name: {name}}}
spec: {{containers: [{{image: "vllm/vllm-openai:v1", args: [--model, org/{name}]}}]}}
EOF
"""
SERVICE = """kubectl apply -f - <<EOF
kind: InferenceService
spec: {{predictor: {{model: {{modelFormat: {{name: vLLM}}, runtime: {name}, args: [{words}]}}}}}}
EOF
"""


def read(tmp_path: Path, text: str) -> tuple[Deployment, ...]:
    (tmp_path / "a.sh").write_text(text)
    return read_deployments(str(tmp_path / "a.sh"))


@pytest.mark.parametrize(
    ("start", "quoted", "more", "end"),
    [
        ("CMD=$(cat", "EOF", "\\", ")"),
        ("CMD=$(cat", "'EOF'", "", ")"),
        ('CMD="$(cat', "'EOF'", "", ')"'),
        ("read -r -d '' CMD", "'EOF'", "", "true"),
    ],
)
def test_a_text_that_is_run_is_a_script(
    tmp_path: Path, start: str, quoted: str, more: str, end: str
) -> None:
    (place,) = read(tmp_path, HELD.format(start=start, quoted=quoted, more=more, end=end))
    assert dict(place.options) == {"model": "org/m", "port": "80"}
    assert place.complete


@pytest.mark.parametrize(
    ("command", "complete"),
    [
        ("kubectl apply -f pod.yaml", True),
        ('sed -i "s/a/$X/" other.conf', True),
        ("echo done >> out.log", True),
        ('sed -i "s/m]/m, $X]/" dir/pod.yaml && kubectl apply -f dir/pod.yaml', False),
        ('yq -i "$X" pod.yaml', False),
        ('echo "$X" >> pod.yaml', False),
        ("tee -a pod.yaml < more", False),
        ('kubectl patch pod a -p "$P"', False),
        ('oc set env pod/a X="$P"', False),
        ("envsubst < pod.yaml | kubectl apply -f -", False),
        ("kubectl apply -k .", False),
    ],
)
def test_what_is_changed_afterwards_may_have_more_options(
    tmp_path: Path, command: str, complete: bool
) -> None:
    (place,) = read(tmp_path, f"{POD}{command}\n")
    assert (dict(place.options), place.complete) == ({"model": "org/m"}, complete)


def test_a_line_that_a_variable_makes_may_have_more_options(tmp_path: Path) -> None:
    (place,) = read(tmp_path, POD.replace("EOF\n", "$MORE\nEOF\n", 2).replace("<<$MORE\n", "<<"))
    assert not place.complete


def test_a_runtime_and_its_services_are_one_server_for_each(tmp_path: Path) -> None:
    text = RUNTIME.format(name="a") + SERVICE.format(name="a", words="--enable-lora")
    (place,) = read(tmp_path, text)
    assert dict(place.options) == {"model": "org/a", "enable_lora": True}
    text += SERVICE.format(name="a", words="--port=80")
    assert [place.options.get("port") for place in read(tmp_path, text)] == [None, "80"]


def test_a_service_of_one_of_several_runtimes_leaves_them_open(tmp_path: Path) -> None:
    runtimes = RUNTIME.format(name="a") + RUNTIME.format(name="b")
    named = read(tmp_path, runtimes + SERVICE.format(name="a", words="--port=80"))
    assert [(p.options.get("port"), p.complete) for p in named] == [("80", True), (None, True)]
    unknown = read(tmp_path, runtimes + SERVICE.format(name="$NAME", words="$MORE"))
    assert [place.complete for place in unknown] == [False, False]
