"""The sections of a configuration and what their fields may be."""
