"""From texts to token ids that fit the model, and back: tokenizers, pairs, windows, special tokens."""
