"""`Output`: the outputs of a model by name."""

from __future__ import annotations

import numpy as np

from npformer.common.other_libraries import OUTPUT


class Output(dict[str, np.ndarray]):
    """The outputs of a model, with Hugging Face's names as keys and attributes: output["logits"], output.logits.

    As in Transformers, an integer index selects an output by its position: output[0] is the first.
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
