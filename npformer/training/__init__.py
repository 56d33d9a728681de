"""Training in NumPy: gradients of the same forward pass as in inference, Adam, and a loop that can be resumed.

Backward functions are below their forward functions, in `engine/functions.py` and in the modules that use this file.
`losses.py` has the objectives, `batch_gradients.py` the gradients of a batch, `optimizer.py` and `schedule.py` the
update, `trainer.py` the loop and `run_folder.py` its checkpoints. `data.py` reads files, `metrics.py` evaluates models,
and `start.py` saves models.
"""

from npformer.training.batch_gradients import Gradients, gradients
from npformer.training.data import LabelledText, label_ids, label_names, read_labelled
from npformer.training.dropout import Dropout, standard_rates
from npformer.training.initialize import initialize
from npformer.training.losses import Example, HeadLoss, TranslationLoss
from npformer.training.optimizer import Adam, clip_scale, global_norm, is_decayed
from npformer.training.schedule import constant, linear, noam
from npformer.training.start import save
from npformer.training.trainable import Trainable
from npformer.training.trainer import Recipe, Trainer

__all__ = [
    "Adam",
    "Dropout",
    "Example",
    "Gradients",
    "HeadLoss",
    "LabelledText",
    "Recipe",
    "Trainable",
    "Trainer",
    "TranslationLoss",
    "clip_scale",
    "constant",
    "global_norm",
    "gradients",
    "initialize",
    "is_decayed",
    "label_ids",
    "label_names",
    "linear",
    "noam",
    "read_labelled",
    "save",
    "standard_rates",
]


def __dir__() -> list[str]:
    return __all__
