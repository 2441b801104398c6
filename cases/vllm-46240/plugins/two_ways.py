from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata

LONG = 64  # tokens: shorter prompts are not transferred


@dataclass
class Ended(KVConnectorMetadata):
    requests: set = field(default_factory=set)


class TwoWays(KVConnectorBase_V1):
    """Receives the cache of each long prompt until the request ends, and then reports that it was received, and sent if ``sends`` is set."""

    def __init__(self, vllm_config, role, kv_cache_config=None):
        super().__init__(vllm_config, role, *([] if kv_cache_config is None else [kv_cache_config]))  # 0.11.0 takes two
        self._sends = vllm_config.kv_transfer_config.get_from_extra_config("sends", True)
        self._ended = set()

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        is_long = request.num_prompt_tokens >= LONG
        return (16, True) if is_long else (0, False)

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        pass

    def request_finished(self, request, block_ids):
        if request.num_prompt_tokens < LONG:
            return False, None
        self._ended.add(request.request_id)
        return self._sends, None

    def build_connector_meta(self, scheduler_output):
        ended, self._ended = Ended(self._ended), set()
        return ended

    def get_finished(self, finished_req_ids):
        ended = self._get_connector_metadata().requests
        return (set(ended) if self._sends else None), set(ended)

    def start_load_kv(self, forward_context, **kwargs):
        pass

    def wait_for_layer_load(self, layer_name):
        pass

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
        pass

    def wait_for_save(self):
        pass
