"""Traces, edits and attributions of a forward pass, all built on `npformer.tap`; `view/` draws them."""
