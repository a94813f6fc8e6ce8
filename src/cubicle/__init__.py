"""Cubicle gives any AI model its own computer."""

__version__ = "0.1.0"
