"""The start and end of training: a checkpoint with a head for new labels, and the folder of a trained model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from npformer.base_model import BaseModel, check_model
from npformer.checkpoint import tree as layout
from npformer.checkpoint.archive import save_arrays
from npformer.checkpoint.hub import CHAT_TEMPLATE, TRANSLATION
from npformer.checkpoint.read import CONFIG, OWN_WEIGHTS, own_metadata, read_folder, read_tree
from npformer.common.errors import NpformerError
from npformer.common.files import new_folder, place_in_folder, read_bytes, written_whole
from npformer.common.limits import LIMITS, Limits
from npformer.config import Config
from npformer.engine.runtime.narrow import NarrowWeight
from npformer.families import family_of, read_config, write_config
from npformer.families.distilbert import DISTILBERT
from npformer.generation.settings import FILE as GENERATION
from npformer.text.legacy_files import MERGES_VOCABULARY
from npformer.text.special_tokens import SPECIAL_TOKENS_FILES
from npformer.text.tokenizer import longest_text
from npformer.text.tokenizer_class import FILES, SETTINGS, read_settings
from npformer.training.initialize import initialize

TOKENIZER = (SETTINGS, *SPECIAL_TOKENS_FILES, *FILES, MERGES_VOCABULARY)
GENERATES = {"causal-lm": (CHAT_TEMPLATE, GENERATION), "translation": TRANSLATION}
HEAD = "sequence-classification"
ENCODER = ("embeddings.", "layers.", "norm.")
STACKS = (*ENCODER, "encoder.", "decoder.")


def start(
    folder: Path, labels: Sequence[str], seed: int = 0, distilbert: bool = False, limits: Limits = LIMITS
) -> tuple[Config, layout.Tree, bool]:
    """Creates a classifier with these labels from the encoder in a folder. Also returns whether its head is reused.

    The head in the folder is reused if it has exactly these labels and `distilbert` is false. Otherwise the weights of
    a new head are drawn from N(0, 0.02^2). With `distilbert`, a BERT model is rewritten as a DistilBERT model.
    """
    stored = read_folder(folder, limits)
    described = read_config(stored.config, limits=limits)
    if described.decoder and HEAD not in family_of(described).architectures.values():
        kind = f"a {described.model_type} model, which has a decoder and no head for labels"
        raise NpformerError(f"{folder}: expected an encoder to fine-tune for labels, got {kind}")
    config, tree = read_tree(stored, np.dtype(np.float32)) if described.head == HEAD else (None, None)
    if config is not None and tree is not None and config.labels == tuple(labels) and not distilbert:
        return config, tree, True
    if stored.own:
        stored = stored._replace(tensors={k: each for k, each in stored.tensors.items() if k.startswith(STACKS)})
    config, tree = read_tree(stored, np.dtype(np.float32), "translation" if described.decoder else "base")
    tree.pop("head", None)
    if distilbert:
        config, tree = as_distilbert(config, tree)
    config = family_of(config).check(replace(config, head=HEAD, labels=tuple(labels), problem_type=None))
    fresh = layout.flatten(initialize(config, seed))
    known = {name: array for name, array in layout.flatten(tree).items() if name in fresh}
    return config, layout.own_to_tree({**fresh, **known}, config), False


def as_distilbert(config: Config, tree: layout.Tree) -> tuple[Config, layout.Tree]:
    """Rewrites a BERT model without a head as an equivalent DistilBERT model for single texts.

    E[ids] + P[positions] + S[0] = E[ids] + (P + S[0])[positions]. The pooler is dropped. Raises NpformerError for a
    model that is not BERT, or if the eps of its norms differs from that of DistilBERT.
    """
    if config.model_type != "bert" or config.eps != 1e-12:
        raise NpformerError(f"expected a bert model with eps 1e-12, got {config.model_type} with eps {config.eps}")
    flat = layout.flatten(tree)
    positions = flat["embeddings.position.weight"] + flat["embeddings.segment.weight"][0]
    kept = {name: array for name, array in flat.items() if name.startswith(ENCODER) and ".segment." not in name}
    kept["embeddings.position.weight"] = positions
    config = replace(config, model_type="distilbert", n_token_types=0, **DISTILBERT.constants)
    return config, layout.own_to_tree(kept, config)


def companions(source: Path, config: Config, limit: int | None = None) -> dict[str, bytes]:
    """Returns the tokenizer files in a folder, by name. A `limit` replaces a longer maximum length of the tokenizer.

    For a model that generates text, the chat template and the generation settings are included.
    """
    names = (*TOKENIZER, *GENERATES.get(config.head, ()))
    kept = {name: read_bytes(source / name, "json") for name in names if (source / name).exists()}
    if limit is not None:
        settings = {**read_settings(source), "model_max_length": min(limit, longest_text(source, config))}
        kept[SETTINGS] = (json.dumps(settings, indent=2, ensure_ascii=False) + "\n").encode()
    return kept


def save(model: BaseModel, folder: str | Path) -> None:
    """Writes a model to a new folder: weights, config, and the tokenizer files of the folder that it was loaded from.

    The modules of a sentence-transformers folder, such as its pooling, are not written.

    Parameters
    ----------
    model : Model or Seq2Seq with float32 or float64 weights
    folder : str or Path

    Raises
    ------
    NpformerError
        If the folder exists or cannot be written, or the weights are stored in fewer bytes (`keep` of
        `npformer.load`).

    Examples
    --------
    >>> from npformer.training import Trainable
    >>> model = npformer.load("distilbert-sst2")
    >>> weights = Trainable(model.weights, model.config)
    >>> weights.flat["head.output.bias"][:] = 1  # a step of training
    >>> save(npformer.Model(model.config, weights.tree, model.folder), "mine")
    >>> npformer.load("./mine").weights["head"]["output"]["bias"]
    array([1., 1.], dtype=float32)
    """
    check_model("save", model)
    for name, array in layout.flatten(dict(model.weights)).items():
        if isinstance(array, NarrowWeight):
            raise NpformerError(f"{name}: expected float32, got {array.stored}; load the model without keep")
    beside = {} if model.folder is None else companions(model.folder, model.config)
    with new_folder(Path(folder)) as new:
        write_model(new, beside, model.config, dict(model.weights))


def write_model(folder: Path, beside: Mapping[str, bytes], config: Config, tree: layout.Tree) -> None:
    """Writes a checkpoint folder: the weights, other files, and config.json last. Each file is written atomically."""
    description = json.dumps(write_config(config), indent=2, ensure_ascii=False) + "\n"
    arrays = layout.stored(tree, config)
    save_arrays(place_in_folder(folder / OWN_WEIGHTS), arrays, own_metadata(arrays))
    for name, content in {**beside, CONFIG: description.encode()}.items():
        with written_whole(place_in_folder(folder / name)) as partial:
            partial.write_bytes(content)
