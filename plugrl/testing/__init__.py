"""The conformance kit: tests of plugrl's expectations that authors run on their components.

``pytest --pyargs plugrl.testing.suite --plugrl-trainer NAME``, and ``--plugrl-evaluator``,
``--plugrl-scorer`` and ``--plugrl-sandbox`` in the same way.
"""
