"""Converts texts to token ids and back: tokenizers, pairs, windows, and special tokens."""
