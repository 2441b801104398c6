"""Uses in shell scripts, Dockerfiles, YAML and notebooks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_vllm_regress.answers.api_history.store import History
from pytest_vllm_regress.answers.uses.presentation import to_json
from pytest_vllm_regress.util import codec
from tests.unit.answers.uses.projects import answer_for, missing

CI = ".github/workflows/ci.yml"
GONE = "vllm serve has no --old-flag"
POD = """
spec:
  containers:
  - name: sidecar
    image: other
    args: ["--kept", "--old-flag"]
  - name: server
    image: vllm/vllm-openai:v1.0
    env:
    - name: VLLM_OLD
      value: "1"
    args:
    - --model=x
    - --mode
    - a
  - name: last
    args: [--old-flag]
"""


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("run.sh", "vllm serve m \\\n  --kept 1 \\\n  --old-flag x", {f"run.sh:3: {GONE}"}),
        ("run.sh", "other --old-flag && vllm serve m; other --old-flag", set()),
        ("run.sh", "python -m vllm.entrypoints.openai.api_server --old_flag", {f"run.sh:1: {GONE}"}),
        ("run.sh", "# vllm serve --old-flag\nexport VLLM_OLD=1", {"run.sh:2: vLLM does not read VLLM_OLD"}),
        ("run.sh", "vllm serve m --no-old-flag", {f"run.sh:1: {GONE}"}),
        ("run.sh", "docker run --old-flag vllm/vllm-openai:latest --mode a", {"run.sh:1: --mode does not allow a"}),
        ("run.sh", "curl http://localhost:8000/v1/old # vllm", {"run.sh:1: there is no route /v1/old"}),
        ("run.sh", "echo 'see vllm:old'\nprintf 'vllm serve m --old-flag'", set()),
        ("run.sh", "vllm serve m --tool-call-parser hermes", {"run.sh:1: there is no tool parser hermes"}),
        ("Dockerfile", 'ENTRYPOINT ["vllm", "serve"]\nCMD ["m", "--old-flag"]', {f"Dockerfile:2: {GONE}"}),
        ("Dockerfile", 'FROM vllm/vllm-openai:v1\nRUN x --mode a\nCMD ["--old-flag"]', {f"Dockerfile:3: {GONE}"}),
        ("Dockerfile", "ENV VLLM_OLD=1", {"Dockerfile:1: vLLM does not read VLLM_OLD"}),
        ("pod.yaml", POD, {"pod.yaml:10: vLLM does not read VLLM_OLD", "pod.yaml:14: --mode does not allow a"}),
        ("chart/templates/d.yaml", "command:\n- vllm\n- serve\n- {{ .Values.model }}\n- --old-flag", {f"chart/templates/d.yaml:5: {GONE}"}),
        ("c.yml", "services:\n  a:\n    image: vllm/vllm-openai\n    command: --old-flag\n  b:\n    command: --mode a", {f"c.yml:4: {GONE}"}),
        (CI, "steps:\n- run: |\n    vllm serve m \\\n      --old-flag\n- run: x --mode a", {f"{CI}:4: {GONE}"}),
        # Scripts with other names.
        ("run.slurm", "#SBATCH -N 1\nsrun x -- vllm serve m \\\n  --old-flag", {f"run.slurm:3: {GONE}"}),
        ("job.sbatch", "export VLLM_OLD=1\nvllm serve m", {"job.sbatch:1: vLLM does not read VLLM_OLD"}),
        ("bin/serve", "#!/usr/bin/env bash\nvllm serve m --old-flag", {f"bin/serve:2: {GONE}"}),
        ("bin/notes", "vllm serve m --old-flag", set()),
        ("justfile", "serve:\n\tvllm serve m --old-flag", {f"justfile:2: {GONE}"}),
        # Documents.
        ("README.md", "Use --old-flag:\n```bash\nvllm serve m --old-flag\n```", {f"README.md:3: {GONE}"}),
        ("README.md", "VLLM_OLD=1 or\n```\nexport VLLM_OLD=1\n```", {"README.md:3: vLLM does not read VLLM_OLD"}),
        ("README.md", "vllm\n```\nVLLM_OLD is vllm:old\n```\nvllm:old, or /v1/old", {"README.md:3: there is no metric vllm:old"}),
        ("CHANGELOG.md", "```bash\nvllm serve m --old-flag\n```", set()),
        ("board.json", '{"expr": "rate(vllm:old_count[1m])"}', {"board.json:1: there is no metric vllm:old"}),
    ],
)  # fmt: skip
def test_files(
    tmp_path: Path, two_releases: History, name: str, text: str, expected: set[str]
) -> None:
    result = answer_for(tmp_path, two_releases, {name: text})
    assert {str(problem).partition(" (now")[0] for problem in result.problems["2.0"]} == expected
    assert result.problems["1.0"] == ()


@pytest.mark.parametrize(
    ("name", "text", "unknown"),
    [
        ("run.sh", "VLLM_KEPTT=1 vllm serve m --modee a --other", ["VLLM_KEPTT", "--modee", "--other"]),
        ("run.sh", "vllm serve m --mod b --nothing.x=1 && pytest --x", ["--nothing"]),  # --mod is short for --mode
        ("run.sh", "export VLLM_IMAGE=x VLLM_NOSUCH=1", []),  # the project's own
        ("run.sh", "docker build --tagg x vllm/vllm-openai --build-arg a", []),
        ("run.sh", "docker run --gpus all vllm/vllm-openai --tool-call-parserr h", ["--tool-call-parserr"]),
        ("a.py", "x = ['vllm', 'serve', 'm', '--other']", ["--other"]),
        ("a.py", "x = 'vllm serve m\\npytest --other --tool-call-parserr h'", ["--tool-call-parserr"]),
        ("pod.yaml", "image: vllm/vllm-openai\nargs: [--tool-call-parserr, h]\nprobe: [curl, --mod, --tool-call]", ["--tool-call-parserr"]),
        ("run.sh", f"vllm serve m --{'x' * 10_000} --{{}}", []),
    ],
)  # fmt: skip
def test_names_that_no_release_has_are_listed(
    tmp_path: Path, two_releases: History, name: str, text: str, unknown: list[str]
) -> None:
    result = answer_for(tmp_path, two_releases, {name: text})
    assert sorted(use.name for use in result.unknown) == sorted(unknown)
    assert result.problems["2.0"] == ()


def test_notebooks_are_read_cell_by_cell(tmp_path: Path, two_releases: History) -> None:
    cells = [
        {"cell_type": "markdown", "source": "from vllm.utils import get_port"},
        {
            "cell_type": "code",
            "source": ["%time\n", "!pip install vllm\n", "from vllm.utils import get_port\n"],
        },
        {"cell_type": "code", "source": "!vllm serve m --old-flag"},
        {"cell_type": "code", "source": "import vllm +"},
        "nonsense",
        {"cell_type": "code", "source": "from vllm import LLM\nx = LLM('m')"},
        {"cell_type": "code", "source": "x.engine.executor"},
    ]
    result = answer_for(tmp_path, two_releases, {"n.ipynb": json.dumps({"cells": cells})})
    attribute = "the class vllm.llm.Engine has no executor"  # of a name that another cell binds
    assert missing(result)["2.0"] == ["the module vllm.utils has no get_port", attribute, GONE]
    assert str(result.problems["2.0"][0].use.place) == "n.ipynb:cell 2:3"
    assert result.project.notes == ("left out: n.ipynb: cell 4 cannot be parsed",)


def test_options_that_no_release_has_can_be_printed_as_json(
    tmp_path: Path, two_releases: History
) -> None:
    result = answer_for(tmp_path, two_releases, {"run.sh": "vllm serve m --never-known"})
    (unknown,) = codec.encode(to_json(result, "."))["unknown"]
    assert (unknown["use"], unknown["kind"]) == ("--never-known", "option")
