"""Runs a task on whole datasets: files in, files with typed columns of answers out, each row exactly once.

`mapping.map` is the entry point. `readers.py` reads a file (`jsonl.py` JSON Lines), `sources.py` all files of a
dataset, which `sizes.py` splits into parts; `columns.py` converts answers to typed columns, `sinks.py` writes,
`manifest.py` records finished parts so that an interrupted run can resume, `work.py` answers the rows of one part, and
`cluster.py` distributes parts to Dask workers.
"""

from importlib.util import find_spec

from npformer.common.errors import NpformerError

if find_spec("pyarrow") is None:
    raise NpformerError('datasets require pyarrow: pip install "npformer[data]"')

from npformer.dataset.mapping import Report, map

__all__ = ["Report", "map"]
