"""Whole models, from token ids to answers: `forward` for a stack with a head, `transformer` for an encoder-decoder.

The family of a model builds its parts from the `Config`, and the functions here call them in sequence. A backward
function is directly below its forward function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from npformer.engine.blocks.packed_texts import Caches, PackedTexts, Source
from npformer.engine.descriptions.stage import SOURCE, Stage, within
from npformer.engine.embeddings import Embeddings
from npformer.engine.layers.stack import Stack
from npformer.engine.output_heads.formulas import mean_rows, mean_rows_backward
from npformer.engine.parts import Parts
from npformer.engine.runtime.packing import Batch
from npformer.engine.runtime.steps import Steps
from npformer.engine.runtime.threads import all_gather
from npformer.engine.tape import Stages
from npformer.engine.taps import scope, tap


def forward(
    weights: Mapping[str, Any],
    parts: Parts,
    batch: Batch,
    all_rows: bool = False,
    resumed: tuple[int, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """The answers of the head from packed token ids: (T, ...) for heads on tokens, (B, ...) for heads on texts.

    all_rows: compute every row of the last layer, even if the head reads only one row of each text. resumed: the index
    of the first layer to compute, and its input (T, D). A model with a decoder ignores both arguments.
    """
    if parts.decoder:
        return reread(weights, parts, batch)
    pooled_only = not all_rows and _reads_one_row(parts)
    x = encode(weights, parts, batch, row_indices=batch.read if pooled_only else None, resumed=resumed)
    return _headed(x, weights, parts, batch, pooled_only)


def forward_in_steps(weights: Mapping[str, Any], parts: Parts, batch: Batch) -> Steps[dict[str, np.ndarray]]:
    """Computes the answers of `forward` in steps, one for each layer. A model with a decoder takes a single step."""
    if parts.decoder:
        return reread(weights, parts, batch)
    pooled_only = _reads_one_row(parts)
    texts = PackedTexts(batch.lengths, batch, batch.read if pooled_only else None)
    x = yield from parts.stack.in_steps(parts.embeddings(batch.ids, batch, weights), texts, weights)
    return _headed(x, weights, parts, batch, pooled_only)


def _reads_one_row(parts: Parts) -> bool:
    """Whether the head reads only one row of each text."""
    head = parts.head
    return bool(head.of_texts and not head.means)


def _headed(
    x: np.ndarray, weights: Mapping[str, Any], parts: Parts, batch: Batch, pooled_only: bool
) -> dict[str, np.ndarray]:
    """The answers of the head, given the output x of the stack."""
    head = parts.head
    read = tap("read", batch.read) if head.of_texts else batch.read
    if head.means:
        [whole] = all_gather(x)  # threads may share the rows of a text, and the first thread computes the answer
        lengths = batch.lengths if len(whole) == len(x) else np.array([len(whole)])
        return head(x, mean_rows(whole, lengths)[: len(read)], weights)
    return head(x, x if pooled_only else x[read], weights)


def backward(
    grads: Mapping[str, np.ndarray], stages: Stages, weights: Mapping[str, Any], parts: Parts, batch: Batch
) -> dict[str, Any]:
    """Backward of `forward`: the gradients, in a tree with the structure of `weights`, tables as `SparseRows`.

    grads: the gradients of the answers by name. stages: the recording of the forward pass. If the token table is tied
    to the output projection, the gradient of the projection is under "head", and the gradient of the lookup is under
    "embeddings".
    """
    if parts.decoder:
        return reread_backward(grads, stages, weights, parts, batch)
    head, x = parts.head, last_rows(stages, parts)
    pooled_only = head.of_texts and not head.means and len(x) == len(batch.read)
    read = slice(None) if pooled_only else batch.read
    dx, d_read, tree = head.backward(grads, stages, x, x[read], weights)
    if head.means and d_read is not None:
        dx, d_read = mean_rows_backward(d_read, batch.lengths), None
    dx = _scattered(dx, d_read, x, read)
    return tree | encode_backward(dx, stages, weights, parts, batch, batch.read if pooled_only else None)


def _scattered(dx: np.ndarray | None, d_read: np.ndarray | None, x: np.ndarray, read: Any) -> np.ndarray:
    """The gradient of all rows x: dx (or zeros if it is None), with d_read added to the rows that the head reads."""
    if dx is None:
        dx = np.zeros_like(x)
        dx[read] = d_read
    elif d_read is not None:
        dx[read] += d_read
    return dx


def encode(
    weights: Mapping[str, Any],
    parts: Parts,
    batch: Batch,
    row_indices: np.ndarray | None = None,
    caches: Sequence[Caches] | None = None,
    resumed: tuple[int, np.ndarray] | None = None,
) -> np.ndarray:
    """The output of the stack from packed token ids: (T, D), or (B, D) with row_indices, one row of each text.

    caches: for each layer, the keys and values of earlier rows of the texts. resumed: as in `forward`.
    """
    ids, lengths = tap("ids", batch.ids), tap("lengths", batch.lengths)
    first, x = resumed or (0, parts.embeddings(ids, batch, weights))
    return parts.stack(x, PackedTexts(lengths, batch, row_indices, caches=caches), weights, first)


def encode_backward(
    grad: np.ndarray,
    stages: Stages,
    weights: Mapping[str, Any],
    parts: Parts,
    batch: Batch,
    row_indices: np.ndarray | None = None,
) -> dict[str, Any]:
    """Backward of `encode`: the gradients of the weights, given the gradient of its output, (T, D) or (B, D)."""
    x = stages[parts.embeddings.output]
    grad, tree, _ = parts.stack.backward(grad, stages, x, PackedTexts(batch.lengths, batch, row_indices), weights)
    return {"embeddings": parts.embeddings.backward(grad, stages, batch, weights), **tree}


def head_stack(parts: Parts, weights: Mapping[str, Any]) -> tuple[Embeddings, Stack, str, Mapping[str, Any]]:
    """The embeddings and stack before the head, the prefix of their stage names, and their weights."""
    if parts.decoder:
        return *_decoder(parts), "decoder.", weights["decoder"]
    return parts.embeddings, parts.stack, "", weights


def last_rows(stages: Stages, parts: Parts) -> np.ndarray:
    """The output of `encode` in a recording, (T, D) or (B, D)."""
    return stages[parts.stack.output(parts.embeddings.output)]


# --- the encoder-decoder ----------------------------------------------------------------------------------------------


def transformer(weights: Mapping[str, Any], parts: Parts, source: Batch, target: Batch) -> dict[str, np.ndarray]:
    """The logits of the token after each target token, given packed ids. Vaswani et al., 2017, section 3.

    Text i of target attends to text i of source. Returns logits (T, V) and encoder_last_hidden_state (S, D).
    """
    encoder_output = encode_source(weights, parts, source)
    x = decode_target(weights, parts, target, Source(encoder_output, source.lengths))
    return {**parts.head(x, x, weights), "encoder_last_hidden_state": encoder_output}


def transformer_backward(
    grads: Mapping[str, np.ndarray],
    stages: Stages,
    weights: Mapping[str, Any],
    parts: Parts,
    source: Batch,
    target: Batch,
) -> dict[str, Any]:
    """Backward of `transformer`: the gradients, in a tree with the structure of `weights`, tables as `SparseRows`.

    grads: the gradient of the logits. stages: the recording of the forward pass. If a token table is tied to the output
    projection, the gradient of the projection is under "head", and the gradient of the lookup is under the stack that
    owns the table.
    """
    x = last_decoded(stages, parts)
    grad, _, tree = parts.head.backward(grads, stages, x, x, weights)
    assert grad is not None
    return {**_stacks_backward(grad, stages, weights, parts, source, target), **tree}


def _stacks_backward(
    grad: np.ndarray, stages: Stages, weights: Mapping[str, Any], parts: Parts, source: Batch, target: Batch
) -> dict[str, Any]:
    """The gradients of the weights of both stacks, given the gradient of the decoder's output (T, D)."""
    encoded = Source(last_rows(stages.within("encoder"), parts), source.lengths)
    grad, d_decoder = decode_target_backward(grad, stages, weights, parts, target, encoded)
    d_encoder = encode_backward(grad, stages.within("encoder"), weights["encoder"], parts, source)
    return {"encoder": d_encoder, "decoder": d_decoder}


def _decoder(parts: Parts) -> tuple[Embeddings, Stack]:
    """The embeddings and the stack of the decoder."""
    decoder = parts.decoder
    assert decoder is not None
    return decoder


def last_decoded(stages: Stages, parts: Parts) -> np.ndarray:
    """The decoder's output in a recording, (T, D)."""
    embeddings, stack = _decoder(parts)
    return stages.within("decoder")[stack.output(embeddings.output)]


def reread(weights: Mapping[str, Any], parts: Parts, batch: Batch) -> dict[str, np.ndarray]:
    """The answers of a head on a decoder that reads each text again, shifted right. Lewis et al., 2020, section 3.

    A head on texts reads the row of the last end token, which is the only token that attends to the whole text.
    """
    source = Source(encode_source(weights, parts, batch), batch.lengths)
    x = decode_target(weights, parts, _shifted(parts, batch), source)
    head = parts.head
    return head(x, x[_ends(parts, batch)] if head.of_texts else x, weights)


def reread_backward(
    grads: Mapping[str, np.ndarray], stages: Stages, weights: Mapping[str, Any], parts: Parts, batch: Batch
) -> dict[str, Any]:
    """Backward of `reread`: the gradients, in a tree with the structure of `weights`."""
    x, head = last_decoded(stages, parts), parts.head
    read = _ends(parts, batch) if head.of_texts else batch.first
    dx, d_read, tree = head.backward(grads, stages, x, x[read], weights)
    grad = _scattered(dx, d_read, x, read)
    return tree | _stacks_backward(grad, stages, weights, parts, batch, _shifted(parts, batch))


def _ends(parts: Parts, batch: Batch) -> np.ndarray:
    """The row of the last end token of each text."""
    assert parts.end_id is not None
    return batch.last_of(parts.end_id)


def _shifted(parts: Parts, batch: Batch) -> Batch:
    """The texts that the decoder reads: the start token is added, and the last token is removed."""
    assert parts.start_id is not None
    return batch.shifted(parts.start_id)


def encode_source(weights: Mapping[str, Any], parts: Parts, source: Batch) -> np.ndarray:
    """The encoder's output, (S, D)."""
    with scope("encoder"):
        return encode(weights["encoder"], parts, source)


def decode_target(
    weights: Mapping[str, Any],
    parts: Parts,
    target: Batch,
    source: Source,
    caches: Sequence[Caches] | None = None,
) -> np.ndarray:
    """The decoder's output, (T, D). caches: for each layer, the keys and values of earlier rows and of the source."""
    ids, lengths, weights = tap("ids", target.ids), tap("lengths", target.lengths), weights["decoder"]
    embeddings, stack = _decoder(parts)
    with scope("decoder"):
        x = embeddings(ids, target, weights)
        return stack(x, PackedTexts(lengths, target, source=source, caches=caches), weights)


def decode_target_backward(
    grad: np.ndarray,
    stages: Stages,
    weights: Mapping[str, Any],
    parts: Parts,
    target: Batch,
    source: Source,
) -> tuple[np.ndarray, dict[str, Any]]:
    """Backward of `decode_target`: dsource (S, D) and the gradients of the decoder's weights."""
    stages, weights, (embeddings, stack) = stages.within("decoder"), weights["decoder"], _decoder(parts)
    texts = PackedTexts(target.lengths, target, source=source)
    x = stages[embeddings.output]
    grad, tree, shared = stack.backward(grad, stages, x, texts, weights)
    return shared[SOURCE]["rows"], {"embeddings": embeddings.backward(grad, stages, target, weights), **tree}


# --- stages ----------------------------------------------------------------------------------------------------------


def stages(weights: Mapping[str, Any], parts: Parts) -> list[Stage]:
    """The stages of a model with these weights, in the order in which they are computed."""
    if parts.decoder is None:
        found = _stages_of(parts.embeddings, parts.stack)
    else:
        encoder = within("encoder", _stages_of(parts.embeddings, parts.stack), {}, hooks=None)
        decoder = _stages_of(*parts.decoder)
        found = [*encoder, *within("decoder", decoder, {SOURCE: encoder[-1].name}, hooks=None)]
    return [*found, *parts.head.stages(found[-1].name, weights)]


def unread(weights: Mapping[str, Any], parts: Parts) -> frozenset[str]:
    """The stages of a model that its backward pass does not read."""
    return frozenset(stage.name for stage in stages(weights, parts) if not stage.kept)


def _stages_of(embeddings: Embeddings, stack: Stack) -> list[Stage]:
    found = embeddings.stages
    return [*found, *stack.stages(found[-1].name)]
