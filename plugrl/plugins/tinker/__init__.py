"""Models that a service of the Tinker API keeps: sampled from and trained there."""
