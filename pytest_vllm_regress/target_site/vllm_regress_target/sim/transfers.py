"""The worker side of a KV connector: told of each step, and asked what it finished.

There is no cache to read or write.
"""

import copy
from typing import Any

from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group
from vllm.forward_context import get_forward_context, set_forward_context

from ..dialect import worker_v1


class Transfers:
    """Runs the connector that ``kv_transfer_config`` names, as vLLM's model runner does around a
    forward pass.

    The connector never gets ``register_kv_caches``, because nothing is allocated. vLLM's
    OffloadingConnector gets a worker whose copies succeed at once; other connectors that copy
    blocks fail at their first transfer.
    """

    def __init__(self, vllm_config: Any, kv_cache_config: Any) -> None:
        self._config = vllm_config
        worker_v1.start_connector(vllm_config, kv_cache_config)
        if has_kv_transfer_group():
            offloading = getattr(get_kv_transfer_group(), "connector_worker", None)
            if offloading is not None and type(offloading).__name__ == "OffloadingConnectorWorker":
                offloading.worker = OffloadedCopies()
        self._fields: dict[str, Any] = {}

    def handshake(self) -> Any:
        """Return the metadata that the connector shares with those of other workers, or None."""
        return (
            worker_v1.connector_handshake(get_kv_transfer_group())
            if has_kv_transfer_group()
            else None
        )

    def step(self, scheduled: Any) -> None:
        """Start the loads and saves of a step, and keep what has finished for ``attach``."""
        if not has_kv_transfer_group() or getattr(scheduled, "kv_connector_metadata", None) is None:
            return
        connector = get_kv_transfer_group()
        connector.bind_connector_metadata(scheduled.kv_connector_metadata)
        with set_forward_context(None, self._config):
            connector.start_load_kv(get_forward_context())
            connector.wait_for_save()
        self._fields = worker_v1.connector_output(connector, scheduled)
        connector.clear_connector_metadata()

    def attach(self, output: Any) -> Any:
        """Return ``output`` with what the connector finished in this step.

        A shared empty output is copied.
        """
        if not self._fields or output is None:
            return output
        output = copy.copy(output)
        for name, value in self._fields.items():
            setattr(output, name, value)
        self._fields = {}
        return output


class OffloadedCopies:
    """Stand-in for the worker that copies blocks to and from host memory.

    Each copy finishes in the step that submits it.
    """

    def __init__(self) -> None:
        self._submitted: list[int] = []

    def submit_store(self, job_id: int, *specs: Any, **options: Any) -> bool:
        """Accept a copy."""
        self._submitted.append(job_id)
        return True

    submit_load = transfer_async = submit_store

    def get_finished(self) -> list[Any]:
        """Return the results of the copies since the last call."""
        finished, self._submitted = self._submitted, []
        return [worker_v1.transfer_result(job_id) for job_id in finished]

    def wait(self, job_ids: Any) -> None:
        """Return at once: nothing is under way."""

    def shutdown(self) -> None:
        """Do nothing: nothing is held."""
