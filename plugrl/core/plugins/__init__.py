"""Plugins: kinds of components, where they are found, and what a name means."""
