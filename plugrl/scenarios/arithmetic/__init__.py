"""Addition problems that a very small model can learn."""
