"""Text to token ids and back: tokenizers, pairs, windows, special tokens."""
