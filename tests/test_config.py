"""Config: reading and writing Hugging Face's config.json for every architecture, and errors."""

import dataclasses
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import npformer
from npformer.common.errors import NpformerError
from npformer.common.limits import Limits
from npformer.config import Config, Decoder, InputConvolution, Local, Positions, Sharing
from npformer.engine import mechanisms
from npformer.engine.mechanisms import Disentangled, RelativeBias, Rotary, Window
from npformer.families import FAMILIES, encoders, family_of, ignored, read_config, write_config
from npformer.families.unsupported import MISSING

ARCHITECTURES = json.loads((Path(__file__).parent / "golden/checkpoints/architectures.json").read_text())
DISTILBERT = ARCHITECTURES["DistilBertForSequenceClassification"]["config"]
BERT = ARCHITECTURES["BertForSequenceClassification"]["config"]


def test_the_golden_file_has_every_architecture():
    assert set(ARCHITECTURES) == {name for family in encoders().values() for name in family.architectures}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_is_read_and_written_back(name):
    config = read_config(ARCHITECTURES[name]["config"])
    family = encoders()[config.model_type]
    # rotations need heads of even width
    three = "ModernBert", "NomicBert", "Llama", "Mistral", "Qwen2", "GPTNeoX", "Phi3", "Bloom", "SmolLM3", "Olmo2"
    heads = (3, 4) if name.startswith(("Qwen3", "Gemma")) else (3, 2) if name.startswith(three) else (2, 3)
    assert (config.vocab_size, config.d_model, config.n_heads, config.d_head) == (11, 6, *heads)
    assert (config.n_layers, config.d_ffn, config.max_length) == (2, 24 if name.startswith("Bloom") else 10, 8)
    typed = "Bert", "Electra", "Albert", "Roberta", "XLMRoberta", "Camembert", "NomicBert"
    assert config.n_token_types == (2 if name.startswith(typed) else 0)
    assert config.head == family.architectures[name]
    assert family.architectures[family.architecture(config)] == config.head
    assert read_config(json.loads(json.dumps(write_config(config)))) == config


def test_labels_come_from_id2label_or_are_numbered():
    assert read_config(DISTILBERT).labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    assert read_config({**BERT, "id2label": {"1": "no", "0": "yes"}}).labels == ("yes", "no")
    assert read_config({**BERT, "id2label": {0: "yes", 1: 7}}).labels == ("yes", "7")
    without = {key: value for key, value in BERT.items() if key != "id2label"}
    assert read_config(without).labels == ("LABEL_0", "LABEL_1")
    assert read_config({**without, "num_labels": 3}).labels == ("LABEL_0", "LABEL_1", "LABEL_2")


def test_another_head_can_be_asked_for():
    pretraining = ARCHITECTURES["BertForPreTraining"]["config"]
    assert read_config(pretraining).head == "masked-lm"
    assert read_config(pretraining, head="next-sentence").head == "next-sentence"
    assert read_config({**BERT, "architectures": None}).head == "base"
    with pytest.raises(NpformerError, match=r"head: expected one of base, .*got 'next-sentence'"):
        read_config(DISTILBERT, head="next-sentence")


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("gelu", "gelu"),
        ("gelu_python", "gelu"),
        ("gelu_new", "gelu_tanh"),
        ("gelu_fast", "gelu_tanh"),
        ("gelu_accurate", "gelu_tanh"),
        ("gelu_python_tanh", "gelu_tanh"),
        ("relu", "relu"),
        ("silu", "silu"),
        ("swish", "silu"),
    ],
)
def test_activations(theirs, ours):
    config = read_config({**BERT, "hidden_act": theirs})
    assert config.activation == ours
    assert read_config(write_config(config)) == config
    assert read_config({**DISTILBERT, "activation": theirs}).activation == ours


def test_distilbert_s_own_options_change_nothing_that_is_stored():
    options = {"sinusoidal_pos_embds": True, "tie_weights_": False}
    assert read_config({**DISTILBERT, **options}) == read_config(DISTILBERT)


def test_fields_that_change_nothing_are_ignored_by_name():
    data = {"_attn_implementation": "sdpa", "reference_compile": True, "torch_dtype": "float16", "use_cache": False}
    data |= {"attention_type": "original_full", "rope_scaling": None, "auto_map": {"AutoTokenizer": ["a.B", None]}}
    assert read_config({**BERT, **data}) == read_config(BERT)
    assert ignored({**BERT, **data}, FAMILIES["bert"]) == [
        "_attn_implementation",
        "reference_compile",
        "torch_dtype",
        "use_cache",
    ]


@pytest.mark.parametrize("code", ["c/d--modeling.Mine", ["a.B", None]])
def test_code_of_a_checkpoint_of_a_native_family_is_ignored(code):
    data = {**BERT, "auto_map": {"AutoConfig": "a.B", "AutoModelForMaskedLM": code}}
    assert read_config(data) == read_config(BERT)
    assert ignored(data, FAMILIES["bert"]) == [*ignored(BERT, FAMILIES["bert"]), "auto_map"]


def test_a_model_of_the_next_token_is_causal():
    with pytest.raises(NpformerError, match="causal: expected True, because a causal-lm model predicts the next token"):
        dataclasses.replace(read_config(ARCHITECTURES["GPT2LMHeadModel"]["config"]), causal=False)


def test_no_supported_family_is_listed_as_missing():
    """A family that npformer supports is not in `MISSING`."""
    assert not MISSING.keys() & FAMILIES.keys()


def test_a_family_may_compute_with_a_field_that_others_refuse(monkeypatch):
    rotary = dataclasses.replace(FAMILIES["bert"], reads=frozenset({"rope_parameters", "auto_map"}))
    monkeypatch.setitem(FAMILIES, "bert", rotary)
    data = {"rope_parameters": {"rope_theta": 10000.0}, "auto_map": {"AutoModel": "a.B"}}
    assert read_config({**BERT, **data}) == read_config(BERT)


def test_tied_and_problem_type_and_eps():
    config = read_config({**BERT, "tie_word_embeddings": False, "problem_type": "regression", "layer_norm_eps": 1e-5})
    assert (config.tied, config.problem_type, config.eps) == (False, "regression", 1e-5)
    assert read_config(write_config(config)) == config


@pytest.mark.parametrize("field", ["vocab_size", "dim", "n_heads", "n_layers", "hidden_dim", "max_position_embeddings"])
def test_a_missing_size_is_named(field):
    data = {key: value for key, value in DISTILBERT.items() if key != field}
    with pytest.raises(NpformerError, match=f"{field}: missing"):
        read_config(data)


@pytest.mark.parametrize("value", [0, -1, 2.0, "6", None, True, [6], 2**31, pytest.param(10**5000, id="huge")])
@pytest.mark.parametrize("field", ["vocab_size", "num_hidden_layers", "hidden_size", "type_vocab_size"])
def test_a_nonsense_size_is_named(field, value):
    with pytest.raises(NpformerError, match=f"^{field}: expected a whole number from 1"):
        read_config({**BERT, field: value})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "rwkv"}, "model_type: expected one of distilbert, bert.*got 'rwkv'"),
        ({"model_type": None}, "model_type: expected one of .*got None"),
        ({"model_type": ["bert"]}, "model_type: expected one of .*got a list"),
        (
            {"position_embedding_type": "relative_key"},
            "position_embedding_type: 'relative_key' is not.*'absolute'",
        ),
        (
            {"rope_scaling": {"type": "dynamic"}},
            "rope_scaling: 'dynamic' is not supported for bert models; supported: None",
        ),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_parameters: 'yarn' is not supported for bert models"),
        ({"rope_parameters": {"full_attention": {}}}, "rope_parameters: a dict is not supported for bert models"),
        ({"attention_type": "block_sparse"}, "attention_type: 'block_sparse' is not supported.*'original_full'"),
        (
            {"model_type": "xlnet"},
            "'xlnet' needs relative positions of Transformer-XL, which is not supported; expected one of distilbert, ",
        ),
        (
            {"model_type": "unheard-of", "auto_map": {"AutoModel": "a.B"}},
            "got 'unheard-of'; auto_map: the model is the checkpoint's own code",
        ),
        (
            {"is_decoder": True},
            "is_decoder: expected False for a sequence-classification model, got True; in this family only "
            "BertLMHeadModel supports True",
        ),
        ({"is_decoder": "yes"}, "is_decoder: expected true or false, got 'yes'"),
        (
            {"architectures": ["BertLMHeadModel"]},
            "is_decoder: expected True, because a causal-lm model predicts each token from earlier tokens, got False; "
            "for masked words use BertForMaskedLM",
        ),
        (
            {"architectures": ["BertLMHeadModel"], "is_decoder": True, "add_cross_attention": True},
            "add_cross_attention",
        ),
        ({"architectures": ["BertLMHeadModel"], "is_decoder": True, "eos_token_id": "x"}, "eos_token_id: expected"),
        ({"add_cross_attention": True}, "add_cross_attention"),
        ({"pruned_heads": {"0": [1]}}, "pruned_heads"),
        ({"hidden_act": "mish"}, "hidden_act: expected one of gelu, gelu_python.*got 'mish'"),
        ({"hidden_act": {"a": 1}}, "hidden_act: expected one of .*got a dict"),
        (
            {"architectures": ["BertGenerationDecoder"]},
            "architectures: expected one of BertModel, BertFor.*got 'BertGenerationDecoder'",
        ),
        ({"architectures": "BertModel"}, "architectures: expected a list"),
        ({"architectures": [3]}, "architectures: expected one of .*got 3"),
        ({"num_attention_heads": 4}, "n_heads: 4 does not divide d_model 6"),
        ({"layer_norm_eps": 0}, "layer_norm_eps: expected a number above 0"),
        ({"layer_norm_eps": 10**400}, "layer_norm_eps: expected a number above 0, got a whole number of 1329 bits"),
        ({"layer_norm_eps": float("nan")}, "layer_norm_eps: expected a number above 0"),
        ({"layer_norm_eps": "1e-12"}, "layer_norm_eps: expected a number above 0"),
        ({"problem_type": "guess"}, "problem_type: expected one of .*got 'guess'"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings: expected true or false"),
        ({"id2label": []}, "id2label: expected an object"),
        ({"id2label": {"0": "a", "2": "b"}}, "id2label: expected each id from 0 to 1 once"),
        ({"id2label": {"0": "a", "1": None}}, "id2label: expected each id from 0 to 1 once"),
        ({"id2label": {"0": "a", "1": ["b"]}}, "id2label: expected strings as labels"),
        ({"id2label": None, "num_labels": 10**12}, "labels: 1000000000000 is more than the limit `labels`"),
    ],
)
def test_errors_for_unsupported_models_list_the_supported_ones(change, message):
    with pytest.raises(NpformerError, match=message):
        read_config({**BERT, **change})


def test_a_config_made_by_hand_is_checked_too():
    config = read_config(BERT)
    for change in (
        {"d_model": 7},
        {"head": "poet"},
        {"labels": ()},
        {"labels": ["a"]},
        {"n_token_types": 0},
        {"eps": -1.0},
    ):
        with pytest.raises(NpformerError):
            family_of(config).check(dataclasses.replace(config, **change))
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.d_model = 8
    assert hash(config) == hash(dataclasses.replace(config))


def test_messages_stay_short_for_any_value():
    with pytest.raises(NpformerError) as error:
        read_config({**BERT, "hidden_act": "x" * 10**6})
    assert len(str(error.value)) < 300


def test_refusals_list_all_families():
    with pytest.raises(NpformerError, match=f"expected one of {', '.join(FAMILIES)}, got 'rwkv'$"):
        read_config({"model_type": "rwkv"})


SIZES = {"vocab_size": 9, "d_model": 8, "n_heads": 2, "n_layers": 2, "d_ffn": 16, "max_length": 4}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mechanisms": (Rotary(0.0),)}, "^rotary.theta: expected a number above 0, got 0.0"),
        (
            {"mechanisms": (Rotary(100.0),), "n_heads": 8},
            "^d_head: expected an even number for rotary embeddings, got 1",
        ),
        ({"local": Local((1,), (Window(-1),))}, "^window.reach: expected a whole number of at least 0, got -1"),
        ({"local": Local((2,), (Window(3),))}, "^local.layers: expected a whole number from 0 to 1, got 2"),
        ({"mechanisms": (RelativeBias(2),)}, "^relative_bias.n_buckets: expected a whole number of at least 4, got 2"),
        ({"mechanisms": (Disentangled(0),)}, "^disentangled.n_rows: expected a whole number of at least 1, got 0"),
        ({"mechanisms": (Disentangled(8, forms=("query", "key")),)}, "^disentangled.forms: expected key, query, both"),
        ({"sharing": Sharing(3)}, "^sharing.groups: expected a whole number from 1 to 2, got 3"),
        ({"sharing": Sharing(1, 3)}, "^sharing.layers: expected a whole number from 1 to 2, got 3"),
    ],
)
def test_a_choice_that_a_model_of_this_size_cannot_have_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(NpformerError, match=message):
        Config("bert", "base", **{**SIZES, **fields})


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: Positions("rotary"), "^positions: expected one of learned.*got 'rotary'"),
        (lambda: Positions(first=-1), "^positions.first: expected a whole number"),
        (lambda: Local((1, 1), ()), "^local.layers: expected a whole number from 2"),
        (lambda: InputConvolution(0), "^convolution.width: expected a whole number from 1"),
        (lambda: InputConvolution(3, "nonsense"), "^convolution.activation: expected one of"),
    ],
)
def test_a_group_of_fields_checks_its_own(made: Callable[[], object], message: str) -> None:
    with pytest.raises(NpformerError, match=message):
        made()


def test_an_activation_that_no_layer_reads_is_checked_too():
    with pytest.raises(NpformerError, match="head_activation: expected one of"):
        Config("electra", "replaced-token", **SIZES, head_activation="nonsense")


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_config_shows_the_fields_that_differ_from_their_defaults(name):
    config = read_config(ARCHITECTURES[name]["config"])
    kinds = (Config, Decoder, Positions, Local, Sharing, InputConvolution)
    known = {each.__name__: each for each in kinds} | vars(mechanisms)
    assert eval(repr(config), known) == config
    assert "sharing=None" not in repr(config)


def test_the_repr_of_limits_is_short():
    assert (repr(Limits()), repr(Limits(layers=3))) == ("Limits()", "Limits(layers=3)")
    for function in (npformer.load, npformer.pipeline, npformer.Model):
        assert "= Limits()" in str(inspect.signature(function))
