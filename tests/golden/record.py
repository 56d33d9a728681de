"""Recording every stage of a torch model as it runs, by the names this project taps them with.

The numbers are transformers' own: forward hooks read them off its modules, and its eager attention is wrapped for
those that lie between modules. Only `make.py` uses this; it needs torch and transformers.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from transformers.models.albert import modeling_albert
from transformers.models.bert import modeling_bert
from transformers.models.deberta_v2 import modeling_deberta_v2
from transformers.models.distilbert import modeling_distilbert
from transformers.models.electra import modeling_electra
from transformers.models.gpt2 import modeling_gpt2
from transformers.models.modernbert import modeling_modernbert
from transformers.models.mpnet import modeling_mpnet
from transformers.models.nomic_bert import modeling_nomic_bert
from transformers.models.roberta import modeling_roberta

from tests.support.in_double import in_double, root

# A module, without the encoder's prefix -> the stages that go in and come out of it; `*` is a layer's number.
DISTILBERT = {
    "embeddings.word_embeddings": ("", "embeddings.token"),
    "embeddings.position_embeddings": ("", "embeddings.position"),
    "embeddings.LayerNorm": ("embeddings.sum", "embeddings.norm"),
    "transformer.layer.*.attention.q_lin": ("", "layers.*.attention.query"),
    "transformer.layer.*.attention.k_lin": ("", "layers.*.attention.key"),
    "transformer.layer.*.attention.v_lin": ("", "layers.*.attention.value"),
    "transformer.layer.*.attention.out_lin": ("layers.*.attention.combined", "layers.*.attention.output"),
    "transformer.layer.*.sa_layer_norm": ("layers.*.attention_residual", "layers.*.attention_norm"),
    "transformer.layer.*.ffn.lin1": ("", "layers.*.ffn.hidden"),
    "transformer.layer.*.ffn.lin2": ("layers.*.ffn.activation", "layers.*.ffn.output"),
    "transformer.layer.*.output_layer_norm": ("layers.*.ffn_residual", "layers.*.ffn_norm"),
    "pre_classifier": ("", "pooler"),
    "classifier": ("pooled", "logits"),
    "vocab_transform": ("", "head.hidden"),
    "vocab_layer_norm": ("head.activation", "head.norm"),
    "vocab_projector": ("", "logits"),
    "qa_outputs": ("", "spans"),
}
BERT = {
    "embeddings.word_embeddings": ("", "embeddings.token"),
    "embeddings.position_embeddings": ("", "embeddings.position"),
    "embeddings.token_type_embeddings": ("", "embeddings.segment"),
    "embeddings.LayerNorm": ("embeddings.sum", "embeddings.norm"),
    "encoder.layer.*.attention.self.query": ("", "layers.*.attention.query"),
    "encoder.layer.*.attention.self.key": ("", "layers.*.attention.key"),
    "encoder.layer.*.attention.self.value": ("", "layers.*.attention.value"),
    "encoder.layer.*.attention.output.dense": ("layers.*.attention.combined", "layers.*.attention.output"),
    "encoder.layer.*.attention.output.LayerNorm": ("layers.*.attention_residual", "layers.*.attention_norm"),
    "encoder.layer.*.intermediate.dense": ("", "layers.*.ffn.hidden"),
    "encoder.layer.*.output.dense": ("layers.*.ffn.activation", "layers.*.ffn.output"),
    "encoder.layer.*.output.LayerNorm": ("layers.*.ffn_residual", "layers.*.ffn_norm"),
    "pooler.dense": ("", "pooler"),
    "pooler.activation": ("", "pooled"),
    "classifier": ("", "logits"),
    "cls.seq_relationship": ("", "logits"),
    "cls.predictions.transform.dense": ("", "head.hidden"),
    "cls.predictions.transform.LayerNorm": ("head.activation", "head.norm"),
    "cls.predictions.decoder": ("", "logits"),
    "qa_outputs": ("", "spans"),
}
ELECTRA = {
    **{path: stages for path, stages in BERT.items() if path.startswith(("embeddings.", "encoder."))},
    "embeddings_project": ("", "embeddings.project"),
    "classifier": ("", "logits"),
    "classifier.dense": ("", "pooler"),
    "classifier.activation": ("", "pooled"),
    "sequence_summary.summary": ("", "pooler"),
    "sequence_summary.activation": ("", "pooled"),
    "generator_predictions.dense": ("", "head.hidden"),
    "generator_predictions.LayerNorm": ("head.activation", "head.norm"),
    "generator_lm_head": ("", "logits"),
    "qa_outputs": ("", "spans"),
}
ROBERTA = {
    **{path: stages for path, stages in BERT.items() if not path.startswith(("cls.", "classifier"))},
    "classifier.dense": ("", "pooler"),
    "classifier.out_proj": ("pooled", "logits"),
    "classifier": ("", "logits"),
    "lm_head.dense": ("", "head.hidden"),
    "lm_head.layer_norm": ("head.activation", "head.norm"),
    "lm_head.decoder": ("", "logits"),
}
LAYER = "encoder.albert_layer_groups.0.albert_layers.0"  # which runs for every layer
ALBERT = {
    **{path: stages for path, stages in BERT.items() if path.startswith("embeddings.")},
    "encoder.embedding_hidden_mapping_in": ("", "embeddings.project"),
    f"{LAYER}.attention.query": ("", "layers.*.attention.query"),
    f"{LAYER}.attention.key": ("", "layers.*.attention.key"),
    f"{LAYER}.attention.value": ("", "layers.*.attention.value"),
    f"{LAYER}.attention.dense": ("layers.*.attention.combined", "layers.*.attention.output"),
    f"{LAYER}.attention.LayerNorm": ("layers.*.attention_residual", "layers.*.attention_norm"),
    f"{LAYER}.ffn": ("", "layers.*.ffn.hidden"),
    f"{LAYER}.ffn_output": ("layers.*.ffn.activation", "layers.*.ffn.output"),
    f"{LAYER}.full_layer_layer_norm": ("layers.*.ffn_residual", "layers.*.ffn_norm"),
    "pooler": ("", "pooler"),
    "pooler_activation": ("", "pooled"),
    "classifier": ("", "logits"),
    "predictions.dense": ("", "head.hidden"),
    "predictions.LayerNorm": ("head.activation", "head.norm"),
    "predictions.decoder": ("", "logits"),
    "qa_outputs": ("", "spans"),
}
MPNET = {
    **{path: stages for path, stages in ROBERTA.items() if ".attention." not in path},
    "encoder.layer.*.attention.attn.q": ("", "layers.*.attention.query"),
    "encoder.layer.*.attention.attn.k": ("", "layers.*.attention.key"),
    "encoder.layer.*.attention.attn.v": ("", "layers.*.attention.value"),
    "encoder.layer.*.attention.attn.o": ("layers.*.attention.combined", "layers.*.attention.output"),
    "encoder.layer.*.attention.LayerNorm": ("layers.*.attention_residual", "layers.*.attention_norm"),
}
MODERNBERT = {
    "embeddings.tok_embeddings": ("", "embeddings.token"),
    "embeddings.norm": ("embeddings.sum", "embeddings.norm"),
    "layers.*.attn_norm": ("", "layers.*.attention_norm"),
    "layers.*.attn.Wqkv": ("", "layers.*.attention.query layers.*.attention.key layers.*.attention.value"),
    "layers.*.attn.Wo": ("layers.*.attention.combined", "layers.*.attention.output"),
    "layers.*.mlp_norm": ("layers.*.attention_residual", "layers.*.ffn_norm"),
    "layers.*.mlp.Wi": ("", "layers.*.ffn.hidden layers.*.ffn.gate"),
    "layers.*.mlp.act": ("", "layers.*.ffn.activation"),
    "layers.*.mlp.Wo": ("layers.*.ffn.gated", "layers.*.ffn.output"),
    "layers.*": ("", "layers.*.ffn_residual"),
    "final_norm": ("", "norm"),
    "head": ("pooled", ""),
    "head.dense": ("", "head.hidden"),
    "head.norm": ("head.activation", "head.norm"),
    "classifier": ("", "logits"),
    "decoder": ("", "logits"),
}
DEBERTA = {
    **{path: stages for path, stages in BERT.items() if ".self." not in path},
    "encoder.layer.*.attention.self.query_proj": ("", "layers.*.attention.query"),
    "encoder.layer.*.attention.self.key_proj": ("", "layers.*.attention.key"),
    "encoder.layer.*.attention.self.value_proj": ("", "layers.*.attention.value"),
    "pooler": ("", "pooled"),
}
NOMIC_BERT = {
    "embeddings.word_embeddings": ("", "embeddings.token"),
    "embeddings.token_type_embeddings": ("", "embeddings.segment"),
    "embeddings.LayerNorm": ("embeddings.sum", "embeddings.norm"),
    "layers.*.self_attn.q_proj": ("", "layers.*.attention.query"),
    "layers.*.self_attn.k_proj": ("", "layers.*.attention.key"),
    "layers.*.self_attn.v_proj": ("", "layers.*.attention.value"),
    "layers.*.self_attn.o_proj": ("layers.*.attention.combined", "layers.*.attention.output"),
    "layers.*.post_attention_layernorm": ("layers.*.attention_residual", "layers.*.attention_norm"),
    "layers.*.mlp.gate_proj": ("", "layers.*.ffn.hidden"),
    "layers.*.mlp.up_proj": ("", "layers.*.ffn.gate"),
    "layers.*.mlp.act_fn": ("", "layers.*.ffn.activation"),
    "layers.*.mlp.down_proj": ("layers.*.ffn.gated", "layers.*.ffn.output"),
    "layers.*.post_mlp_layernorm": ("layers.*.ffn_residual", "layers.*.ffn_norm"),
}
GPT2 = {
    "wte": ("", "embeddings.token"),
    "wpe": ("", "embeddings.position"),
    "drop": ("", "embeddings.sum"),
    "h.*.ln_1": ("", "layers.*.attention_norm"),
    "h.*.attn.c_attn": ("", "layers.*.attention.query layers.*.attention.key layers.*.attention.value"),
    "h.*.attn.c_proj": ("layers.*.attention.combined", "layers.*.attention.output"),
    "h.*.ln_2": ("layers.*.attention_residual", "layers.*.ffn_norm"),
    "h.*.mlp.c_fc": ("", "layers.*.ffn.hidden"),
    "h.*.mlp.act": ("", "layers.*.ffn.activation"),
    "h.*.mlp.c_proj": ("", "layers.*.ffn.output"),
    "h.*": ("", "layers.*.ffn_residual"),
    "ln_f": ("", "norm"),
    "lm_head": ("", "logits"),
    "classifier": ("", "logits"),
    "qa_outputs": ("", "spans"),
}
TABLES = {
    "distilbert": (DISTILBERT, modeling_distilbert),
    "bert": (BERT, modeling_bert),
    "electra": (ELECTRA, modeling_electra),
    "roberta": (ROBERTA, modeling_roberta),
    "albert": (ALBERT, modeling_albert),
    "mpnet": (MPNET, modeling_mpnet),
    "modernbert": (MODERNBERT, modeling_modernbert),
    "deberta-v2": (DEBERTA, modeling_deberta_v2),
    "nomic_bert": (NOMIC_BERT, modeling_nomic_bert),
    "gpt2": (GPT2, modeling_gpt2),
}


modeling_deberta_v2.scaled_size_sqrt = root  # for float32 too, whose results it rounds once
# Attention that calls no `eager_attention_forward`: the class, and its projections of the rows it gets.
OWN_ATTENTION = {
    modeling_mpnet: (modeling_mpnet.MPNetSelfAttention, ("q", "k", "v")),
    modeling_deberta_v2: (
        modeling_deberta_v2.DisentangledSelfAttention, ("query_proj", "key_proj", "value_proj")
    ),
}  # fmt: skip
PER_TEXT = ("pooler", "pooled")  # (B, D); so are the logits of a head on texts


def stages(
    model: Any, input_ids: np.ndarray, attention_mask: np.ndarray, **inputs: np.ndarray
) -> dict[str, list[np.ndarray]]:
    """Every stage of one run, as one flat array a text.

    What padding gives is left out: of (B, L, ...) the rows that the mask admits, of (B, H, L, L) rows and columns.
    """
    heard: dict[str, list[np.ndarray]] = {}
    admitted = [np.flatnonzero(row) for row in attention_mask.reshape(-1, attention_mask.shape[-1])]

    def hear(name: str, array: np.ndarray) -> None:
        if " " in name:  # the parts of one module's output
            names = name.split()
            for each, part in zip(names, np.split(array, len(names), axis=-1), strict=True):
                hear(each, part)
        elif name == "spans":
            hear("start_logits", array[..., 0])
            hear("end_logits", array[..., 1])
        elif name not in heard:  # DeBERTa's second projection by the same weights is of its table of distances
            heard[name] = _by_text(name, array, admitted)

    given = {"input_ids": input_ids, "attention_mask": attention_mask, **inputs}
    with torch.no_grad(), in_double() if model.dtype == torch.float64 else nullcontext(), recording(model, hear):
        model(**{name: torch.from_numpy(array) for name, array in given.items()})
    return heard


@contextmanager
def recording(model: Any, hear: Callable[[str, np.ndarray], None]) -> Iterator[None]:
    """Call hear(stage, array) for each stage of the runs inside."""
    table, module_of_family = TABLES[model.config.model_type]
    handles, layer_of = [], {}
    for path, module in model.named_modules():
        if isinstance(module, torch.nn.Identity):  # where a layer has no norm
            continue
        path = path.removeprefix(model.base_model_prefix + ".")
        number = re.search(r"\b(?:layers?|h)\.(\d+)\.", path + ".")  # not ALBERT's albert_layers
        layer_of[module] = number and number[1]
        before, after = table.get(re.sub(r"\b(layers?|h)\.\d+", r"\1.*", path), ("", ""))
        if layer_of[module]:
            before, after = (name.replace("*", layer_of[module]) for name in (before, after))
        if before == "pooled" and not (hasattr(model, "pre_classifier") or _pools(model)):
            before = ""  # a classifier of tokens, which reads the last layer itself
        if after == "logits" and type(model).__name__ == "ModernBertForQuestionAnswering":
            after = "spans"
        if path == "score":  # of every token's row; the answer has the one that is read
            handles.append(model.register_forward_hook(lambda _, args, out: hear("logits", out.logits.numpy())))
        if before:
            run = _in_turn(before)
            handles.append(module.register_forward_pre_hook(lambda _, args, run=run: hear(next(run), args[0].numpy())))
        if after:
            run = _in_turn(after)
            handles.append(module.register_forward_hook(lambda _, args, out, run=run: hear(next(run), out.numpy())))

    if module_of_family in OWN_ATTENTION:
        attention, projections = OWN_ATTENTION[module_of_family]
        forward = attention.forward
        attention.forward = _own_attention(forward, projections, layer_of, hear)
        try:
            yield
        finally:
            attention.forward = forward
            for handle in handles:
                handle.remove()
        return

    eager, layers = module_of_family.eager_attention_forward, itertools.count()

    def attention(module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: float, **kwargs: Any) -> Any:
        context, weights = eager(module, query, key, value, mask, scaling=scaling, **kwargs)
        scores = torch.matmul(query, key.transpose(2, 3)) * scaling  # eager_attention_forward's first line
        arrays = {"query_heads": query, "key_heads": key, "value_heads": value}
        if module_of_family in (modeling_modernbert, modeling_nomic_bert):
            rows = {
                f"{name}_rotated": each.transpose(1, 2).flatten(2) for name, each in (("query", query), ("key", key))
            }
            arrays |= rows
        arrays |= {"scores": scores, "weights": weights, "context": context.transpose(1, 2)}
        layer = layer_of[module] or next(layers)
        for name, array in arrays.items():
            hear(f"layers.{layer}.attention.{name}", array.numpy())
        return context, weights

    module_of_family.eager_attention_forward = attention
    try:
        yield
    finally:
        module_of_family.eager_attention_forward = eager
        for handle in handles:
            handle.remove()


def _pools(model: Any) -> bool:
    """Whether a ModernBERT's head reads a row of each text."""
    return type(model).__name__ in ("ModernBertForSequenceClassification", "ModernBertForMultipleChoice")


def _own_attention(
    forward: Any, projections: tuple[str, ...], layer_of: dict[Any, Any], hear: Callable[[str, np.ndarray], None]
) -> Any:
    """Attention that calls no `eager_attention_forward`: the stages between its modules are read off torch."""

    def attention(module: Any, hidden: Any, *args: Any, **kwargs: Any) -> Any:
        softmax, here = torch.nn.functional.softmax, f"layers.{layer_of[module]}.attention"
        heads = module.num_attention_heads

        def softmax_heard(scores: Any, dim: int) -> Any:
            weights = softmax(scores, dim=dim)
            hear(f"{here}.scores", scores.numpy())
            hear(f"{here}.weights", weights.numpy())
            return weights

        def heads_of(name: str, rows: Any) -> None:
            hear(f"{here}.{name}", rows.view(*rows.shape[:2], heads, -1).transpose(1, 2).numpy())

        def distances_heard(query: Any, *args: Any) -> Any:
            scores = distance_scores(query, *args)
            hear(f"{here}.distance_scores", scores.view(-1, heads, *scores.shape[-2:]).numpy())
            return scores

        handles = [
            getattr(module, layer).register_forward_hook(lambda _, args, out, name=name: heads_of(name, out))
            for name, layer in zip(("query_heads", "key_heads", "value_heads"), projections, strict=True)
        ]
        if hasattr(module, "o"):
            handles.append(module.o.register_forward_pre_hook(lambda _, args: heads_of("context", args[0])))
        if distance_scores := getattr(module, "disentangled_attention_bias", None):
            module.disentangled_attention_bias = distances_heard
        torch.nn.functional.softmax = softmax_heard
        try:
            result = forward(module, hidden, *args, **kwargs)
        finally:
            torch.nn.functional.softmax = softmax
            for handle in handles:
                handle.remove()
            if distance_scores:
                del module.disentangled_attention_bias  # the class's own again
        if not hasattr(module, "o"):
            heads_of("context", result[0])
        return result

    return attention


def _in_turn(name: str) -> Iterator[str]:
    """The stage of each run of a module; one that runs for every layer has a `*` left for its number."""
    for layer in itertools.count():
        yield name.replace("*", str(layer))


def _by_text(name: str, array: np.ndarray, admitted: list[np.ndarray]) -> list[np.ndarray]:
    array = np.broadcast_to(array, (len(admitted), *array.shape[1:]))  # positions come once for all texts
    if name in PER_TEXT or (name.startswith(("logits", "head.")) and array.ndim == 2):
        texts = list(array)
    elif name.endswith(("scores", ".weights")):
        texts = [each[:, rows][:, :, rows] for each, rows in zip(array, admitted, strict=True)]
    elif array.ndim == 4:  # heads
        texts = [each[:, rows] for each, rows in zip(array, admitted, strict=True)]
    else:
        texts = [each[rows] for each, rows in zip(array, admitted, strict=True)]
    return [text.flatten() for text in texts]  # a copy, so that the batch's array can go
