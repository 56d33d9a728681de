"""`Output`: a model's outputs by name."""

from __future__ import annotations

import numpy as np

from npformer.common.other_libraries import OUTPUT


class Output(dict[str, np.ndarray]):
    """A model's outputs under Hugging Face's names, as keys or attributes: output["logits"], output.logits.

    An integer index selects by order, as in transformers: output[0] is the first.
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
            raise AttributeError(
                f"{name}: not an output of the model; its outputs are {', '.join(self)}{line}"
            ) from None
