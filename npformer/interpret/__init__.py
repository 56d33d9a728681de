"""Looking inside a forward pass: traces, edits, attribution. Each is built on `npformer.tap`; `view/` draws them."""
