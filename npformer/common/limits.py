"""The most that a file or a text may ask for before memory or time is spent on it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

from npformer.common import checks
from npformer.common.errors import NpformerError


@dataclass(frozen=True)
class Limits:
    """The most that files and texts may ask for; what asks for more is refused, with the name of the limit.

    Every default leaves far more room than any real checkpoint needs, and costs a hostile one a few seconds and some
    hundred megabytes at most. Weights themselves have no limit: their sizes in config.json are held against the bytes
    that the files have.

    Parameters
    ----------
    json : int, bytes of a JSON file: tokenizer.json, the index of shards
        The largest vocabularies, of 256,000 pieces, have tokenizer.json files of 35 MB.
    config : int, bytes of config.json
        The largest are those with a label for each of 21,000 classes, 1 MB.
    header : int, bytes of the header of a safetensors file
        A BERT of 48 layers has one of 80 kB. (Traces and golden files, which hold more arrays, have `json`.)
    pickle : int, instructions of the pickle in a file of torch.save
        A checkpoint of a thousand tensors has about forty thousand.
    directory : int, bytes of the list of entries in a zip archive, a file of torch.save
        A thousand tensors take about 100 kB.
    layers : int, layers of the encoder and of the decoder together
        The deepest published encoders have 48.
    labels : int, labels of a classification head
        The largest known sets have 21,000.
    positions : int, numbers in a table of sinusoidal positions, which is computed and not in the files
        32,768 positions of width 1,024; Marian's models have 512 of 512.
    unpacked : int, bytes of the arrays of an npz file once they are unpacked
        Every stage of 18 texts of 128 tokens in BERT-base, in float32.
    tokenizer : int, bytes of a tokenizer.json without its vocabulary
    vocabulary : int, bytes of vocab.txt, merges.txt or of a SentencePiece model
        Those of 250,000 pieces have 5 MB.
    parts : int, parts of a tokenizer.json: normalizers, splits, processors, decoders, the tokens around a text
    piece : int, characters of a tokenizer's piece, pattern or replacement, and of a word that is looked up in pieces
    growth : int, times that a tokenizer may make a text longer, by the worst case of its parts
        SentencePiece's own tokenizers reach 72, by a rare Arabic character that stands for eighteen.
        What a long text becomes is counted too, and refused from 8 times `characters` on.
    characters : int, characters of a text
        A million take up to 3 s and 600 MB to tokenize at once. A text to cut takes a block of them at a time, and one
        in windows 100 MB, where the tokenizer can be given a text in blocks; BERT's and GPT-2's can.

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
    unpacked: int = 2**31
    tokenizer: int = 8_000_000
    vocabulary: int = 64_000_000
    parts: int = 100
    piece: int = 1_000
    growth: int = 256
    characters: int = 1_000_000

    def __post_init__(self) -> None:
        for field in fields(self):
            checks.whole(f"limits.{field.name}", getattr(self, field.name), 0)

    def __repr__(self) -> str:
        return checks.brief(self)

    def check(self, name: str, found: int, where: object) -> None:
        """Raises NpformerError if `found` is more than the limit of this name."""
        most = getattr(self, name)
        if found > most:
            raise NpformerError(
                f"{where}: {checks.shown(found)} is more than the limit `{name}` of {most}; {how_to_allow_more(name)}"
            )

    @classmethod
    def parse(cls, allowed: Iterable[str]) -> Limits:
        """Makes the limits that differ from the defaults by settings such as "layers=2000"."""
        changed: dict[str, Any] = {}
        for setting in allowed:
            name, _, number = setting.partition("=")
            checks.one_of("--allow", name, [field.name for field in fields(cls)])
            changed[name] = checks.whole(f"--allow {name}", int(number) if number.isdecimal() else number, 0)
        return replace(LIMITS, **changed)


def how_to_allow_more(name: str) -> str:
    """What an error says to do about a limit."""
    return (
        f"if you trust the source, allow more: load(..., limits=npformer.Limits({name}=N)), or --allow {name}=N on the "
        "command line"
    )


LIMITS = Limits()  # what holds unless the user gives others
