"""Rejection-sampling fine-tuning, a plugin of plugrl."""
