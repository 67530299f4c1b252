"""The recorded endpoint: an OpenAI-compatible server of a run's models that keeps exact tokens."""
