"""Tasks: text in, answer out, one file for each task. `pipeline` makes a task by name; `task.py` has the shared part.

Names, arguments and results are those of transformers.pipeline; each task's class states the differences.
"""

from npformer.tasks.pipelines import pipeline
from npformer.text.inputs import Pair

__all__ = ["Pair", "pipeline"]
