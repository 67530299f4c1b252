"""Models behind servers that speak OpenAI's interface: vLLM, SGLang, plugrl's own, and others."""
