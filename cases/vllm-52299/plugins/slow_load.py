"""A worker that loads for a long time: it says that it has begun, and goes on when it is told to."""

import os
import time
from pathlib import Path

_folder = Path(os.environ["SLOW_LOAD_FOLDER"])
(_folder / f"loading-{os.getpid()}").touch()
while not (_folder / "go-on").exists():
    time.sleep(0.05)


class SlowLoad:
    """An extension of the worker, which imports this module before it loads the model."""
