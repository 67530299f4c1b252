"""Rollouts: from a prompt to judged trajectories."""
