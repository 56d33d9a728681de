"""Runs npformer on mutated files and texts: `python -m tests.fuzz SEED CASES [--kind KIND] [--case N]`.

A case depends only on its kind, the seed and its number, not on the machine or the Python version. `corpus.py` makes
the valid folders, and `kinds.py` defines which of their files are mutated, and how. Mutators: `json_form.py`,
`tensor_form.py`, `torch_form.py`, `zip_form.py`, `protobuf_form.py`, `text_form.py`, `byte_form.py` and, for whole
files, `folder.py`. `uses.py` loads a folder and calls the model, `worker.py` judges what happens, and `pool.py` manages
the workers.
"""
