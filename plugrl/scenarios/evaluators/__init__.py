"""Built-in evaluators, one file each."""
