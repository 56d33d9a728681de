"""How models run, apart from what they compute: batches, products with the same bits, threads."""
