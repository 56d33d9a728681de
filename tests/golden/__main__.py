"""Makes all golden values, or with --check makes them again and compares them with the committed ones.

    python -m tests.golden [--check]

Each script runs in a fork of this process, so that transformers and torch are imported once.
"""

from __future__ import annotations

import multiprocessing
import runpy
import sys
from pathlib import Path

import transformers.pipelines  # noqa: F401


def main() -> int:
    failed = []
    for script in sorted(Path(__file__).parent.glob("make*.py")):
        print(f"== {script.name} {' '.join(sys.argv[1:])}", flush=True)
        process = multiprocessing.get_context("fork").Process(
            target=runpy.run_path, args=(str(script),), kwargs={"run_name": "__main__"}
        )
        process.start()
        process.join()
        if process.exitcode:
            failed.append(script.name)
    print(f"failed: {', '.join(failed)}" if failed else "every script succeeded")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
