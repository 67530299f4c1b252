"""Environments of TorchRL, or any other subclass of its ``EnvBase``."""
