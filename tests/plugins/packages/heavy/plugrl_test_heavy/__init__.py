"""A plugin whose hook module imports torch."""
