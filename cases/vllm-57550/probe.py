"""vLLM's own check of what xgrammar supports. Runs inside the target interpreter."""


def is_beyond_xgrammar(schema):
    from vllm.v1.structured_output.backend_xgrammar import has_xgrammar_unsupported_json_features

    return bool(has_xgrammar_unsupported_json_features(schema))
