"""`Output`, a model's answers by name."""

from __future__ import annotations

import numpy as np

from npformer.common.other_libraries import OUTPUT


class Output(dict[str, np.ndarray]):
    """A model's answers under Hugging Face's names, as keys or attributes: output["logits"], output.logits.

    A whole number counts the answers, as in transformers: output[0] is the first.
    """

    def __missing__(self, key: object) -> np.ndarray:
        if type(key) is int and -len(self) <= key < len(self):
            return list(self.values())[key]
        raise KeyError(key)

    def __getattr__(self, name: str) -> np.ndarray:
        try:
            return self[name]
        except KeyError:
            line = f": {OUTPUT[name]}" if name in OUTPUT else ""
            raise AttributeError(f"the model's answers are {', '.join(self)}, not {name}{line}") from None
