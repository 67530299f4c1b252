"""A plugin whose entry point leads to nothing."""
