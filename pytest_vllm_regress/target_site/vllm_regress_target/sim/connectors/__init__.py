"""KV connectors for engines on the simulated device, loaded by vLLM through
``kv_connector_module_path``."""
