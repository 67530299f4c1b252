"""Runs in trackio."""
