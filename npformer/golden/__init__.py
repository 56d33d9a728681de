"""Golden files: one model's stages, to hold a port of it to, in any language and framework.

    golden.record(model, ["I love ice cream"]).save("g.safetensors")
    print(golden.compare(golden.load("g.safetensors"), arrays))            golden.assert_close(g, arrays) in a test

A golden file is a safetensors file. Text i of it, counted from 0, has these tensors, all in row-major order:

| tensor            | dtype | shape           | what                                                      |
| ----------------- | ----- | --------------- | --------------------------------------------------------- |
| `i/ids`           | I64   | (T,)            | its T token ids, special tokens and all                   |
| `i/segments`      | I64   | (T,)            | its token types; only of models that have them            |
| `i/positions`     | I64   | (T,)            | only where they are not 0 ... T - 1                       |
| `i/STAGE`         | F32   | see `stages.py` | the stage of this text alone, computed in float32         |
| `i/float64/STAGE` | F64   | the same        | the truth: the same weights, computed in float64          |

Shapes have no batch axis: (T, D), by head (H, T, K) and (H, T, T), of the text as a whole (D,) and (C,).

The metadata has `format` "npformer-golden", `version` "1" and `manifest`, a JSON object:

| key              | what                                                                                             |
| ---------------- | ------------------------------------------------------------------------------------------------ |
| `model`          | the name the model was loaded by                                                                 |
| `config`         | its config.json, as Hugging Face writes it                                                       |
| `weights_sha256` | of each weight in the order of our names: the name, then little-endian float32, linear (in, out) |
| `versions`       | of npformer and NumPy                                                                            |
| `tokens`         | T strings a text                                                                                 |
| `stages`         | the stages' names in firing order                                                                |
| `budgets`        | stage -> the largest distance from the truth that a correct float32 port may have (`record.py`)  |
"""

from npformer.golden.compare import Comparison, assert_close, compare
from npformer.golden.diagnose import Diagnosis, check_model, diagnose
from npformer.golden.file import Golden, load
from npformer.golden.record import record
from npformer.golden.tiny import TINY_FILE, tiny
from npformer.golden.torch_model import load_torch
from npformer.golden.weights import check_weights

__all__ = [
    "TINY_FILE",
    "Comparison",
    "Diagnosis",
    "Golden",
    "assert_close",
    "check_model",
    "check_weights",
    "compare",
    "diagnose",
    "load",
    "load_torch",
    "record",
    "tiny",
]
