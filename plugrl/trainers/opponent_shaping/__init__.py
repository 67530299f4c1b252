"""What ``spg`` is made of: gradients of players who know that others learn from what they do."""
