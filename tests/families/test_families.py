"""The families' tables, compared with Transformers' state dicts of every architecture: names and shapes."""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from npformer.checkpoint import flatten, load_folder, module_path, to_torch, to_tree, unflatten
from npformer.checkpoint import tree as layout
from npformer.checkpoint.parameters import parameters
from npformer.checkpoint.safetensors import read_tensors, write_tensors
from npformer.common.errors import NpformerError
from npformer.families import FAMILIES, family_of, read_config
from npformer.families.llama import Llama
from tests.support import draw, tiny

ARCHITECTURES = json.loads((Path(__file__).parents[1] / "golden/checkpoints/architectures.json").read_text())


@cache
def drawn(name):
    return draw.tensors(ARCHITECTURES[name]["tensors"])


def random_checkpoint(name, **changes):
    """Returns an architecture's config and random tensors of its shapes; tied tensors occur once, as in safetensors."""
    described = ARCHITECTURES[name]
    config, tensors = read_config({**described["config"], **changes}), drawn(name).copy()
    if config.tied:
        tensors = {key: array for key, array in tensors.items() if key not in described["tied"]}
    return config, tensors


#: A class with several heads -> prefixes of the tensors that its first head does not need.
MORE_THAN_A_HEAD = {
    "BertForPreTraining": ("cls.seq_relationship.", "bert.pooler."),
    "AlbertForPreTraining": ("sop_classifier.", "albert.pooler."),
    "GPT2DoubleHeadsModel": ("multiple_choice_head.",),
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_survives_a_round_trip(name):
    config, tensors = random_checkpoint(name)
    tree = to_tree(tensors, config)
    flat = flatten(tree)
    for array in flat.values():
        assert array.dtype == np.float32
        assert not array.flags.writeable
    back = to_torch(tree, config)
    unused = tensors.keys() - back.keys()
    if name in MORE_THAN_A_HEAD:  # only the first head of the class is read
        unused -= {key for key in unused if key.startswith(MORE_THAN_A_HEAD[name])}
    assert not unused
    assert back.keys() <= tensors.keys()
    for key, array in back.items():
        assert np.array_equal(array, tensors[key])
    again = flatten(to_tree(back, config, np.float64))
    assert all(array.dtype == np.float64 and np.array_equal(array, flat[key]) for key, array in again.items())


def test_linear_weights_are_transposed_and_contiguous():
    config, tensors = random_checkpoint("DistilBertForSequenceClassification")
    hidden = to_tree(tensors, config)["layers"][1]["ffn"]["hidden"]["weight"]
    assert np.array_equal(hidden, tensors["distilbert.transformer.layer.1.ffn.lin1.weight"].T)
    assert hidden.shape == (6, 10)
    assert hidden.flags.c_contiguous


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_module_paths_are_the_modules_of_the_model(name):
    described = ARCHITECTURES[name]
    config = read_config(described["config"])
    sources = layout.sources(config)
    modules = described.get("modules") or {tensor.rpartition(".")[0] for tensor in described["tensors"]}
    for ours, parameter in parameters(config).items():
        path = module_path(config, parameter.group)
        if not sources[ours].alone:  # several groups of weights share a module
            assert path is None
        else:
            assert path in modules
    for other in (
        "logits",
        "layers.2.ffn.hidden",
        "layers.*.ffn.hidden",
        "layers.0.attention.scores",
        "layers.0",
    ):
        assert module_path(config, other) is None


def test_module_paths_by_name():
    base, _ = random_checkpoint("DistilBertModel")
    classifier, _ = random_checkpoint("DistilBertForSequenceClassification")
    assert module_path(classifier, "layers.1.attention.query") == "distilbert.transformer.layer.1.attention.q_lin"
    assert module_path(base, "layers.1.attention.query") == "transformer.layer.1.attention.q_lin"
    assert (module_path(classifier, "pooler"), module_path(base, "pooler")) == ("pre_classifier", None)


@pytest.mark.parametrize("name", ["DistilBertForMaskedLM", "BertForMaskedLM"])
def test_a_tied_projection(name):
    config, tensors = random_checkpoint(name)
    tree = to_tree(tensors, config)
    token = tree["embeddings"]["token"]["weight"]
    assert np.shares_memory(tree["head"]["output"]["weight"], token)
    described = ARCHITECTURES[name]
    stored_twice = {**tensors, next(key for key in described["tied"] if key.endswith("weight")): token.copy()}
    again = to_tree(stored_twice, config)
    assert np.shares_memory(again["head"]["output"]["weight"], again["embeddings"]["token"]["weight"])
    assert to_torch(again, config).keys() == tensors.keys()


@pytest.mark.parametrize("name", ["DistilBertForMaskedLM", "BertForMaskedLM"])
@pytest.mark.parametrize("tied", [False, True])
def test_an_untied_projection_is_read(name, tied):
    """If config.json says that tables are tied but the checkpoint contains two, both are used, as in Transformers 5."""
    config, tensors = random_checkpoint(name, tie_word_embeddings=False)
    config = read_config({**ARCHITECTURES[name]["config"], "tie_word_embeddings": tied})
    (key,) = (key for key in ARCHITECTURES[name]["tied"] if key.endswith("weight"))
    tree = to_tree(tensors, config)
    assert np.array_equal(tree["head"]["output"]["weight"], tensors[key].T)
    assert np.array_equal(to_torch(tree, config)[key], tensors[key])
    if not tied:
        del tensors[key]
        with pytest.raises(NpformerError, match=rf"missing: head.output.weight \({key}\)"):
            to_tree(tensors, config)


@pytest.mark.parametrize("stored", [{"bias"}, {"decoder.bias"}, {"bias", "decoder.bias"}])
def test_bert_s_vocabulary_bias_under_either_name(stored):
    config, tensors = random_checkpoint("BertForMaskedLM")
    bias = tensors.pop("cls.predictions.bias")
    tensors |= {f"cls.predictions.{name}": bias for name in stored}
    assert np.array_equal(to_tree(tensors, config)["head"]["output"]["bias"], bias)


@pytest.mark.parametrize(
    "name", ["DistilBertModel", "DistilBertForMaskedLM", "BertModel", "BertForTokenClassification"]
)
def test_prefix_present_or_absent(name):
    config, tensors = random_checkpoint(name)
    prefix = family_of(config).prefix
    expected = flatten(to_tree(tensors, config))
    bare = {key.removeprefix(prefix): array for key, array in tensors.items()}
    full = {key if key.startswith((prefix, "vocab", "classifier")) else prefix + key: tensors[key] for key in tensors}
    for variant in (bare, full):
        found = flatten(to_tree(variant, config))
        assert found.keys() == expected.keys()
        assert all(np.array_equal(found[key], expected[key]) for key in found)


def test_old_names_of_norms_and_buffers():
    config, tensors = random_checkpoint("BertForMaskedLM")
    old = {
        key.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): array
        for key, array in tensors.items()
    }
    old["bert.embeddings.position_ids"] = np.arange(8)[None]
    assert "bert.embeddings.LayerNorm.gamma" in old
    found, expected = flatten(to_tree(old, config)), flatten(to_tree(tensors, config))
    assert all(np.array_equal(found[key], expected[key]) for key in expected)
    with pytest.raises(NpformerError, match="stored twice"):
        to_tree({**old, "bert.embeddings.LayerNorm.weight": old["bert.embeddings.LayerNorm.gamma"]}, config)
    with pytest.raises(NpformerError, match="stored twice"):
        to_tree({**tensors, "embeddings.LayerNorm.weight": tensors["bert.embeddings.LayerNorm.weight"]}, config)


@pytest.mark.parametrize("family", ["Bert", "Albert"])
@pytest.mark.parametrize("named", ["ForPreTraining", "ForMaskedLM"])
def test_a_checkpoint_that_has_more_heads_than_one(family, named):
    """bert-base-uncased names BertForMaskedLM, but its weights also contain the pooler and the next-sentence head."""
    _, tensors = random_checkpoint(f"{family}ForPreTraining")
    described = ARCHITECTURES[f"{family}{named}"]["config"]
    for head, groups in {
        "masked-lm": {"embeddings", "layers", "head"},
        "next-sentence": {"embeddings", "layers", "pooler", "head"},
        "base": {"embeddings", "layers", "pooler"},
    }.items():
        assert to_tree(tensors, read_config(described, head)).keys() == groups
    with pytest.raises(NpformerError, match=r"missing: head.output.weight \(qa_outputs.weight\)"):
        to_tree(tensors, read_config(described, "question-answering"))


def test_bert_s_pooler_is_optional_in_the_base_model_only():
    config, tensors = random_checkpoint("BertModel")
    without = {key: array for key, array in tensors.items() if "pooler" not in key}
    tree = to_tree(without, config)
    assert "pooler" not in tree
    assert to_torch(tree, config).keys() == without.keys()
    half = {**without, "pooler.dense.bias": tensors["pooler.dense.bias"]}
    with pytest.raises(NpformerError, match=r"missing: pooler.weight \(pooler.dense.weight\)"):
        to_tree(half, config)
    config, tensors = random_checkpoint("BertForSequenceClassification")
    with pytest.raises(NpformerError, match=r"missing: pooler.weight \(bert.pooler.dense.weight\)"):
        to_tree({key: array for key, array in tensors.items() if "pooler" not in key}, config)


def test_mismatches_are_listed_in_both_names():
    config, tensors = random_checkpoint("DistilBertForSequenceClassification")
    path = "distilbert.transformer.layer.1"
    tensors[f"{path}.ffn.lin1.weight"] = np.zeros((10, 5), np.float32)
    tensors[f"{path}.attention.q_lin.bias"] = np.zeros(6, np.int64)
    del tensors["classifier.bias"]
    tensors["distilbert.transformer.layer.2.ffn.lin1.bias"] = np.zeros(10, np.float32)
    tensors["lora.weight"] = np.zeros(1, np.float32)
    with pytest.raises(NpformerError) as error:
        to_tree(tensors, config)
    assert str(error.value).splitlines() == [
        "the checkpoint does not match its config.json:",
        "  missing: head.output.bias (classifier.bias)",
        "  unknown: distilbert.transformer.layer.2.ffn.lin1.bias",
        "  unknown: lora.weight",
        f"  wrong: layers.1.attention.query.bias ({path}.attention.q_lin.bias): expected floating point, got int64",
        f"  wrong: layers.1.ffn.hidden.weight ({path}.ffn.lin1.weight), transposed: expected (6, 10), got (5, 10)",
    ]


def test_a_long_list_is_cut():
    config, tensors = random_checkpoint("BertModel")
    tensors |= {"x" * 1000 + str(i): np.zeros(1, np.float32) for i in range(1000)}
    with pytest.warns(UserWarning, match="does not use") as caught:
        to_tree(tensors, config)
    assert "unknown: and 988 more" in str(caught[0].message)
    assert len(str(caught[0].message)) < 5000


@pytest.mark.parametrize("name", {each["config"]["model_type"]: name for name, each in ARCHITECTURES.items()}.values())
def test_a_tensor_that_is_not_needed_is_a_warning_that_names_it(name):
    """As in Transformers, an unknown tensor causes only a warning. Tensors of other heads and buffers are ignored."""
    config, tensors = random_checkpoint(name)
    expected = flatten(to_tree(tensors, config))
    with pytest.warns(UserWarning, match="tensors that the model does not use.*\n  unknown: lora.weight$") as caught:
        found = flatten(to_tree({**tensors, "lora.weight": np.zeros(1, np.float32)}, config))
    assert caught[0].filename == __file__
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[key], expected[key]) for key in expected)


def test_a_converted_checkpoint_has_its_head_left_out_without_a_warning():
    config, tensors = random_checkpoint("BertForTokenClassification")
    stored = layout.stored(to_tree(tensors, config), config)
    base = read_config(ARCHITECTURES["BertForTokenClassification"]["config"], "base")
    assert layout.own_to_tree(stored, base).keys() == {"embeddings", "layers"}


def test_flatten_and_unflatten_are_inverses():
    config, tensors = random_checkpoint("BertForMaskedLM")
    tree = to_tree(tensors, config)
    assert isinstance(tree["layers"], list)
    assert len(tree["layers"]) == 2
    flat = flatten(tree)
    assert flat["layers.1.ffn.hidden.bias"] is tree["layers"][1]["ffn"]["hidden"]["bias"]
    again = flatten(unflatten(flat))
    assert list(again) == list(flat)
    assert all(again[name] is flat[name] for name in flat)


@pytest.mark.parametrize("head", ["base", "causal-lm"])
@pytest.mark.parametrize("model_type", sorted(name for name, each in FAMILIES.items() if isinstance(each, Llama)))
def test_stored_frequencies_are_not_read(model_type, head, tmp_path):
    """Earlier versions of Transformers stored frequencies, for example in Llama 2's files. They cause no warning."""
    folder = tiny.folder(tmp_path / "m", model_type, head)
    tensors, _ = read_tensors(folder / "model.safetensors")
    prefix = "" if head == "base" else "model."
    old = {f"{prefix}layers.{i}.self_attn.rotary_emb.inv_freq": np.ones(4, np.float32) for i in range(2)}
    assert any(name.startswith(f"{prefix}layers.1.self_attn.") for name in tensors)
    write_tensors(folder / "model.safetensors", {name: np.array(a) for name, a in tensors.items()} | old, {})
    load_folder(folder)
