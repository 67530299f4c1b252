"""Multiplication that a small model can only do with a tool."""
