"""The suites of the conformance kit, one module for each kind of component."""
