"""Files, recipes and overrides, composed into one tree that knows where each value was written."""
