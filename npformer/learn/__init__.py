"""The course: a learner writes their own Transformer in one file of plain NumPy, and npformer corrects it.

    npformer.learn.start("my_transformer")      writes the file
    npformer.learn.check("my_transformer")      runs it in a separate process, and explains what is wrong

`chapters/` has the exercises, and `right.py` computes their answers with npformer's functions. `judge.py` judges a
function, `causes.py` names the mistake in it, and `doctor.py` runs the port diagnosis (`golden.diagnose`) on it.
`running.py` starts the process `worker.py`, which executes the file. `look.py` draws the learner's model. The command
is `npformer learn`.
"""

from npformer.learn.checking import check
from npformer.learn.look import look
from npformer.learn.report import Report
from npformer.learn.start import hint, solution, start

__all__ = ["Report", "check", "hint", "look", "solution", "start"]


def __dir__() -> list[str]:
    return __all__
