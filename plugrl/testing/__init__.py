"""The conformance kit: tests of plugrl's expectations that authors run on their components.

``pytest --pyargs plugrl.testing.suite.test_trainer --plugrl-trainer NAME``, and the same of every
kind: ``test_KIND`` and ``--plugrl-KIND``.
"""
