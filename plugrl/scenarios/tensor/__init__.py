"""Environments whose copies are stepped as tensors."""
