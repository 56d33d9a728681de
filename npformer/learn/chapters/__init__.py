"""The course: six chapters of exercises. Each chapter builds on the earlier chapters."""

from npformer.learn.chapters import answer, attention, encoders, gradients, whole_gradient, words, writing
from npformer.learn.contents import CONTENTS, names
from npformer.learn.exercise import Chapter, Exercise

_MODULES = (words, attention, encoders, answer, gradients, whole_gradient, writing)
_FOUND = {each.name: each for module in _MODULES for each in vars(module).values() if isinstance(each, Exercise)}

CHAPTERS = tuple(
    Chapter(title, tuple(_FOUND[name] for name in names(learnt))) for title, (_, learnt) in CONTENTS.items()
)
EXERCISES = {exercise.name: exercise for chapter in CHAPTERS for exercise in chapter.exercises}
