"""Descriptions of the parts of a model: their stages and the shapes of their weights."""
