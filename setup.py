"""Packaging lives in setup.cfg; this file is what older tools look for."""

from setuptools import setup

setup()
