"""Evaluators, and the held-out evaluation of a run."""
