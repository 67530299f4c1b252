"""Hubs, where models and data sets are published, and the revisions of what a run takes from them."""
