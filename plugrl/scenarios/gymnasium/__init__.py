"""Environments that are registered with gymnasium, stepped as arrays."""
