"""A plugin that takes long to import."""
