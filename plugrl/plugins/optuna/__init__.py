"""Sweeps by Optuna."""
