"""A Ray of two nodes on this machine, for vLLM's own Ray executor, in a process of its own that ends them when the engine's process ends."""

import contextlib
import os
import subprocess
import sys
from multiprocessing import util
from typing import Dict

from ..nanny import become_subreaper, end_descendants
from . import ray_ports

EXECUTOR = "ray-2-nodes"
"""What a spec calls it."""
ADDRESSES = ("127.0.0.2", "127.0.0.1")
"""Each node's own; the head's first. What is started later finds the one that came last, so the engine lives on that."""
_END_S = 5.0


def start(gpus: int) -> Dict[str, str]:
    """Start both nodes, each with as many (pretended) GPUs; they end with this process. The variables by which vLLM joins them."""
    program = "from {} import hold; hold({})".format(__name__, gpus)
    holder = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    address = holder.stdout.readline().strip()  # the controller's deadline bounds this wait
    if not address:
        raise RuntimeError("no Ray of two nodes could be started: its holder ended with {}".format(holder.wait()))
    util.Finalize(None, _end, args=(holder,), exitpriority=0)
    return {"RAY_ADDRESS": address, "VLLM_HOST_IP": ADDRESSES[-1]}


def _end(holder: "subprocess.Popen[str]") -> None:
    """Not by the end of its input alone: what was forked from this process may still hold that."""
    holder.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        holder.wait(_END_S)


def hold(gpus: int) -> None:
    """Hold the nodes until nobody holds this process's input, or SIGTERM comes (Ray has a handler). Where it is killed, the kernel ends
    Ray's daemons."""
    ray_ports.watch()
    from ray.cluster_utils import Cluster

    os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # Ray would have as many GPUs as that leaves, and these are pretended
    become_subreaper()
    try:
        cluster = Cluster()
        for address in ADDRESSES:
            cluster.add_node(
                node_ip_address=address, num_gpus=gpus, include_dashboard=False, env_vars={"VLLM_HOST_IP": address}
            )
        # Else a Ray that another engine of this run starts would be this one.
        os.unlink(os.path.join(os.environ["RAY_TMPDIR"], "ray", "ray_current_cluster"))
        print(cluster.address, flush=True)
        sys.stdin.read()
    finally:
        end_descendants()  # Ray ends its daemons, but a worker may outlive its raylet
