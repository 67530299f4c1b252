"""Red-teaming: a tester learns to make a target say what a scorer looks for.

Contracts and machinery; algorithms, trainers and scorers register themselves as plugins do.
"""
