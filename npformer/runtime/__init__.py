"""How it runs, apart from what it computes: batches, products with the same bits, threads."""
