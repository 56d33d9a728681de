"""Golden files: the stages of a model, for testing its ports in any language and framework.

    golden.record(model, ["I love ice cream"]).save("g.safetensors")
    print(golden.compare(golden.load("g.safetensors"), arrays))            golden.assert_close(g, arrays) in a test

A golden file is a safetensors file; `docs/reference/golden-format.md` describes it, with readers in Rust and C.
"""

from npformer.golden.budget import RATIOS
from npformer.golden.compare import Comparison, assert_close, compare
from npformer.golden.conformance import Verdict, run_suite
from npformer.golden.diagnose import diagnose
from npformer.golden.diagnosis import Diagnosis
from npformer.golden.format import Golden, load
from npformer.golden.record import check_model, record
from npformer.golden.suite import read_suite, suite
from npformer.golden.tiny import TINY_FILE, tiny
from npformer.golden.torch_model import load_torch
from npformer.golden.weights import check_weights

DTYPES = tuple(RATIOS)  # the precisions that a port may have

__all__ = [
    "DTYPES",
    "TINY_FILE",
    "Comparison",
    "Diagnosis",
    "Golden",
    "Verdict",
    "assert_close",
    "check_model",
    "check_weights",
    "compare",
    "diagnose",
    "load",
    "load_torch",
    "read_suite",
    "record",
    "run_suite",
    "suite",
    "tiny",
]


def __dir__() -> list[str]:
    return __all__
