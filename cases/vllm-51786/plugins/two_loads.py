from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata

LONG = 64  # tokens: shorter prompts are not loaded


@dataclass
class Begun(KVConnectorMetadata):
    requests: set = field(default_factory=set)


class Loads(KVConnectorBase_V1):
    """Loads a block of each long prompt, and reports the load after ``steps`` steps (0: never)."""

    def __init__(self, vllm_config, role, kv_cache_config=None):
        super().__init__(vllm_config, role, *([] if kv_cache_config is None else [kv_cache_config]))
        self._steps = vllm_config.kv_transfer_config.get_from_extra_config("steps", 1)
        self._begun = set()
        self._left = {}

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        is_new = request.num_prompt_tokens >= LONG and num_computed_tokens == 0
        return (16, True) if is_new else (0, False)

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        if request.num_prompt_tokens >= LONG and request.num_computed_tokens == 0:
            self._begun.add(request.request_id)

    def request_finished(self, request, block_ids):
        return False, None

    def build_connector_meta(self, scheduler_output):
        begun, self._begun = Begun(self._begun), set()
        return begun

    def get_finished(self, finished_req_ids):
        self._left.update(dict.fromkeys(self._get_connector_metadata().requests, self._steps))
        self._left = {request: steps - 1 for request, steps in self._left.items()}
        return None, {request for request, steps in self._left.items() if steps == 0}

    def start_load_kv(self, forward_context, **kwargs):
        pass

    def wait_for_layer_load(self, layer_name):
        pass

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
        pass

    def wait_for_save(self):
        pass
