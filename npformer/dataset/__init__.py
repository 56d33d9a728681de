"""Whole datasets through a task: files in, files with typed columns of answers out, each row exactly once.

`mapping.map` is the one entry. `sources.py` reads, `columns.py` turns answers into typed columns, `sinks.py` writes,
`manifest.py` records what is done so that a run that was broken off goes on, `work.py` answers the rows of one part,
and `cluster.py` has Dask's workers do that.
"""

from importlib.util import find_spec

from npformer.errors import NpformerError

if find_spec("pyarrow") is None:
    raise NpformerError('datasets are read and written by pyarrow: pip install "npformer[data]"')

from npformer.dataset.mapping import Report, map

__all__ = ["Report", "map"]
