"""The course: a learner writes their own Transformer in one file of plain NumPy, and npformer corrects it.

    npformer.learn.start("my_transformer")      writes the file
    npformer.learn.check("my_transformer")      runs the file in a separate process, and explains mistakes
    npformer.learn.grade("submissions")         checks the files of a class

`contents.py` lists the functions to write. Each function is on a plain page, which has the right answer.
`chapters/` has their exercises: cases, hints, and mistakes, which are edits of the page's text (`programs.py`).
`template.py` makes the learner's file. `judge.py` judges a function, and `causes.py` names the mistake in it.
`running.py` starts the process `worker.py`, which executes the file (`source.py`). `look.py` draws the learner's model,
and `grading.py` checks the files of a class. The command is `npformer learn`.
"""

from npformer.learn.checking import check
from npformer.learn.grading import Grade, grade
from npformer.learn.look import look
from npformer.learn.report import Report
from npformer.learn.reset import reset
from npformer.learn.start import hint, solution, start

__all__ = ["Grade", "Report", "check", "grade", "hint", "look", "reset", "solution", "start"]


def __dir__() -> list[str]:
    return __all__
