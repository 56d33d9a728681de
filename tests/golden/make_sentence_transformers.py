"""Makes the golden answers of sentence-transformers' classes, or with --check makes them again and compares them.

    python tests/golden/make_sentence_transformers.py [--check]

It needs the `oracle` group (torch, sentence-transformers). It makes `sentence_transformers.json`: for each class the
results of its methods on a tiny model's folder, in the order of `CASES`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.golden.make_tasks import TEXTS, same
from tests.support import tiny
from tests.support.sentence_folders import write_modules

FILE = Path(__file__).parent / "sentence_transformers.json"
PROMPTS = {"query": "the news: ", "document": "", "web": "at "}
PAIRS = [(TEXTS[0], text) for text in TEXTS]
MODULES = "sentence_transformers."

#: Class -> the arguments that make its folder, and the calls: method, arguments, keywords.
CASES: dict[str, dict[str, Any]] = {
    "SentenceTransformer": {
        "model": {"model_type": "bert", "head": "base", "d_model": 8, "n_heads": 2},
        "modules": [
            (
                f"{MODULES}models.Pooling",
                {"embedding_dimension": 8, "pooling_mode": "mean", "include_prompt": False},
                {},
            )
        ],
        "settings": {"max_seq_length": 20},
        "described": {"prompts": PROMPTS, "similarity_fn_name": "euclidean", "default_prompt_name": "web"},
        "calls": [
            ("encode", [TEXTS], {}),
            ("encode", [TEXTS[0]], {}),
            ("encode", [TEXTS, "query"], {}),
            ("encode", [TEXTS, None, "ice: "], {"normalize_embeddings": True, "truncate_dim": 3}),
            ("encode", [TEXTS], {"prompt": "", "batch_size": 2, "show_progress_bar": False, "precision": "float32"}),
            ("encode_query", [TEXTS], {"convert_to_numpy": True, "device": "cpu"}),
            ("encode_query", [TEXTS], {"prompt_name": "web"}),
            ("encode_document", [TEXTS], {"output_value": "sentence_embedding"}),
            ("encode_document", [TEXTS], {"prompt": "ice: "}),
            ("get_embedding_dimension", [], {}),
            ("get_sentence_embedding_dimension", [], {}),
            ("similarity", [np.eye(3, 8, dtype=np.float32), np.ones((2, 8), np.float32)], {}),
        ],
    },
    "SparseEncoder": {
        "model": {"model_type": "bert", "head": "masked-lm", "d_model": 8, "n_heads": 2, "seed": 2},
        "modules": [(f"{MODULES}sparse_encoder.modules.SpladePooling", {"pooling_strategy": "max"}, {})],
        "encoder": f"{MODULES}base.modules.transformer.Transformer",
        "settings": {"transformer_task": "fill-mask"},
        "described": {"model_type": "SparseEncoder", "prompts": PROMPTS},
        "calls": [
            ("encode", [TEXTS], {"max_active_dims": 9}),
            ("encode", [TEXTS[0]], {"prompt": "ice: ", "max_active_dims": 9}),
            ("encode_query", [TEXTS[:2]], {"max_active_dims": 9}),
            ("encode_document", [TEXTS[:2]], {"max_active_dims": 9}),
            ("decode", [np.array([[0, 0, 0, 0, 0, 3, 0, 1, 2], [0, 0, 0, 0, 0, 0, 0, 1, 0]], np.float32)], {}),
            ("decode", [np.array([0, 0, 0, 0, 0, 3, 0, 1, 2], np.float32)], {"top_k": 2}),
            ("sparsity", [np.array([[0, 3, 0, 1], [0, 0, 0, 1]], np.float32)], {}),
            ("similarity", [np.eye(3, 8, dtype=np.float32), np.ones((2, 8), np.float32)], {}),
            ("get_embedding_dimension", [], {}),
        ],
    },
    "CrossEncoder": {
        "model": {"model_type": "bert", "head": "sequence-classification", "labels": ("SCORE",), "seed": 3},
        "modules": [],
        "encoder": f"{MODULES}base.modules.transformer.Transformer",
        "settings": {
            "transformer_task": "sequence-classification",
            "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}},
            "module_output_name": "scores",
        },
        "described": {
            "model_type": "CrossEncoder",
            "activation_fn": "torch.nn.modules.linear.Identity",
            "prompts": PROMPTS,
            "default_prompt_name": "web",
        },
        "calls": [
            ("predict", [PAIRS], {}),
            ("predict", [[list(each) for each in PAIRS]], {"prompt": "ice: ", "batch_size": 2}),
            ("predict", [PAIRS, "query"], {"apply_softmax": True, "convert_to_numpy": True}),
            ("predict", [PAIRS[0]], {"show_progress_bar": False}),
            ("predict", [list(PAIRS[0])], {}),
            ("rank", [TEXTS[0], TEXTS], {}),
            ("rank", [TEXTS[0], TEXTS], {"top_k": 2, "return_documents": True, "prompt_name": "query"}),
        ],
    },
}


def write_folder(path: Path, name: str, **model: Any) -> Path:
    """Makes the folder for a class's case. model: settings of its tiny model that differ from the defaults."""
    case = CASES[name]
    more = {"encoder": case["encoder"]} if "encoder" in case else {}
    folder = tiny.folder(path, **{**case["model"], **model})
    return write_modules(folder, case["modules"], settings=case["settings"], **case["described"], **more)


def as_lists(value: Any) -> Any:
    """Converts an answer to JSON values: arrays and tuples become lists."""
    return json.loads(json.dumps(value, default=lambda each: each.tolist()))


def answers(name: str, folder: Path) -> list[Any]:
    import sentence_transformers
    import torch

    model = getattr(sentence_transformers, name)(str(folder), device="cpu")
    found = []
    for method, arguments, options in CASES[name]["calls"]:
        given = [torch.from_numpy(each) if isinstance(each, np.ndarray) else each for each in arguments]
        answer = getattr(model, method)(*given, **options)
        found.append(as_lists(answer.to_dense() if isinstance(answer, torch.Tensor) else answer))
    return found


def main() -> int:
    with tempfile.TemporaryDirectory() as temporary:
        made = {name: answers(name, write_folder(Path(temporary) / name, name)) for name in CASES}
    if "--check" in sys.argv[1:]:
        equal = same(made, json.loads(FILE.read_text()))
        print("as committed" if equal else "differs from what sentence-transformers gives")
        return int(not equal)
    FILE.write_text(
        "{\n" + ",\n".join(f"{json.dumps(k)}:{json.dumps(v, separators=(',', ':'))}" for k, v in made.items()) + "\n}\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
