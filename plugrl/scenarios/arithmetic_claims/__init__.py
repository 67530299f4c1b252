"""Claims about sums, right or wrong, that a very small model can learn to judge."""
