"""Whether a small Python program is right: problems, solutions, and mutants that fail tests."""
