"""Mistakes planted in transformers' models, each with its name and the first wrong stage. Hooks read the stages."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

Plant = Callable[[Any], None]

# --- the model's parts, with each family's names --------------------------------------------------


def layers(model: Any) -> Any:
    encoder = model.base_model
    if model.config.model_type == "albert":
        return [encoder.encoder.albert_layer_groups[0].albert_layers[0]]  # all layers share this module
    return (encoder.transformer if hasattr(encoder, "transformer") else encoder.encoder).layer


def attention(layer: Any) -> Any:
    return getattr(layer.attention, "self", layer.attention)


def projections(layer: Any) -> list[Any]:
    block = attention(layer)
    return [block.query, block.key, block.value] if hasattr(block, "query") else [block.q_lin, block.k_lin, block.v_lin]


def ffn(layer: Any) -> tuple[Any, Any]:
    if hasattr(layer, "ffn_output"):
        return layer.ffn, layer.ffn_output
    return (layer.ffn.lin1, layer.ffn.lin2) if hasattr(layer, "ffn") else (layer.intermediate.dense, layer.output.dense)


def norms(layer: Any) -> tuple[Any, Any]:
    if hasattr(layer, "sa_layer_norm"):
        return layer.sa_layer_norm, layer.output_layer_norm
    if hasattr(layer, "full_layer_layer_norm"):
        return layer.attention.LayerNorm, layer.full_layer_layer_norm
    return layer.attention.output.LayerNorm, layer.output.LayerNorm


def embeddings(model: Any) -> Any:
    return model.base_model.embeddings


class Function(torch.nn.Module):
    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.forward = function


def replace_activation(model: Any, activation: Any) -> None:
    activation = activation if isinstance(activation, torch.nn.Module) else Function(activation)
    for layer in layers(model):
        if hasattr(layer, "ffn_output"):
            layer.activation = activation
        elif hasattr(layer, "ffn"):
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


def replace_positions(model: Any, place: Callable[[Any], Any]) -> None:
    table = embeddings(model).position_embeddings
    table.register_forward_pre_hook(lambda _, args: (place(args[0]),))


def positions_off(model: Any) -> None:
    replace_positions(model, lambda rows: rows + 1)


def roberta_positions(model: Any) -> None:
    replace_positions(model, lambda rows: rows + 2)


def no_offset(model: Any) -> None:
    replace_positions(model, lambda rows: torch.arange(rows.shape[-1]).expand_as(rows))


def segments_ignored(model: Any) -> None:
    table = embeddings(model).token_type_embeddings
    table.register_forward_pre_hook(lambda _, args: (torch.zeros_like(args[0]),))


def quick_gelu(model: Any) -> None:
    replace_activation(model, lambda x: x * torch.sigmoid(1.702 * x))


def no_activation(model: Any) -> None:
    replace_activation(model, lambda x: x)


def eps_outside(model: Any) -> None:
    def wrong(self: Any, x: Any) -> Any:
        deviation = x.std(-1, keepdim=True, correction=0) + 1e-6
        return (x - x.mean(-1, keepdim=True)) / deviation * self.weight + self.bias

    model.monkeypatch.setattr(torch.nn.LayerNorm, "forward", wrong)


def no_affine(model: Any) -> None:
    def wrong(self: Any, x: Any) -> Any:
        return torch.nn.functional.layer_norm(x, x.shape[-1:], None, None, self.eps)

    model.monkeypatch.setattr(torch.nn.LayerNorm, "forward", wrong)


def norms_exchanged(model: Any) -> None:
    for layer in layers(model):
        first, second = norms(layer)
        first.weight, second.weight = second.weight, first.weight
        first.bias, second.bias = second.bias, first.bias


def replace_weights(model: Any, weigh: Callable[[Any, Any], Any]) -> None:
    """Replaces the softmax with a function of the scores and the additive mask."""

    def wrong(module: Any, q: Any, k: Any, v: Any, mask: Any, scaling: float, **_: Any) -> Any:
        weights = weigh(q @ k.transpose(2, 3) * scaling, 0 if mask is None else mask)
        return (weights @ v).transpose(1, 2), weights

    replace_eager(model, wrong)


def causal(model: Any) -> None:
    replace_weights(
        model, lambda s, mask: torch.softmax((s + mask).masked_fill(torch.ones_like(s).triu(1) > 0, float("-inf")), -1)
    )


def base_two(model: Any) -> None:
    replace_weights(model, lambda s, mask: torch.softmax(s * 0.6931471805599453 + mask, -1))


def mask_after(model: Any) -> None:
    replace_weights(model, lambda s, mask: torch.softmax(s, -1) * (mask == 0))


def layer_weights(model: Any) -> None:
    layers(model)[1].load_state_dict(layers(model)[0].state_dict())


def value_and_key_weights(model: Any) -> None:
    for layer in layers(model):
        _, key, value = projections(layer)
        key.weight, value.weight = value.weight, key.weight
        key.bias, value.bias = value.bias, key.bias


def int8(model: Any) -> None:
    for layer in layers(model):
        for linear in (module for module in layer.modules() if isinstance(module, torch.nn.Linear)):
            step = linear.weight.data.abs().max() / 127
            linear.weight.data = (linear.weight.data / step).round() * step


def last_token(model: Any) -> None:
    dense = next(
        module
        for name, module in model.named_modules()
        if name.endswith(("pre_classifier", "pooler.dense", "classifier.dense", "albert.pooler"))
    )
    last: list[Any] = []
    layers(model)[-1].register_forward_hook(
        lambda module, args, out: last.append(out[0] if isinstance(out, tuple) else out)
    )
    dense.register_forward_pre_hook(
        lambda module, args: (torch.stack([last[-1][i, n - 1] for i, n in enumerate((9, 6, 3))]),)
    )


def positions_left_out(model: Any) -> None:
    embeddings(model).position_embeddings.register_forward_hook(lambda module, args, out: out * 0)


def attention_dropout(model: Any) -> None:
    torch.manual_seed(0)
    replace_weights(model, lambda s, mask: torch.dropout(torch.softmax(s + mask, -1), 0.1, True))


def another_checkpoint(model: Any) -> None:
    torch.manual_seed(0)
    for parameter in model.parameters():
        parameter.data = parameter.data + 0.01 * torch.randn_like(parameter)


def half_product(model: Any) -> None:
    def wrong(x: Any) -> Any:
        return (x.half() @ hidden.weight.half().T).float() + hidden.bias

    hidden = ffn(layers(model)[1])[0]
    hidden.forward = wrong


def other_ids(model: Any) -> None:
    embeddings(model).word_embeddings.register_forward_pre_hook(lambda _, args: (args[0].flip(1),))


PLANTED = {
    tanh_gelu: ("tanh GELU for erf", "layers.0.ffn.activation"),
    relu: ("wrong activation", "layers.0.ffn.activation"),
    eps: ("another layer norm eps", "embeddings.norm"),
    eps_of_one_norm: ("another layer norm eps", "layers.1.ffn_norm"),
    unbiased_variance: ("unbiased variance", "embeddings.norm"),
    transposed_square_weight: ("transposed weight", "layers.1.attention.key"),
    transposed_wide_weight: ("transposed weight", "layers.0.ffn.hidden"),
    missing_bias: ("missing bias", "layers.1.ffn.output"),
    missing_bias_of_norm: ("missing bias", "layers.0.attention_norm"),
    unscaled: ("unscaled scores", "layers.0.attention.weights"),
    doubly_scaled: ("doubly scaled scores", "layers.0.attention.weights"),
    scaled_by_model: ("scores divided by sqrt(d_model)", "layers.0.attention.weights"),
    softmax_over_queries: ("softmax over the wrong axis", "layers.0.attention.weights"),
    softmax_over_heads: ("softmax over the wrong axis", "layers.0.attention.weights"),
    mask_ignored: ("mask ignored", "layers.0.attention.weights"),
    heads_not_transposed: ("heads reshaped without the transpose", "layers.0.attention.query_heads"),
    heads_not_transposed_back: ("heads reshaped without the transpose", "layers.0.attention.combined"),
    query_and_key_weights_swapped: ("query and key swapped", "layers.0.attention.query"),
    query_and_key_swapped: ("query and key swapped", "layers.0.attention.weights"),
    pre_norm: ("pre-norm instead of post-norm", "layers.0.attention.query"),
    positions_off: ("positions off by one", "embeddings.position"),
    roberta_positions: ("positions off by one", "embeddings.position"),
    no_offset: ("positions off by one", "embeddings.position"),
    segments_ignored: ("token types ignored", "embeddings.segment"),
    quick_gelu: ("quick GELU", "layers.0.ffn.activation"),
    no_activation: ("activation left out", "layers.0.ffn.activation"),
    eps_outside: ("eps outside the root", "embeddings.norm"),
    no_affine: ("norm without weight or bias", "embeddings.norm"),
    norms_exchanged: ("norms exchanged", "layers.0.attention_norm"),
    causal: ("causal mask", "layers.0.attention.weights"),
    base_two: ("wrong softmax", "layers.0.attention.weights"),
    mask_after: ("mask misused", "layers.0.attention.weights"),
    layer_weights: ("weights of another layer", "layers.1.attention.query"),
    value_and_key_weights: ("key and value swapped", "layers.0.attention.key"),
    int8: ("quantized weights", "layers.0.attention.query"),
    last_token: ("wrong pooling", "pooler"),
    positions_left_out: ("positions left out", "embeddings.position"),
    attention_dropout: ("dropout left on", "layers.0.attention.weights"),
    another_checkpoint: ("different checkpoint", "embeddings.token"),
    half_product: ("half precision", "layers.1.ffn.hidden"),
    other_ids: ("wrong token ids", "embeddings.token"),
}
