"""Each known mistake is planted in a real torch model, and the diagnosis names it; an unspoilt model has none.

The model is transformers' own, hooked live; the golden file is recorded from the same weights. Three texts of different
lengths make a padded batch, and BERT's have two segments, so that masks and token types matter.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from npformer import golden
from npformer.checkpoint import load_folder
from npformer.cli import golden as command
from npformer.errors import NpformerError
from npformer.model import Model
from npformer.runtime.packing import Text
from tests.support import tiny

Plant = Callable[[Any], None]

FAMILIES = ("distilbert", "bert", "electra")


@pytest.fixture(scope="module")
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def folder(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.folder(tmp_path_factory.mktemp("models") / family, family)


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return Model(*load_folder(folder), folder=folder)


@pytest.fixture(scope="module")
def recorded(model: Model) -> golden.Golden:
    return golden.record(model, texts(model))


def texts(model: Model) -> list[Text]:
    random = np.random.default_rng(1)
    ids = [random.integers(5, model.config.vocab_size, length) for length in (9, 6, 3)]
    return [
        Text(each, (np.arange(len(each)) > 2).astype(np.int64) if model.config.n_segments else None) for each in ids
    ]


@pytest.fixture
def torch_model(folder: Path, recorded: golden.Golden, monkeypatch: pytest.MonkeyPatch) -> Any:
    made = golden.load_torch(str(folder), recorded)
    made.monkeypatch = monkeypatch
    return made


# --- the model's parts, which the families name differently --------------------------------------------------


def layers(model: Any) -> Any:
    encoder = model.base_model
    return (encoder.transformer if hasattr(encoder, "transformer") else encoder.encoder).layer


def attention(layer: Any) -> Any:
    return getattr(layer.attention, "self", layer.attention)


def projections(layer: Any) -> list[Any]:
    block = attention(layer)
    return [block.query, block.key, block.value] if hasattr(block, "query") else [block.q_lin, block.k_lin, block.v_lin]


def ffn(layer: Any) -> tuple[Any, Any]:
    return (layer.ffn.lin1, layer.ffn.lin2) if hasattr(layer, "ffn") else (layer.intermediate.dense, layer.output.dense)


def norms(layer: Any) -> tuple[Any, Any]:
    if hasattr(layer, "sa_layer_norm"):
        return layer.sa_layer_norm, layer.output_layer_norm
    return layer.attention.output.LayerNorm, layer.output.LayerNorm


def embeddings(model: Any) -> Any:
    return model.base_model.embeddings


def replace_activation(model: Any, activation: Any) -> None:
    for layer in layers(model):
        if hasattr(layer, "ffn"):
            layer.ffn.activation = activation
        else:
            layer.intermediate.intermediate_act_fn = activation


def replace_eager(model: Any, wrong: Callable[..., Any]) -> None:
    model.monkeypatch.setattr(sys.modules[type(model).__module__], "eager_attention_forward", wrong)


def attend(query: Any, key: Any, value: Any, mask: Any, scaling: float, dim: int = -1) -> Any:
    scores = query @ key.transpose(2, 3) * scaling
    weights = torch.softmax(scores if mask is None else scores + mask, dim=dim)
    return (weights @ value).transpose(1, 2), weights


# --- the mistakes ------------------------------------------------------------------------------------------------


def tanh_gelu(model: Any) -> None:
    replace_activation(model, torch.nn.GELU(approximate="tanh"))


def relu(model: Any) -> None:
    replace_activation(model, torch.nn.ReLU())


def eps(model: Any) -> None:
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = 1e-5


def eps_of_one_norm(model: Any) -> None:
    norms(layers(model)[1])[1].eps = 1e-3


def unbiased_variance(model: Any) -> None:
    def wrong(self: Any, x: Any) -> Any:
        return (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True) * self.weight + self.bias

    model.monkeypatch.setattr(torch.nn.LayerNorm, "forward", wrong)


def transposed_square_weight(model: Any) -> None:
    key = projections(layers(model)[1])[1]
    key.weight.data = key.weight.data.T.contiguous()


def transposed_wide_weight(model: Any) -> None:
    hidden = ffn(layers(model)[0])[0]
    hidden.weight.data = hidden.weight.data.flatten().view(hidden.weight.shape[::-1]).T.contiguous()


def missing_bias(model: Any) -> None:
    ffn(layers(model)[1])[1].bias.data.zero_()


def missing_bias_of_norm(model: Any) -> None:
    norms(layers(model)[0])[0].bias.data.zero_()


def unscaled(model: Any) -> None:
    for layer in layers(model):
        attention(layer).scaling = 1.0


def doubly_scaled(model: Any) -> None:
    for layer in layers(model):
        attention(layer).scaling **= 2


def scaled_by_model(model: Any) -> None:
    for layer in layers(model):
        attention(layer).scaling = 32**-0.5


def softmax_over_queries(model: Any) -> None:
    def wrong(module: Any, q: Any, k: Any, v: Any, mask: Any, scaling: float, **_: Any) -> Any:
        return attend(q, k, v, mask, scaling, dim=-2)

    replace_eager(model, wrong)


def softmax_over_heads(model: Any) -> None:
    def wrong(module: Any, q: Any, k: Any, v: Any, mask: Any, scaling: float, **_: Any) -> Any:
        return attend(q, k, v, None, scaling, dim=1)

    replace_eager(model, wrong)


def mask_ignored(model: Any) -> None:
    def wrong(module: Any, q: Any, k: Any, v: Any, mask: Any, scaling: float, **_: Any) -> Any:
        return attend(q, k, v, None, scaling)

    replace_eager(model, wrong)


def heads_not_transposed(model: Any) -> None:
    replace_attention(model, split=lambda x, heads: x.view(len(x), heads, x.shape[1], -1))


def heads_not_transposed_back(model: Any) -> None:
    replace_attention(model, combine=lambda context: context.transpose(1, 2))


def replace_attention(model: Any, split: Any = None, combine: Any = None) -> None:
    home = sys.modules[type(model).__module__]

    def wrong(self: Any, x: Any, attention_mask: Any = None, **_: Any) -> Any:
        linears = (self.query, self.key, self.value) if hasattr(self, "query") else (self.q_lin, self.k_lin, self.v_lin)
        size = self.attention_head_size
        whole = [linear(x) for linear in linears]
        if split:
            q, k, v = (split(each, each.shape[-1] // size) for each in whole)
        else:
            q, k, v = (each.view(*each.shape[:-1], -1, size).transpose(1, 2) for each in whole)
        context, weights = home.eager_attention_forward(self, q, k, v, attention_mask, scaling=self.scaling)
        context = (combine(context) if combine else context).reshape(x.shape)
        return (self.out_lin(context) if hasattr(self, "out_lin") else context), weights

    model.monkeypatch.setattr(type(attention(layers(model)[0])), "forward", wrong)


def query_and_key_weights_swapped(model: Any) -> None:
    for layer in layers(model):
        query, key, _ = projections(layer)
        query.weight, key.weight = key.weight, query.weight
        query.bias, key.bias = key.bias, query.bias


def query_and_key_swapped(model: Any) -> None:
    def wrong(module: Any, q: Any, k: Any, v: Any, mask: Any, scaling: float, **_: Any) -> Any:
        return attend(k, q, v, mask, scaling)

    replace_eager(model, wrong)


def pre_norm(model: Any) -> None:
    def wrong(self: Any, x: Any, attention_mask: Any = None, *args: Any, **_: Any) -> Any:
        first, second = norms(self)
        block = attention(self)
        a = block(first(x), attention_mask=attention_mask)[0]
        y = x + (a if hasattr(self, "ffn") else self.attention.output.dense(a))
        if hasattr(self, "ffn"):
            return y + self.ffn(second(y))
        return y + self.output.dense(self.intermediate(second(y)))

    model.monkeypatch.setattr(type(layers(model)[0]), "forward", wrong)


def positions_off(model: Any) -> None:
    embeddings(model).position_ids += 1


def roberta_positions(model: Any) -> None:
    embeddings(model).position_ids += 2


def segments_ignored(model: Any) -> None:
    table = embeddings(model).token_type_embeddings
    table.register_forward_pre_hook(lambda _, args: (torch.zeros_like(args[0]),))


def half_precision(model: Any) -> None:
    model.half()


def bfloat16(model: Any) -> None:
    model.bfloat16()


def half_product(model: Any) -> None:
    def wrong(x: Any) -> Any:
        return (x.half() @ hidden.weight.half().T).float() + hidden.bias

    hidden = ffn(layers(model)[1])[0]
    hidden.forward = wrong


def other_ids(model: Any) -> None:
    embeddings(model).word_embeddings.register_forward_pre_hook(lambda _, args: (args[0].flip(1),))


PLANTED = {
    tanh_gelu: ("tanh GELU for erf", "layers.0.ffn.activation"),
    relu: ("another activation", "layers.0.ffn.activation"),
    eps: ("another layer norm eps", "embeddings.norm"),
    eps_of_one_norm: ("another layer norm eps", "layers.1.ffn_norm"),
    unbiased_variance: ("unbiased variance", "embeddings.norm"),
    transposed_square_weight: ("transposed weight", "layers.1.attention.key"),
    transposed_wide_weight: ("transposed weight", "layers.0.ffn.hidden"),
    missing_bias: ("missing bias", "layers.1.ffn.output"),
    missing_bias_of_norm: ("missing bias", "layers.0.attention_norm"),
    unscaled: ("unscaled scores", "layers.0.attention.weights"),
    doubly_scaled: ("doubly scaled scores", "layers.0.attention.weights"),
    scaled_by_model: ("scores scaled by sqrt(d_model)", "layers.0.attention.weights"),
    softmax_over_queries: ("softmax over the wrong axis", "layers.0.attention.weights"),
    softmax_over_heads: ("softmax over the wrong axis", "layers.0.attention.weights"),
    mask_ignored: ("mask ignored", "layers.0.attention.weights"),
    heads_not_transposed: ("heads reshaped without the transpose", "layers.0.attention.query_heads"),
    heads_not_transposed_back: ("heads reshaped without the transpose", "layers.0.attention.combined"),
    query_and_key_weights_swapped: ("query and key swapped", "layers.0.attention.query"),
    query_and_key_swapped: ("query and key swapped", "layers.0.attention.weights"),
    pre_norm: ("pre-norm for post-norm", "layers.0.attention.query"),
    positions_off: ("positions off by one", "embeddings.position"),
    roberta_positions: ("positions off by one", "embeddings.position"),
    segments_ignored: ("token types ignored", "embeddings.segment"),
    half_precision: ("half precision", "embeddings.token"),
    bfloat16: ("half precision", "embeddings.token"),
    half_product: ("half precision", "layers.1.ffn.hidden"),
    other_ids: ("other token ids", "embeddings.token"),
}


FOR_ALL = [(family, plant) for family in FAMILIES for plant in PLANTED]
FOR_ALL.remove(("distilbert", segments_ignored))  # it has no token types


@pytest.mark.parametrize("family", FAMILIES, indirect=True)
def test_an_unspoilt_model_is_within_every_budget(torch_model: Any, recorded: golden.Golden) -> None:
    comparison = golden.compare(recorded, torch_model)
    assert comparison.ok, str(comparison)
    assert comparison.missing == ["layers.0.attention.scores", "layers.1.attention.scores", "probabilities"]
    assert max(row.budgets for row in comparison.rows) < 0.5  # torch stays well within
    golden.assert_close(recorded, torch_model)


@pytest.mark.parametrize(("family", "plant"), FOR_ALL, indirect=["family"])
def test_a_planted_mistake_is_named(plant: Plant, torch_model: Any, recorded: golden.Golden, model: Model) -> None:
    plant(torch_model)
    comparison = golden.compare(recorded, torch_model)
    diagnosis = golden.diagnose(recorded, torch_model, model)
    name, stage = PLANTED[plant]
    assert (diagnosis.mistake, comparison.first.stage) == (name, stage), f"{diagnosis}\n{comparison}"
    with pytest.raises(AssertionError, match="the first stage that diverges"):
        golden.assert_close(recorded, torch_model)


BY_MODULES = ["*.query", "*.key", "*.value", "*.attention.output", "*norm", "*.hidden", "*.ffn.output", "logits"]
BY_LAYERS = ["embeddings.norm", "layers.*.ffn_norm", "logits"]
SEEN = (tanh_gelu, unbiased_variance, unscaled, doubly_scaled, softmax_over_queries, mask_ignored, heads_not_transposed)
SEEN += (query_and_key_swapped, pre_norm, positions_off, missing_bias, transposed_wide_weight)


@pytest.mark.parametrize("stages", [BY_MODULES, BY_LAYERS], ids=["modules", "layers"])
@pytest.mark.parametrize("plant", SEEN, ids=lambda plant: plant.__name__)
@pytest.mark.parametrize("family", FAMILIES, indirect=True)
def test_it_is_named_from_fewer_stages_too(plant: Plant, stages: list[str], torch_model: Any, model: Model) -> None:
    recorded = golden.record(model, texts(model), stages)
    plant(torch_model)
    assert golden.diagnose(recorded, torch_model, model).mistake == PLANTED[plant][0]


@pytest.mark.parametrize("family", FAMILIES, indirect=True)
def test_the_exact_gelu_in_a_model_of_the_tanh_one_is_named(family: str, tmp_path: Path) -> None:
    folder = tiny.folder(tmp_path / "m", family, activation="gelu_tanh")
    model = Model(*load_folder(folder), folder=folder)
    recorded = golden.record(model, texts(model))
    spoilt = golden.load_torch(str(folder), recorded)
    golden.assert_close(recorded, spoilt)
    replace_activation(spoilt, torch.nn.GELU())
    assert golden.diagnose(recorded, spoilt, model).mistake == "erf GELU for tanh"


@pytest.mark.parametrize("head", ["base", "token-classification", "question-answering", "masked-lm", "next-sentence"])
def test_every_head_is_hooked(head: str, tmp_path: Path) -> None:
    folder = tiny.folder(tmp_path / "m", "bert", head)
    recorded = golden.record(Model(*load_folder(folder), folder=folder), ["I love ice cream", "no"])
    comparison = golden.compare(recorded, golden.load_torch(str(folder), recorded))
    assert comparison.ok, str(comparison)
    computed_later = {name for name in recorded.stages if name.endswith(("scores", "probabilities"))}
    assert set(comparison.missing) == computed_later


@pytest.mark.parametrize("family", FAMILIES, indirect=True)
def test_the_command_runs_a_model_of_transformers(family: str, tmp_path: Path, capsys: Any) -> None:
    folder = golden.tiny(tmp_path / "m", family)
    code, printed = compare_by_command([folder / "golden.safetensors", "--torch", folder], capsys)
    assert code == 0, printed
    other = golden.tiny(tmp_path / "other", family, seed=1)
    code, printed = compare_by_command([folder / "golden.safetensors", "--torch", other], capsys)
    assert code == 3
    assert "the first stage that diverges: embeddings.token" in printed
    assert "no diagnosis: these are not the weights" in printed


def compare_by_command(arguments: list[Any], capsys: Any) -> tuple[int, str]:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    code = command.run(parser.parse_intermixed_args(["compare", *map(str, arguments)]))
    return code, capsys.readouterr().out


@pytest.mark.parametrize("family", FAMILIES, indirect=True)
def test_what_is_no_such_model_is_an_error(torch_model: Any, recorded: golden.Golden, tmp_path: Path) -> None:
    with pytest.raises(NpformerError, match="none of the modules of a"):
        golden.compare(recorded, torch.nn.Linear(3, 3))
    with pytest.raises(NpformerError, match="transformers cannot load it"):
        golden.load_torch(str(tmp_path / "nothing"), recorded)
