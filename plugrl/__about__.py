"""The version of plugrl, in one place and without imports."""

__version__ = "0.2.0"
