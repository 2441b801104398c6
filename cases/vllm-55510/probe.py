"""Start a server, kill it, and return which of its processes survive. Runs in the target interpreter."""

import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import psutil

SERVE = """
import sys
try:
    from vllm.entrypoints.cli.main import main
except ImportError:  # before 0.7.3
    from vllm.scripts import main
sys.argv[0] = "vllm"
main()
"""


def alive_after_kill(model, timeout_s):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    command = [
        sys.executable,
        "-c",
        SERVE,
        "serve",
        model,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--max-model-len",
        "256",
        "--enforce-eager",
    ]
    server = subprocess.Popen(command)
    try:
        while not _healthy(port):
            if server.poll() is not None:
                raise RuntimeError("the server ended with status {} before it was healthy".format(server.returncode))
            time.sleep(0.2)
        family = psutil.Process(server.pid).children(recursive=True)
    finally:
        server.kill()
        server.wait()
    _, alive = psutil.wait_procs(family, timeout=timeout_s)
    names = [process.name() for process in alive]
    for process in alive:
        process.kill()
    return {"family": len(family), "alive": names}


def _healthy(port):
    try:
        with urllib.request.urlopen("http://127.0.0.1:{}/health".format(port), timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False
