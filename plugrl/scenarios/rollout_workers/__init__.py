"""Built-in rollout workers, one file each."""
