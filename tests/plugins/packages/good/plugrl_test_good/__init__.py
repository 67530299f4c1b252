"""A plugin that does everything right."""
