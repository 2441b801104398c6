"""Start a server, send it SIGTERM while its workers load, and return which of its processes survive.

Runs in the target interpreter.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

SERVE = "import sys; from vllm.entrypoints.cli.main import main; sys.argv[0] = 'vllm'; main()"
PLUGINS = str(Path(__file__).parent / "plugins")
PATIENCE_S = 15  # longer than the server's own clean-up, which another signal would interrupt


def alive_after_sigterm(model, workers, start_s, timeout_s):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    command = [sys.executable, "-c", SERVE, "serve", model, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--max-model-len", "256", "--enforce-eager", "--tensor-parallel-size", str(workers)]
    command += ["--distributed-executor-backend", "mp", "--worker-extension-cls", "slow_load.SlowLoad"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = [PLUGINS, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "SLOW_LOAD_FOLDER": name, "PYTHONPATH": os.pathsep.join(paths)}
        server = subprocess.Popen(command, env=environment)
        family = []
        try:
            loading = _loading(server, folder, workers, start_s)
            family = psutil.Process(server.pid).children(recursive=True)
            status = _end(server)
            _, alive = psutil.wait_procs([process for process in family if process.pid in loading], timeout=timeout_s)
        finally:
            (folder / "go-on").touch()
            for process in [server, *family]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            server.wait()
    return {"status": status, "loading": len(loading), "alive": sorted(process.pid for process in alive)}


def _loading(server, folder, workers, timeout_s):
    """Wait until the workers load, and return their pids."""
    limit = time.monotonic() + timeout_s
    while True:
        pids = [int(path.name.rpartition("-")[2]) for path in folder.glob("loading-*")]
        if len(pids) == workers:
            return pids
        if server.poll() is not None:
            raise RuntimeError("the server ended with status {}".format(server.returncode))
        if time.monotonic() > limit:
            raise RuntimeError("{} of {} workers load after {} s".format(len(pids), workers, timeout_s))
        time.sleep(0.1)


def _end(server):
    """Return the exit status. The first signal is not always noticed, so it may be sent again."""
    for _ in range(3):
        server.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return server.wait(PATIENCE_S)
    return None
