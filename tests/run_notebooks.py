"""Runs notebooks of docs/learn/ from the first cell to the last, and stops at the first error.

        python tests/run_notebooks.py datasets    runs datasets.ipynb and does not change the file
    python tests/run_notebooks.py --write     runs every notebook and stores its output in the file, for GitHub

The site's build runs every notebook except datasets.ipynb, which needs seven engines, and changes no file. Requires
the `docs` group, and npformer installed, because a notebook runs in its folder. The run also fails if a cell prints
something but was committed without output. The output itself is not compared: its last digits depend on the machine,
and comparisons with published numbers depend on the models in the machine's cache.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
TIMEOUT = 1200  # seconds a cell may take


def main() -> int:
    names = [each for each in sys.argv[1:] if each != "--write"] or ["*"]
    paths = sorted(path for name in names for path in (ROOT / "docs" / "learn").glob(f"{name}.ipynb"))
    failures = [problem for path in paths for problem in run(path, write="--write" in sys.argv[1:])]
    print("\n".join(failures) or f"{len(paths)} notebooks ran without an error")
    return int(bool(failures) or not paths)


def run(path: Path, write: bool) -> list[str]:
    """Returns the problems of a notebook: an error in a cell, or a cell that was committed without its output."""
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    notebook = nbformat.read(path, as_version=4)
    before = [has_output(cell) for cell in notebook.cells]
    try:
        NotebookClient(
            notebook, timeout=TIMEOUT, startup_timeout=TIMEOUT, resources={"metadata": {"path": str(path.parent)}}
        ).execute()
    except CellExecutionError as error:
        return [f"{path.name}: {error}"]
    if write:
        for cell in notebook.cells:
            cell.metadata = {}  # drops the times at which the cell ran
        notebook.metadata.language_info = {"name": "python"}
        nbformat.write(notebook, path)
        return []
    new = [cell.id for cell, had in zip(notebook.cells, before, strict=True) if has_output(cell) and not had]
    return [f"{path.name}: cell {name}: run with --write, and commit what it prints" for name in new]


def has_output(cell: Any) -> bool:
    return bool(cell.get("outputs"))


if __name__ == "__main__":
    sys.exit(main())
