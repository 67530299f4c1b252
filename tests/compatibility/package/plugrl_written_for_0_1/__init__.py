"""Written with the public names of plugrl 0.1, and never changed since."""
