"""Metrics in TensorBoard."""
