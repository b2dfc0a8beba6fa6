"""Tests, by kind: unit, contract, integration, spark, faults.

A package, so that workers find functions of test modules under the same name as pytest.
"""
