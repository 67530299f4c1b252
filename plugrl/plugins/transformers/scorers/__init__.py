"""Scorers of red-teaming that are models."""
