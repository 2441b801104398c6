"""A Ray cluster of two nodes on this machine, for vLLM's Ray executor. A separate process holds the
nodes and ends them with the engine's process.

The executor ``ray-2-nodes`` is a value of the axis ``executor`` and not a number of nodes beside
it, because the other executors have one node. vLLM forks its engine core from the engine's process,
which must not have Ray's threads by then; therefore a separate process holds the nodes.
"""

import contextlib
import os
import subprocess
import sys
from multiprocessing import util
from typing import Dict

from ..nanny import become_subreaper, end_descendants
from . import ray_ports

EXECUTOR = "ray-2-nodes"
"""The name of this executor in an engine spec."""
ADDRESSES = ("127.0.0.2", "127.0.0.1")
"""Addresses of the nodes, the head first.

Ray's driver joins the node that started last, so the engine runs there.
"""
_END_S = 5.0


def start(gpus: int) -> Dict[str, str]:
    """Start both nodes, each with this many pretended GPUs, until this process ends.

    Returns the variables by which vLLM joins them.
    """
    program = "from {} import hold; hold({})".format(__name__, gpus)
    holder = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    address = holder.stdout.readline().strip()  # the controller's deadline bounds this wait
    if not address:
        raise RuntimeError(
            "a Ray cluster of two nodes could not be started: its process exited with {}".format(
                holder.wait()
            )
        )
    util.Finalize(None, _end, args=(holder,), exitpriority=0)
    return {"RAY_ADDRESS": address, "VLLM_HOST_IP": ADDRESSES[-1]}


def _end(holder: "subprocess.Popen[str]") -> None:
    """Terminate the holder.

    Closing its input is not enough, because forks of this process may still have it open.
    """
    holder.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        holder.wait(_END_S)


def hold(gpus: int) -> None:
    """Hold the nodes until this process's input is closed or SIGTERM arrives, for which Ray has a
    handler. If this process is killed, the kernel ends
    Ray's daemons."""
    ray_ports.watch()
    from ray.cluster_utils import Cluster

    os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # Ray would limit the pretended GPUs to these
    become_subreaper()
    try:
        cluster = Cluster()
        for address in ADDRESSES:
            cluster.add_node(
                node_ip_address=address,
                num_gpus=gpus,
                include_dashboard=False,
                env_vars={"VLLM_HOST_IP": address},
            )
        # Without this another engine of the run would join this cluster instead of starting its own
        # Ray.
        os.unlink(os.path.join(os.environ["RAY_TMPDIR"], "ray", "ray_current_cluster"))
        print(cluster.address, flush=True)
        sys.stdin.read()
    finally:
        end_descendants()  # Ray ends its daemons, but a worker may outlive its raylet
