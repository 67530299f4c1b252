"""Forward and backward passes over packed sequences."""
