"""A plugin that ends the process when it is imported."""
