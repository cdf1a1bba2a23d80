"""Shared parts of the oracle tools: development only, never part of the product."""
