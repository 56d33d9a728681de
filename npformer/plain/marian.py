"""Marian's translators: the Transformer of 2017 with reordered sinusoids. Junczys-Dowmunt et al., 2018, Marian.

In a row of the table, all sines come before all cosines. The activation is often SiLU, the logits have a bias, and
encoder and decoder may share one table of tokens.
"""

import numpy as np

from npformer.plain.heads import translate
from npformer.plain.transformer import transformer


def sinusoidal_halves(length, width):
    """sin(pos / 10000^(2i / D)) in column i and cos(pos / 10000^(2i / D)) in column D / 2 + i, (length, D).

    >>> sinusoidal_halves(2, 4).round(4).tolist()
    [[0.0, 0.0, 1.0, 1.0], [0.8415, 0.01, 0.5403, 1.0]]
    """
    angles = np.arange(length)[:, None] / 10000 ** (np.arange(0, width, 2) / width)  # (length, D / 2)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)[:, :width]


MODEL = transformer
HEADS = {"translation": translate}
