"""Tasks: text in, answer out, one file a task. `pipeline` makes one by name; `task.py` holds what they share.

Names, arguments and results are those of transformers.pipeline; what differs is said in each task's class.
"""

from npformer.tasks.pipeline import pipeline
from npformer.text.inputs import Pair

__all__ = ["Pair", "pipeline"]
