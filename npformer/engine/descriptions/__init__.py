"""Descriptions of the parts of a model: their stages, the shapes of their weights, and the mistakes of ports."""
