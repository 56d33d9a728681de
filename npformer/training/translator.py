"""Creates a new translation model: its vocabulary, config, and other files."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from npformer.common.errors import NpformerError
from npformer.config import Config, Decoder
from npformer.families.marian import MARIAN
from npformer.text.translation_tokenizer import FILE

END, PAD = "</s>", "<pad>"  # ids 0 and 1; as in Marian, the decoder starts with the padding token
MOST = 10**6  # maximum size of a vocabulary


def learn_tokenizer(texts: Iterable[str], size: int) -> Any:
    """Learns a byte-level BPE vocabulary that both languages share, and that can encode every character.

    Returns a `tokenizers.Tokenizer` that appends `END`. The same texts give the same tokenizer. Raises NpformerError if
    the size is above MOST or too small for a token for each byte. Sennrich et al., 2016.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    special, alphabet = [END, PAD], pre_tokenizers.ByteLevel.alphabet()
    least = len(special) + len(alphabet)
    if not least <= size <= MOST:
        raise NpformerError(f"expected a vocabulary of {least} to {MOST} tokens, got {size}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[AddedToken(each, special=True) for each in special],
        initial_alphabet=sorted(alphabet), show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, 0)])
    return tokenizer


def translator(vocabulary: int, width: int, heads: int, layers: int, ffn: int, longest: int) -> Config:
    """Returns the config of the original encoder-decoder as a Marian model, which Transformers can also read.

    Source embeddings, target embeddings and the projection share a table. Embeddings are multiplied by sqrt(width).
    The activation is ReLU, and norms come after the blocks. Vaswani et al., 2017, sections 3.3 and 3.4.
    """
    return MARIAN.config(
        "translation", vocab_size=vocabulary, d_model=width, n_heads=heads, n_layers=layers, d_ffn=ffn,
        max_length=longest, activation="relu", scale_embedding=True, shared=True, tied=True, pad_id=1, padding_idx=1,
        decoder=Decoder(layers, heads, ffn, vocabulary, start_id=1, end_ids=(0,)),
    )  # fmt: skip


def companions(tokenizer: Any, longest: int) -> dict[str, bytes]:
    """Returns the files with the tokenizer and generation settings of a translation model, as contents by file name."""
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "pad_token": PAD}
    generation = {
        "num_beams": 5, "max_length": longest, "decoder_start_token_id": 1, "eos_token_id": 0, "pad_token_id": 1,
        "forced_eos_token_id": 0, "bad_words_ids": [[1]],
    }  # fmt: skip
    files = {
        FILE: tokenizer.to_str(pretty=True),
        "tokenizer_config.json": json.dumps({**settings, "model_max_length": longest}, indent=2) + "\n",
        "generation_config.json": json.dumps(generation, indent=2) + "\n",
    }
    return {name: text.encode() for name, text in files.items()}
