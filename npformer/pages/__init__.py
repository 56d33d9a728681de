"""Finds, runs and writes the pages of `npformer.plain`.

`find.py` has the page of a family. `sizes.py` reads a page's arguments from a config, and `run.py` computes a loaded
model's answers with its page. `source.py` returns the text of a page. `one_file.py` joins definitions of pages in one
file, and `standalone.py` writes such a file for a loaded model.
"""
