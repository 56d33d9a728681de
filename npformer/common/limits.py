"""`Limits`: limits on files and texts, checked before memory or time is spent.

`MOST` in `config.py` is the limit for each size of a model.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

from npformer.common import checks
from npformer.common.errors import NpformerError


@dataclass(frozen=True)
class Limits:
    """Limits on files and texts. A file or text that exceeds a limit is rejected with an error that names the limit.

    The defaults are well above the needs of any known checkpoint. With the defaults, a malicious checkpoint takes at
    most a few seconds and a few hundred megabytes. There is no limit on weights, because the sizes in config.json are
    checked against the bytes in the files.

    Parameters
    ----------
    json : int, bytes of a JSON file, such as tokenizer.json or the index of shards
        The largest vocabularies, with 260,000 pieces, have tokenizer.json files of 35 MB.
    config : int, bytes of config.json
        The largest files, with labels for 21,000 classes, take 1 MB.
    header : int, bytes of the header of a safetensors file
        A BERT of 48 layers has a header of 80 kB. For traces and golden files, which have more arrays, the limit is
        `json`.
    pickle : int, instructions of the pickle in a file of torch.save
        A checkpoint of a thousand tensors has about forty thousand instructions.
    directory : int, bytes of the list of entries in a zip file of torch.save
        The list for a thousand tensors takes about 100 kB.
    layers : int, total number of layers of encoder and decoder
        The deepest published encoders have 48 layers.
    labels : int, labels of a classification head
        The largest known heads have 21,000 labels.
    positions : int, numbers in a table of sinusoidal positions, which is computed and not stored in files
        The default allows 32,768 positions of width 1,024. Marian's models have 512 positions of width 512.
    cache : int, bytes of the keys and values that are cached while one text is generated
        GPT-2 XL takes 0.6 GB for a beam of 1,024 tokens.
    unpacked : int, bytes of the unpacked arrays of an npz file
        The default allows every stage of 18 texts of 128 tokens in BERT-base, in float32.
    tokenizer : int, bytes of a tokenizer.json without its vocabulary
    vocabulary : int, bytes of vocab.txt, merges.txt or of a SentencePiece model
        A file with 250,000 pieces takes 5 MB.
    parts : int, parts of a tokenizer.json: normalizers, splits, processors, decoders, and the tokens around a text
    piece : int, characters of a piece, pattern or replacement in a tokenizer, and of a word that is split into pieces
    growth : int, maximum factor by which a tokenizer may lengthen a text in the worst case
        SentencePiece tokenizers have factors of up to 72, because a rare Arabic character becomes eighteen characters.
        The normalized length of a long text is also measured. A text with more than 8 times `characters` is rejected.
    characters : int, characters of a text
        Tokenizing a million characters at once takes up to 3 s and 600 MB. The tokenizers of BERT and GPT-2 can split
        longer texts into blocks. Truncating such a text then needs memory for one block, and reading it in windows
        needs 100 MB.
    windows : int, tokens in all windows of a text
        Windows repeat the tokens that they share, and the other text of a pair. Four million tokens take 300 MB.

    Examples
    --------
    >>> npformer.load("distilbert-sst2", limits=npformer.Limits(layers=4))
    Traceback (most recent call last):
    npformer.common.errors.NpformerError: ...: 6 is more than the limit `layers` of 4; ...
    """

    json: int = 64_000_000
    config: int = 4_000_000
    header: int = 4_000_000
    pickle: int = 300_000
    directory: int = 8_000_000
    layers: int = 500
    labels: int = 100_000
    positions: int = 2**25
    cache: int = 2**32
    unpacked: int = 2**31
    tokenizer: int = 8_000_000
    vocabulary: int = 64_000_000
    parts: int = 100
    piece: int = 1_000
    growth: int = 256
    characters: int = 1_000_000
    windows: int = 4_000_000

    def __post_init__(self) -> None:
        for field in fields(self):
            checks.whole(f"limits.{field.name}", getattr(self, field.name), 0)

    def __repr__(self) -> str:
        return checks.brief(self)

    def check(self, name: str, found: int, where: object) -> None:
        """Raises NpformerError if `found` is more than the limit with the given name."""
        most = getattr(self, name)
        if found > most:
            raise NpformerError(
                f"{where}: {checks.shown(found)} is more than the limit `{name}` of {most}; {how_to_allow_more(name)}"
            )

    @classmethod
    def parse(cls, allowed: Iterable[str]) -> Limits:
        """Creates limits from settings such as "layers=2000", with defaults for the other limits."""
        changed: dict[str, Any] = {}
        for setting in allowed:
            name, _, number = setting.partition("=")
            checks.one_of("--allow", name, [field.name for field in fields(cls)])
            changed[name] = checks.whole(f"--allow {name}", int(number) if number.isdecimal() else number, 0)
        return replace(LIMITS, **changed)


def how_to_allow_more(name: str) -> str:
    """The advice in an error message about a limit."""
    return (
        f"if you trust the source, allow more: load(..., limits=npformer.Limits({name}=N)), or --allow {name}=N on the "
        "command line"
    )


LIMITS = Limits()  # the defaults
