class LLMEngine:
    __module__ = "vllm.v1.engine.llm_engine"
