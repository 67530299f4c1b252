"""Rollouts in worker processes."""
