"""Whole datasets through a task: files in, files with typed columns of answers out, each row exactly once.

`mapping.map` is the one entry. `readers.py` reads a file (`jsonl.py` the rows of JSON Lines), `sources.py` all files of
a dataset, which `sizes.py` cuts into parts; `columns.py` turns answers into typed columns, `sinks.py` writes,
`manifest.py` records which parts are done, so that a run that was broken off goes on, `work.py` answers the rows of one
part, and `cluster.py` has Dask's workers do that.
"""

from importlib.util import find_spec

from npformer.common.errors import NpformerError

if find_spec("pyarrow") is None:
    raise NpformerError('datasets are read and written by pyarrow: pip install "npformer[data]"')

from npformer.dataset.mapping import Report, map

__all__ = ["Report", "map"]
