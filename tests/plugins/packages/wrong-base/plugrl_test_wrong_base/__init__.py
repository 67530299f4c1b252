"""A plugin whose trainer is no Trainer."""
