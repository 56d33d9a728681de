"""A field of config.json with an entry for each layer, or a tensor, is refused if its size does not fit the model."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest

import npformer
from npformer import NpformerError
from npformer.checkpoint.convert import convert
from npformer.checkpoint.read import read_folder
from npformer.checkpoint.safetensors import write_tensors
from npformer.checkpoint.tree import sources
from npformer.engine.mechanisms import Window
from npformer.families import FAMILIES, read_config, write_config
from tests.support import tiny

FULL, SLIDING = "full_attention", "sliding_attention"
NAMES = [name for name in FAMILIES if name != "transformer"]


@lru_cache
def config(name):
    heads = list(FAMILIES[name].architectures.values())
    return tiny.config(name, next(each for each in ("sequence-classification", "translation", *heads) if each in heads))


def kinds_of(config):
    local = [any(isinstance(each, Window) for each in config.mechanisms_of(i)) for i in range(config.n_layers)]
    return [SLIDING if each else FULL for each in local]


@pytest.mark.parametrize("name", NAMES)
def test_layer_types_fit_the_layers_of_every_family(name):
    """Transformers checks the number and names of layer_types in every family, even if the model does not read them."""
    data = write_config(config(name))
    data.pop("layer_types", None)
    plain = read_config(data)
    kinds = kinds_of(plain)
    assert read_config({**data, "layer_types": kinds}) == plain
    wrong = (kinds[:-1], [*kinds, kinds[-1]], [], "abc", 3, {}, [FULL, "chunked_attention"], [[], {}], [None, None])
    for each in wrong:
        with pytest.raises(
            NpformerError, match=r"layer_types: expected full_attention or .* for each of 2 layers, got"
        ):
            read_config({**data, "layer_types": each})


@pytest.mark.parametrize("name", ["bert", "llama", "mistral", "qwen2", "qwen3", "phi3", "gemma", "olmo2", "t5"])
def test_layer_types_that_contradict_the_windows_are_refused(name):
    data = write_config(config(name))
    data.pop("layer_types", None)
    kinds = kinds_of(read_config(data))
    other = [FULL if each == SLIDING else SLIDING for each in kinds]
    for each in (other, [kinds[0], other[1]]):
        with pytest.raises(NpformerError, match=rf"layer_types: layer [01]: expected {kinds[0]}, .* got {other[0]}"):
            read_config({**data, "layer_types": each})


@pytest.mark.parametrize("name", ["bert", "llama", "qwen3"])
def test_layers_with_a_mixture_of_experts_are_refused(name):
    data = write_config(config(name))
    assert read_config({**data, "mlp_layer_types": ["dense", "dense"]}) == read_config(data)
    for each in (["dense"], ["dense", "sparse"], "dense", 3):
        with pytest.raises(NpformerError, match="mlp_layer_types: expected 'dense' for each of 2 layers"):
            read_config({**data, "mlp_layer_types": each})


@pytest.mark.parametrize("to", ["torch", "npformer"])
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "qwen3", "t5", "marian"])
def test_the_dtype_and_the_shape_of_every_tensor_are_checked(name, to, tmp_path):
    """The token table is also checked. Only a bias that Marian's files store as a row may have an additional axis.

    Each tensor is damaged in two of several ways, so that tensors of each kind are damaged in every way.
    """
    own = config(name)
    folder = convert(tiny.folder(tmp_path / "m", name, own.head), tmp_path / to, to)
    [path] = folder.glob("*.safetensors")
    arrays = {key: np.asarray(each).copy() for key, each in read_folder(folder, mapped=False).tensors.items()}
    as_rows = {each.names[0] for each in sources(own).values() if each.leading} if to == "torch" else set()
    assert as_rows == ({"final_logits_bias"} if (name, to) == ("marian", "torch") else set())
    for i, (key, array) in enumerate(arrays.items()):
        longer, integers = np.concatenate([array, array]), (50 * array).astype(np.int8)
        extra = [] if key in as_rows else [array[None]]
        damaged = [integers, integers.astype(np.int64), array > 0, longer, array[..., None], *extra]
        for each in (damaged[i % len(damaged)], damaged[(i + 3) % len(damaged)]):
            write_tensors(path, {**arrays, key: np.ascontiguousarray(each)}, {"format": "pt"})
            with pytest.raises(NpformerError, match=r"does not match its config\.json:\n  (wrong|missing)"):
                npformer.load(folder)
