"""A plugin for another version of the hooks."""
