"""Traces, edits and attributions of a forward pass, all built on `npformer.tap`; `view/` draws them.

`traces.py` records stages and `gradients.py` their gradients, `edits.py` changes stages, `patching.py` measures the
effect, and `direct_attribution.py` takes a logit apart. `stages.py` names stages here and in other libraries,
`metric.py` the metrics of effects, `logit_lens.py` the logits of each layer, `answer.py` and `head_effects.py` the
answer and its heads, `next_words.py` the next words at any temperature, `copies.py` batches of edited copies,
`cost.py` what a study of a long text may cost.
`attribution.py`, `integrated_gradients.py` and `source_attribution.py` score words for a view.
"""
