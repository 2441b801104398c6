"""The commands of CONTRIBUTING.md turn a report into a proven case."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import ROOT

GUIDE = (ROOT / "CONTRIBUTING.md").read_text()
SECTION = GUIDE[GUIDE.index("## Add a case") : GUIDE.index("## Change the code")]
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
TEST_FILE = re.compile(r"`(my-cases/\S+\.py)`")


@pytest.mark.engine
@pytest.mark.usefixtures("user_caches")
def test_the_guide_leads_to_a_proven_case(tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    for kind, text in BLOCK.findall(SECTION):
        if kind == "python":
            match = TEST_FILE.search(SECTION)
            assert match
            (tmp_path / match[1]).write_text(text)
            continue
        completed = subprocess.run(
            ["bash", "-ec", text],
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
        )
        assert completed.returncode == 0, (
            f"{text}{completed.stdout[-4000:]}{completed.stderr[-2000:]}"
        )
    proof = json.loads((tmp_path / "my-cases/vllm-17173/evidence.json").read_text())
    assert [(entry["environment"], entry["verdict"]) for entry in proof["environments"]] == [
        ("vllm-0.8.4", "REPRODUCED"),
        ("vllm-0.8.5", "FIXED"),
    ]
