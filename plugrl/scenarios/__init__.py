"""Built-in tasks, evaluators and rollout workers."""
