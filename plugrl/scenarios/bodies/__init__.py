"""Bodies of agents: networks between what they see and their heads."""
