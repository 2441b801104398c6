"""Write measurements on a cluster to docs/records/cluster.json with ``--cluster-record``."""

from __future__ import annotations

import json
import os
import platform
import time
from typing import Any

import pytest

from tests.helpers import ROOT

RECORD = ROOT / "docs" / "records" / "cluster.json"


def keep(config: pytest.Config, name: str, measured: Any) -> None:
    """Record ``measured`` under ``name`` with the day and the machine, if --cluster-record is
    given."""
    if not config.getoption("cluster_record", False):
        return
    known = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    machine = {
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "system": platform.platform(),
        "python": platform.python_version(),
    }
    known[name] = {"at": time.strftime("%Y-%m-%d"), "machine": machine, "measured": measured}
    RECORD.write_text(json.dumps(known, indent=1) + "\n")
