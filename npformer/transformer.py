"""Whole models, from token ids to answers: `forward` is an encoder with its head, `transformer` an encoder-decoder.

Only this module and `model.py` know a `Config`; the functions they call take what their formulas take. Each function
has its backward directly below.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from npformer import heads
from npformer.activations import ACTIVATIONS
from npformer.blocks import Convolution, Rows
from npformer.blocks.rows import Caches
from npformer.config import Config
from npformer.decoder_layers import decoder_layer_of, project, project_backward
from npformer.embeddings import embeddings, embeddings_backward, embeddings_stages
from npformer.encoder_layers import layer_of
from npformer.layers import Layer, Stack
from npformer.mechanisms import Causal, Disentangled, Mechanism, RelativeBias, Rotary, Window
from npformer.norms import LayerNorm
from npformer.runtime.packing import Batch, Text, pack
from npformer.runtime.threads import all_gather
from npformer.stage import SOURCE, Stage, within
from npformer.tape import Stages
from npformer.taps import scope, tap

POOLED_HEADS = ("sequence-classification", "next-sentence", "multiple-choice")  # they read one row of each text


def packed(config: Config, texts: Sequence[Text]) -> Batch:
    """Packs texts as a model of this config reads them."""
    return pack(texts, config.uncounted, last=config.pooling == "last", padding=config.pad_id)


def forward(weights: Mapping[str, Any], config: Config, batch: Batch, all_rows: bool = False) -> dict[str, np.ndarray]:
    """The head's answers from packed token ids: rows (T, ...) for heads on tokens, (B, ...) for heads on texts.

    all_rows: compute every row of the last layer, even where the head reads only one row of each text.
    """
    if config.decoder:
        return reread(weights, config, batch)
    of_texts, means = config.head in POOLED_HEADS, config.pooling == "mean"
    pooled_only = of_texts and not all_rows and not means
    x = encode(weights, config, batch, row_indices=batch.read if pooled_only else None)
    read = tap("read", batch.read) if of_texts else batch.read
    if of_texts and means:
        [whole] = all_gather(x)  # where threads share the rows of a text, the first one answers
        lengths = batch.lengths if len(whole) == len(x) else np.array([len(whole)])
        return answer(weights, config, x, heads.mean_rows(whole, lengths)[: len(read)])
    return answer(weights, config, x, x if pooled_only else x[read])


def answer(weights: Mapping[str, Any], config: Config, x: np.ndarray, read: np.ndarray) -> dict[str, np.ndarray]:
    """The head's answers from the last layer (T, D), and the row that is read of each text, or its mean (B, D)."""
    answers: dict[str, np.ndarray] = {}
    head, pooled = weights.get("head", {}), read
    if "norm" in head:  # it reads what `head_input` makes
        x = pooled = head_input(weights, config, tap("pooled", read) if config.head in POOLED_HEADS else x)
    if "pooler" in weights:
        pooled = heads.pool(read, ACTIVATIONS[config.pooler], **weights["pooler"])
    if config.head == "base":
        answers["last_hidden_state"] = x
        if "pooler" in weights:
            answers["pooler_output"] = pooled
    elif config.head in POOLED_HEADS:
        answers["logits"] = heads.classify(pooled, head["output"])
    elif config.head == "question-answering":
        answers["start_logits"], answers["end_logits"] = heads.spans(x, head["output"])
    elif config.head == "replaced-token":
        answers["logits"] = heads.replaced_tokens(x, ACTIVATIONS[config.below_head], **head)
    else:
        answers["logits"] = heads.classify(x, head["output"])
    return answers


def head_input(weights: Mapping[str, Any], config: Config, x: np.ndarray) -> np.ndarray:
    """The input of the head's last layer, from rows (..., D): a head with a norm has `heads.transform` below it."""
    head = weights["head"]
    if "norm" not in head:
        return x
    return heads.transform(x, ACTIVATIONS[config.below_head], head["hidden"], head["norm"], eps=config.eps)


def backward(
    grads: Mapping[str, np.ndarray], stages: Stages, weights: Mapping[str, Any], config: Config, batch: Batch
) -> dict[str, Any]:
    """Backward of `forward`: the gradients of the weights, in a tree like theirs, with `SparseRows` for the tables.

    grads holds the gradients of the answers by name, stages is the recording of the forward. A projection that shares
    the token table has its part of the gradient in "head"; the lookup's part is in "embeddings".
    """
    if config.decoder:
        return reread_backward(grads, stages, weights, config, batch)
    x, head, tree = last_rows(stages, weights, config), weights.get("head", {}), {}
    of_texts, means = config.head in POOLED_HEADS, config.pooling == "mean"
    reads_one = of_texts and not means and len(x) == len(batch.read)  # the forward computed only rows that are read
    row_indices = batch.read if reads_one else None
    read = x[batch.read] if row_indices is None else x
    if "norm" in head:
        return _backward_below(grads, stages, weights, config, batch, row_indices)
    if config.head == "base":
        grad = grads["last_hidden_state"].copy() if "last_hidden_state" in grads else np.zeros_like(x)
    elif config.head == "question-answering":
        grad, tree["head"] = heads.spans_backward(grads["start_logits"], grads["end_logits"], stages, x, **head)
    elif config.head == "replaced-token":
        activation = ACTIVATIONS[config.below_head]
        grad, tree["head"] = heads.replaced_tokens_backward(grads["logits"], stages, x, activation, **head)
    else:
        rows = (stages["pooled"] if "pooler" in weights else read) if of_texts else x
        grad, tree["head"] = heads.classify_backward(grads["logits"], stages, rows, **head)
    if "pooler" in weights and (of_texts or "pooler_output" in grads):
        d_pooled = grad if of_texts else grads["pooler_output"]
        activation = ACTIVATIONS[config.pooler]
        d_read, tree["pooler"] = heads.pool_backward(d_pooled, stages, read, activation, **weights["pooler"])
        if of_texts:
            grad = d_read
        else:
            grad[batch.read] += d_read
    if of_texts and row_indices is None:
        d_read, grad = grad, np.zeros_like(x)
        grad[batch.read] = d_read
    return tree | encode_backward(grad, stages, weights, config, batch, row_indices)


def _backward_below(
    grads: Mapping[str, np.ndarray],
    stages: Stages,
    weights: Mapping[str, Any],
    config: Config,
    batch: Batch,
    row_indices: np.ndarray | None,
) -> dict[str, Any]:
    """Backward of `forward` with a head of any kind that has `heads.transform` below its own layer."""
    x, head, normed = last_rows(stages, weights, config), weights["head"], stages["head.norm"]
    of_texts = config.head in POOLED_HEADS
    if config.head == "question-answering":
        answered = grads["start_logits"], grads["end_logits"]
        grad, d_head = heads.spans_backward(*answered, stages, normed, head["output"])
    else:
        grad, d_head = heads.classify_backward(grads["logits"], stages, normed, head["output"])
    rows, activation = stages["pooled"] if of_texts else x, ACTIVATIONS[config.below_head]
    layers = head["hidden"], head["norm"]
    grad, d_below = heads.transform_backward(grad, stages, rows, activation, *layers, eps=config.eps)
    if of_texts:
        grad = stages.through_edit("pooled", grad)
        if config.pooling == "mean":
            grad = heads.mean_rows_backward(grad, batch.lengths)
        elif row_indices is None:
            d_read, grad = grad, np.zeros_like(x)
            grad[batch.read] = d_read
    return {"head": d_below | d_head, **encode_backward(grad, stages, weights, config, batch, row_indices)}


def encode(
    weights: Mapping[str, Any],
    config: Config,
    batch: Batch,
    row_indices: np.ndarray | None = None,
    caches: Sequence[Caches] | None = None,
) -> np.ndarray:
    """The encoder's last layer, packed token ids -> (T, D), or (B, D) with row_indices, one row of each text.

    caches: each layer's keys and values of the texts' earlier rows.
    """
    ids, lengths = tap("ids", batch.ids), tap("lengths", batch.lengths)
    scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
    positions = batch.positions + config.first_position
    x = embeddings(ids, positions, batch.token_type_ids, **weights["embeddings"], eps=config.eps, scale=scale)
    rows = Rows(lengths, batch, row_indices, caches=caches)
    return encoder_stack(config, is_gated(weights))(x, rows, weights)


def is_gated(weights: Mapping[str, Any]) -> bool:
    """Whether the feed-forward networks of a stack with these weights have a gate."""
    return any("gate" in layer["ffn"] for layer in weights["layers"])


def encoder_stack(config: Config, gated: bool) -> Stack:
    """The layers of an encoder, or of a decoder on its own. gated: its feed-forward networks have a gate."""
    norm, activation = LayerNorm(config.eps), ACTIVATIONS[config.activation]
    layers = [
        layer_of(config.n_heads, activation, gated, norm, config.norm_first, mechanisms(config, i))
        for i in range(config.n_layers)
    ]
    convolution = None
    if config.convolution:
        block = Convolution(ACTIVATIONS[config.convolution_activation])
        convolution = Layer((("convolution", block),), norm)
    return Stack(tuple(layers), norm, convolution)


def mechanisms(config: Config, layer: int) -> tuple[Mechanism, ...]:
    """How a layer's attention knows where tokens stand."""
    local, found = config.is_local(layer), list[Mechanism]()
    if config.relative_buckets:
        found.append(RelativeBias(config.max_length))
    if config.rotary_theta:
        found.append(Rotary(config.local_theta if local else config.rotary_theta, config.d_head))
    if config.n_distances:
        found.append(Disentangled(config.n_distances, config.max_distance, config.eps, config.distance_forms))
    if local and config.window:
        found.append(Window(config.window // 2))
    if config.causal:
        found.append(Causal())
    return tuple(found)


def encode_backward(
    grad: np.ndarray,
    stages: Stages,
    weights: Mapping[str, Any],
    config: Config,
    batch: Batch,
    row_indices: np.ndarray | None = None,
) -> dict[str, Any]:
    """Backward of `encode`: the gradients of the encoder's weights, from that of its last layer, (T, D) or (B, D)."""
    scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
    tables = weights["embeddings"]
    x = stages[embedded(tables)]
    stack = encoder_stack(config, is_gated(weights))
    grad, tree, _ = stack.backward(grad, stages, x, Rows(batch.lengths, batch, row_indices), weights)
    grads = embeddings_backward(
        grad, stages, batch.ids, batch.positions + config.first_position, batch.token_type_ids, **tables,
        eps=config.eps, scale=scale, padding_idx=config.padding_idx,
    )  # fmt: skip
    return {"embeddings": grads, **tree}


def embedded(tables: Mapping[str, Any]) -> str:
    """Names the last stage of embeddings with these weights."""
    last = "project" if "project" in tables else "norm" if "norm" in tables else "sum"
    return f"embeddings.{last}"


def head_stack(config: Config, weights: Mapping[str, Any]) -> tuple[Stack, str, Mapping[str, Any]]:
    """The stack that the head reads, the beginning of its stages' names, and its weights."""
    if config.decoder:
        return decoder_stack(config), "decoder.", weights["decoder"]
    return encoder_stack(config, is_gated(weights)), "", weights


def last_rows(stages: Stages, weights: Mapping[str, Any], config: Config) -> np.ndarray:
    """The encoder's last layer in a recording, (T, D) or (B, D)."""
    return stages[encoder_stack(config, is_gated(weights)).output(weights)]


# --- the encoder-decoder ----------------------------------------------------------------------------------------------


def transformer(weights: Mapping[str, Any], config: Config, source: Batch, target: Batch) -> dict[str, np.ndarray]:
    """Computes from packed ids the logits of the token after each target token. Vaswani et al., 2017, section 3.

    Text i of target attends to text i of source. Returns logits (T, V) and encoder_last_hidden_state (S, D).
    """
    encoder_output = encode_source(weights, config, source)
    x = decode_target(weights, config, target, encoder_output, source.lengths)
    return {"logits": project(x, **weights["head"]["output"]), "encoder_last_hidden_state": encoder_output}


def transformer_backward(
    grads: Mapping[str, np.ndarray],
    stages: Stages,
    weights: Mapping[str, Any],
    config: Config,
    source: Batch,
    target: Batch,
) -> dict[str, Any]:
    """Backward of `transformer`: the gradients of the weights, in a tree like theirs, with `SparseRows` for the tables.

    grads holds the gradient of the logits, stages is the recording of the forward. A projection that shares a token
    table has its part of the gradient in "head"; the lookup's part is in "encoder" or "decoder".
    """
    x = last_decoded(stages, weights, config)
    grad, d_output = project_backward(grads["logits"], stages, x, **weights["head"]["output"])
    return {**_stacks_backward(grad, stages, weights, config, source, target), "head": {"output": d_output}}


def _stacks_backward(
    grad: np.ndarray, stages: Stages, weights: Mapping[str, Any], config: Config, source: Batch, target: Batch
) -> dict[str, Any]:
    """The gradients of both stacks' weights, from that of the decoder's last layer (T, D)."""
    encoder_output = last_rows(stages.within("encoder"), weights["encoder"], config)
    grad, d_decoder = decode_target_backward(grad, stages, weights, config, target, encoder_output, source.lengths)
    d_encoder = encode_backward(grad, stages.within("encoder"), weights["encoder"], config, source)
    return {"encoder": d_encoder, "decoder": d_decoder}


def last_decoded(stages: Stages, weights: Mapping[str, Any], config: Config) -> np.ndarray:
    """The decoder's last layer in a recording, (T, D)."""
    return stages.within("decoder")[decoder_stack(config).output(weights["decoder"])]


def reread(weights: Mapping[str, Any], config: Config, batch: Batch) -> dict[str, np.ndarray]:
    """The answers of a head on a decoder that reads each text again, one token later. Lewis et al., 2020, section 3.

    A head on texts reads the row of a text's last end token, the only one that attends to the whole text.
    """
    encoder_output = encode_source(weights, config, batch)
    x = decode_target(weights, config, batch.shifted(config.decoder.start_id), encoder_output, batch.lengths)
    rows = batch.last_of(config.decoder.end_ids[0]) if config.head in POOLED_HEADS else batch.first
    return answer(weights, config, x, x[rows])


def reread_backward(
    grads: Mapping[str, np.ndarray], stages: Stages, weights: Mapping[str, Any], config: Config, batch: Batch
) -> dict[str, Any]:
    """Backward of `reread`: the gradients of the weights, in a tree like theirs."""
    x, head, tree = last_decoded(stages, weights, config), weights["head"], {}
    if config.head == "question-answering":
        answered = grads["start_logits"], grads["end_logits"]
        grad, tree["head"] = heads.spans_backward(*answered, stages, x, **head)
    else:
        rows = batch.last_of(config.decoder.end_ids[0])
        d_pooled, tree["head"] = heads.classify_backward(grads["logits"], stages, stages["pooled"], **head)
        activation = ACTIVATIONS[config.pooler]
        d_rows, tree["pooler"] = heads.pool_backward(d_pooled, stages, x[rows], activation, **weights["pooler"])
        grad = np.zeros_like(x)
        grad[rows] = d_rows
    return tree | _stacks_backward(grad, stages, weights, config, batch, batch.shifted(config.decoder.start_id))


def encode_source(weights: Mapping[str, Any], config: Config, source: Batch) -> np.ndarray:
    """The encoder's output, (S, D)."""
    with scope("encoder"):
        return encode(weights["encoder"], config, source)


def decode_target(
    weights: Mapping[str, Any],
    config: Config,
    target: Batch,
    source: np.ndarray,
    source_lengths: np.ndarray,
    caches: Sequence[Caches] | None = None,
) -> np.ndarray:
    """The decoder's last layer, (T, D). caches: each layer's keys and values of earlier rows and of the source."""
    ids, lengths, weights = tap("ids", target.ids), tap("lengths", target.lengths), weights["decoder"]
    scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
    with scope("decoder"):
        positions = target.positions + config.first_position
        x = embeddings(ids, positions, None, **weights["embeddings"], eps=config.eps, scale=scale)
        rows = Rows(lengths, target, source=source, source_lengths=source_lengths, caches=caches)
        return decoder_stack(config)(x, rows, weights)


def decoder_stack(config: Config) -> Stack:
    """The layers of a decoder that reads a source."""
    norm, activation = LayerNorm(config.eps), ACTIVATIONS[config.activation]
    layer = decoder_layer_of(config.decoder.n_heads, activation, norm, config.norm_first)
    return Stack((layer,) * config.decoder.n_layers, norm)


def decode_target_backward(
    grad: np.ndarray,
    stages: Stages,
    weights: Mapping[str, Any],
    config: Config,
    target: Batch,
    source: np.ndarray,
    source_lengths: np.ndarray,
) -> tuple[np.ndarray, dict[str, Any]]:
    """Backward of `decode_target`: dsource (S, D) and the gradients of the decoder's weights."""
    stages, weights = stages.within("decoder"), weights["decoder"]
    scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
    x = stages[embedded(weights["embeddings"])]
    rows = Rows(target.lengths, target, source=source, source_lengths=source_lengths)
    grad, tree, shared = decoder_stack(config).backward(grad, stages, x, rows, weights)
    tables = weights["embeddings"]
    d_tables = embeddings_backward(
        grad, stages, target.ids, target.positions + config.first_position, None, **tables, eps=config.eps,
        scale=scale, padding_idx=config.padding_idx,
    )  # fmt: skip
    return shared[SOURCE]["rows"], {"embeddings": d_tables, **tree}


# --- stages ----------------------------------------------------------------------------------------------------------


def stages(weights: Mapping[str, Any], config: Config) -> list[Stage]:
    """The stages of a model in firing order, each with the stages it is computed from, for a tree with its groups."""
    if not config.decoder:
        found = _stages_of(encoder_stack(config, is_gated(weights)), weights)
        return [*found, *_stages_of_head(weights, config, found[-1].name)]
    encoder = _stages_of(encoder_stack(config, is_gated(weights["encoder"])), weights["encoder"])
    encoder = within("encoder", encoder, {}, hooks=None)
    decoder = _stages_of(decoder_stack(config), weights["decoder"])
    found = [*encoder, *within("decoder", decoder, {SOURCE: encoder[-1].name}, hooks=None)]
    return [*found, *_stages_of_head(weights, config, found[-1].name)]


def unread(weights: Mapping[str, Any], config: Config) -> frozenset[str]:
    """The stages of a model that its backward does not read."""
    return frozenset(stage.name for stage in stages(weights, config) if not stage.kept)


def _stages_of(stack: Stack, weights: Mapping[str, Any]) -> list[Stage]:
    found = embeddings_stages(weights["embeddings"])
    return [*found, *stack.stages(weights, found[-1].name)]


def _stages_of_head(weights: Mapping[str, Any], config: Config, x: str) -> list[Stage]:
    """The stages of `answer`, of rows that are stage x."""
    head, found, of_texts = weights.get("head", {}), list[Stage](), config.head in POOLED_HEADS
    read = pooled = x
    if "norm" in head:
        found = [heads.pooled_stage(x)] if of_texts else []
        found += heads.transform_stages(found[-1].name if of_texts else x, ACTIVATIONS[config.below_head])
        x = pooled = found[-1].name
    if "pooler" in weights:
        found += heads.pool_stages(read)
        pooled = found[-1].name
    if config.head == "replaced-token":
        found += heads.transform_stages(x, ACTIVATIONS[config.below_head], norm=False)
        return [*found, heads.classify_stage("head.activation")]
    if config.head == "question-answering":
        return found + heads.spans_stages(x)
    return found if config.head == "base" else [*found, heads.classify_stage(pooled if of_texts else x)]
