"""The inputs of the golden gradients, used by `make_gradients.py` and the tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from npformer.config import Config, Decoder
from npformer.engine.runtime.packing import Text
from npformer.families.torch_nn import TORCH_MODULES

MODELS = (
    "distilbert-base", "distilbert-sequence-classification", "distilbert-token-classification",
    "distilbert-question-answering", "distilbert-masked-lm", "distilbert-masked-lm-untied",
    "distilbert-multiple-choice", "distilbert-relu", "bert-base", "bert-sequence-classification",
    "bert-token-classification", "bert-question-answering", "bert-masked-lm", "bert-next-sentence",
    "bert-multiple-choice", "bert-gelu-new", "bert-relu", "bert-silu",
)  # fmt: skip
TRAINED = "distilbert-sequence-classification"
SETTINGS = {"steps": 50, "warmup": 10, "learning_rate": 1e-3, "weight_decay": 0.01, "clip": 1.0}
TRANSLATOR = TORCH_MODULES.config(
    "translation", vocab_size=31, d_model=16, n_heads=4, n_layers=2, d_ffn=24, max_length=16, final_norm=True,
    activation="relu", eps=1e-5, decoder=Decoder(n_layers=2, n_heads=4, d_ffn=24, vocab_size=29, end_ids=(1,)),
)  # fmt: skip
SMOOTHING = 0.1
LENGTHS = (9, 5, 5, 1, 7, 9)


def texts(config: Config) -> list[Text]:
    """Texts of several lengths, including two adjacent texts of equal length."""
    random = np.random.default_rng(1)
    return [
        Text(random.integers(1, config.vocab_size, n), random.integers(0, 2, n) if config.n_token_types else None)
        for n in LENGTHS
    ]


def targets(config: Config) -> list[Any]:
    """The target of each text, or of each pair of texts for multiple choice."""
    random = np.random.default_rng(2)
    if config.head == "question-answering":
        return [tuple(sorted(random.integers(0, n, 2))) for n in LENGTHS]
    if config.head in ("token-classification", "masked-lm"):
        return [np.where(random.random(n) < 0.3, -100, random.integers(0, config.n_outputs, n)) for n in LENGTHS]
    if config.head == "multiple-choice":
        return [int(each) for each in random.integers(0, 2, len(LENGTHS) // 2)]
    return [int(each) for each in random.integers(0, max(config.n_outputs, 1), len(LENGTHS))]


def padded(config: Config) -> dict[str, np.ndarray]:
    """The same inputs as arguments for transformers, padded on the right."""
    mask = np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]
    given = {"input_ids": np.zeros(mask.shape, np.int64), "attention_mask": mask.astype(np.int64)}
    given["input_ids"][mask] = np.concatenate([text.ids for text in texts(config)])
    if config.n_token_types:
        given["token_type_ids"] = np.zeros(mask.shape, np.int64)
        given["token_type_ids"][mask] = np.concatenate([text.token_type_ids for text in texts(config)])
    if config.head in ("token-classification", "masked-lm"):
        given["labels"] = np.full(mask.shape, -100)
        given["labels"][mask] = np.concatenate(targets(config))
    elif config.head == "question-answering":
        given["start_positions"], given["end_positions"] = np.array(targets(config)).T.copy()
    elif config.head != "base":
        given["labels"] = np.array(targets(config))
    if config.head == "multiple-choice":
        given = {key: a if key == "labels" else a.reshape(-1, 2, a.shape[-1]) for key, a in given.items()}
    return given


def weights_of_answers(config: Config) -> dict[str, np.ndarray]:
    """Random factors, by token and by text: a base model's loss is the sum of its answers times these factors."""
    random = np.random.default_rng(3)
    wave = {"last_hidden_state": random.standard_normal((sum(LENGTHS), config.d_model))}
    if config.model_type == "bert":
        wave["pooler_output"] = random.standard_normal((len(LENGTHS), config.d_model))
    return wave


def batches() -> Iterator[tuple[list[np.ndarray], np.ndarray]]:
    """The ids and labels of each training step."""
    random = np.random.default_rng(4)
    for _ in range(int(SETTINGS["steps"])):
        lengths = random.integers(2, 12, 8)
        ids = [random.integers(1, 37, n) for n in lengths]
        yield ids, np.array([int(each[0]) % 5 for each in ids])


def pairs() -> Iterator[list[tuple[np.ndarray, np.ndarray]]]:
    """Ids of sources and targets for each training step: a target is its source reversed, with different ids."""
    random = np.random.default_rng(5)
    for _ in range(int(SETTINGS["steps"])):
        sources = [random.integers(2, 29, n) for n in random.integers(1, 10, 6)]
        yield [(each, (each[::-1] + 3) % 27 + 2) for each in sources]


def summary(truth: np.ndarray) -> tuple[float, float, float, float]:
    """max |truth|, sum |truth|, and the sums of truth times cos(i) and times cos(1.7 i), for index i."""
    flat, place = truth.reshape(-1).astype(np.float64), np.arange(truth.size, dtype=np.float64)
    return (
        float(np.abs(flat).max()),
        float(np.abs(flat).sum()),
        float(flat @ np.cos(place)),
        float(flat @ np.cos(place * 1.7)),
    )
