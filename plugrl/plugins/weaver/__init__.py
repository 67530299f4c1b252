"""Models that a Weaver service keeps: sampled from and trained there."""
