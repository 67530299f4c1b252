"""A plugin that imports a package which is not there."""
