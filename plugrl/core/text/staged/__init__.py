"""Staged training of text agents by fine-tuning jobs."""
