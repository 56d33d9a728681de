"""Runs models: batches, products with reproducible bits, and threads."""
