"""Traces, edits and attributions of a forward pass, all built on `npformer.tap`. `view/` draws them.

`traces.py` records stages, and `gradients.py` their gradients. `edits.py` changes stages, and `patching.py` measures
the effect. `direct_attribution.py` decomposes a logit. `stages.py` has the names of stages in npformer and other
libraries. `metric.py` has the metrics of effects, `logit_lens.py` the logits of each layer, `answer.py` the model's
answer, `head_effects.py` the effect of each head on that answer, and `next_words.py` the next words at any temperature.
`copies.py` runs batches of edited copies, and `cost.py` limits the cost of studies of long texts.
`attribution.py`, `integrated_gradients.py` and `source_attribution.py` score words for a view.
"""
