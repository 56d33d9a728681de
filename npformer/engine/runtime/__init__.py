"""How models run: batches, products with reproducible bits, threads."""
