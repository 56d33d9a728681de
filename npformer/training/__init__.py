"""Training in NumPy: the gradients of the one forward, Adam, and a loop that can be stopped at any step.

Backward passes stand below their forwards, in `functions.py` and on. Here `gradients.py` makes a batch's gradients,
`optimiser.py` and `schedule.py` use them, `trainer.py` repeats it; `data.py` reads files, `project.py` draws
embeddings.
"""

from npformer.training.data import Row, label_ids, label_names, read_rows
from npformer.training.dropout import Dropout, standard_rates
from npformer.training.gradients import Example, Gradients, HeadLoss, gradients
from npformer.training.initialise import initialise
from npformer.training.optimiser import Adam, clip_scale, global_norm, is_decayed
from npformer.training.project import project
from npformer.training.schedule import constant, linear, noam
from npformer.training.trainable import Trainable
from npformer.training.trainer import Recipe, Run

__all__ = [
    "Adam",
    "Dropout",
    "Example",
    "Gradients",
    "HeadLoss",
    "Recipe",
    "Row",
    "Run",
    "Trainable",
    "clip_scale",
    "constant",
    "global_norm",
    "gradients",
    "initialise",
    "is_decayed",
    "label_ids",
    "label_names",
    "linear",
    "noam",
    "project",
    "read_rows",
    "standard_rates",
]
