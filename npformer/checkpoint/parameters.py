"""The parameters of a model: the name, shape and kind of each array, as declared by the parts of the model."""

from __future__ import annotations

from typing import NamedTuple

from npformer.config import Config
from npformer.families import family_of


class Parameter(NamedTuple):
    """An array of a model."""

    group: str  # including the number of the layer
    name: str  # "weight" or "bias"
    shape: tuple[int, ...]
    kind: str  # as in `Group`
    joined: int = 0  # as in `Group`
    start: float = 1.0  # as in `Group`

    @property
    def transposed(self) -> bool:
        """Whether the array is a linear weight, which is (out, in) in torch's files."""
        return self.kind == "linear" and self.name == "weight"


def parameters(config: Config, head: str | None = None) -> dict[str, Parameter]:
    """Maps npformer's flat name of each array of a model to its `Parameter`, in the order of the forward pass.

    head: a head to use instead of the config's.
    """
    result = {}
    for group, (shape, bias, kind, joined, start) in family_of(config).weights(config, head or config.head).items():
        result[f"{group}.weight"] = Parameter(group, "weight", shape, kind, joined, start)
        if bias is not None:
            result[f"{group}.bias"] = Parameter(group, "bias", (bias,), kind, joined)
    return result


def computed(name: str, config: Config) -> bool:
    """Whether an array is a table of sinusoids, which files may omit."""
    return config.positions.table != "learned" and name.endswith("embeddings.position.weight")
