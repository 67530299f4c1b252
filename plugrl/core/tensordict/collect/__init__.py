"""Collecting steps of environments, and keeping them."""
