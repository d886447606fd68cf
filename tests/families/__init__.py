"""Generators of model outputs for every parser family, and the laws that all families must keep."""
