"""The conformance kit: what plugrl expects of a component, as tests that its author runs.

``pytest --pyargs plugrl.testing.suite --plugrl-trainer NAME``, and ``--plugrl-evaluator``,
``--plugrl-scorer`` and ``--plugrl-sandbox`` in the same way.
"""
