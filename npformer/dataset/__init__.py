"""Runs a task on whole datasets: reads files, answers each row once, and writes typed columns of answers.

`mapping.map` is the entry point. `readers.py` reads one file (`jsonl.py` reads JSON Lines). `sources.py` reads all
files of a dataset, and `sizes.py` divides files into parts. `work.py` answers the rows of one part, in this process or
on the Dask workers of `cluster.py`. `columns.py` converts answers to typed columns, `sinks.py` writes the columns, and
`manifest.py` records finished parts, so that an interrupted run can resume.
"""

from importlib.util import find_spec

from npformer.common.extras import lacks

if find_spec("pyarrow") is None:
    raise lacks("a dataset", "pyarrow", "data")

from npformer.dataset.mapping import Report, map

__all__ = ["Report", "map"]
