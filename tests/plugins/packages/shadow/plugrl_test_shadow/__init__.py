"""A plugin that takes names of plugrl itself."""
