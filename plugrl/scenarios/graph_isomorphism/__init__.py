"""Pairs of graphs that are the same up to the order of their nodes, or not."""
