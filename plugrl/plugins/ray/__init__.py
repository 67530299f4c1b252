"""Rollouts, environments and engines on a Ray cluster."""
