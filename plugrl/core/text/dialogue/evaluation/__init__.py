"""How often, how early and how badly a target failed."""
