"""Requests that change the state of a server's engine: sleep mode, the prefix cache, LoRA adapters."""

from __future__ import annotations

import shutil
from pathlib import Path

from ...errors import Unsupported, UsageError
from ...util.paths import writable_root
from ..checkpoints.adapters import Adapter, ensure_adapter
from .transport import Transport

_DEVELOPER_ROUTES = "VLLM_SERVER_DEV_MODE"


class MaintenanceRequests(Transport):
    """Requests for the engine as a whole.

    Sleep mode and the prefix cache use addresses that vLLM reserves for developers.
    """

    def sleep(self, level: int = 1, *, timeout: float | None = None) -> None:
        """Release the KV cache. Level 1 also moves the weights to CPU memory, level 2 discards
        them.

        The server needs ``extra={"enable_sleep_mode": True}`` and ``env={"VLLM_SERVER_DEV_MODE":
        "1"}``. Errors as in ``chat``.
        """
        self._post_route(f"/sleep?level={level}", timeout)

    def wake_up(self, *, timeout: float | None = None) -> None:
        """Restore what ``sleep`` released. Needs and errors as for ``sleep``."""
        self._post_route("/wake_up", timeout)

    def is_sleeping(self, *, timeout: float | None = None) -> bool:
        """Return whether the engine sleeps. Needs and errors as for ``sleep``."""
        self._require_routes("is_sleeping")
        return bool(self._json(self.get("/is_sleeping", timeout=timeout))["is_sleeping"])

    def reset_prefix_cache(self, *, timeout: float | None = None) -> None:
        """Forget the cached blocks of earlier prompts.

        The server needs ``env={"VLLM_SERVER_DEV_MODE": "1"}``. Errors as in ``chat``.
        """
        self._post_route("/reset_prefix_cache", timeout)

    def load_adapter(
        self,
        adapter: Adapter,
        *,
        folder: Path | None = None,
        replace: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Load a forged LoRA adapter, for requests with ``model=adapter.name``. The server needs
        ``extra={"enable_lora": True}``.

        ``folder``: write the adapter there, over what is there, and load it from there (default:
        its own folder in the cache). ``replace``: replace the loaded adapter of this name; raises
        ``Unsupported`` if this vLLM cannot. Other errors as in ``chat``.
        """
        path = ensure_adapter(adapter, self.model_path, writable_root() / "checkpoints")
        if folder is not None:
            path = Path(shutil.copytree(path, folder, dirs_exist_ok=True))
        body = {
            "lora_name": adapter.name,
            "lora_path": str(path),
            **({"load_inplace": True} if replace else {}),
        }
        response = self.post("/v1/load_lora_adapter", body, timeout=timeout)
        if replace and response.status_code == 400 and "already been loaded" in response.text:
            raise Unsupported(
                "it cannot replace a loaded adapter", refused_by="this vLLM (HTTP 400)"
            )
        self._raise_for_status(response)

    def unload_adapter(self, name: str, *, timeout: float | None = None) -> None:
        """Unload an adapter by its name. Errors as in ``chat``."""
        self._raise_for_status(
            self.post("/v1/unload_lora_adapter", {"lora_name": name}, timeout=timeout)
        )

    def _post_route(self, address: str, timeout: float | None) -> None:
        self._require_routes(address.partition("?")[0].removeprefix("/"))
        self._raise_for_status(self.post(address, {}, timeout=timeout))

    def _require_routes(self, method: str) -> None:
        if self.spec.env.get(_DEVELOPER_ROUTES) != "1":
            raise UsageError(
                f'{method} needs env={{"{_DEVELOPER_ROUTES}": "1"}}: without it vLLM does not have this address'
            )
