"""Reads examples from files: labelled texts (TSV, CSV or JSON Lines), sentences with translations, and plain texts.

An error in a row states the file and line. `cli/finetune.py` and `cli/train_translation.py` use this module.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from npformer.common.checks import listed, shown
from npformer.common.errors import NpformerError
from npformer.common.files import as_given, csv_rows, lines_of, named, open_file
from npformer.engine.runtime.packing import Text
from npformer.model import Model
from npformer.text.encoding import Encoder, warn_of_cuts
from npformer.text.inputs import Pair
from npformer.training.losses import Example

LABEL = "label"
TEXTS = (  # names of text columns, in order of precedence
    ("text", "text_pair"),
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question", "sentence"),
    ("text",),
    ("sentence",),
)
WINDOW = 1024  # texts tokenized at a time
FORMATS = {".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}


@dataclass(frozen=True)
class LabelledText:
    """A labelled text from a file, with the number of its last line.

    Parameters
    ----------
    label, text, text_pair : str; text_pair is None for single texts
    line : int, counted from 1

    Examples
    --------
    >>> LabelledText("POSITIVE", "I love ice cream", None, 2).label
    'POSITIVE'
    """

    label: str
    text: str
    text_pair: str | None
    line: int


def read_labelled(path: str | Path, label: str = LABEL, texts: Sequence[str] = ()) -> list[LabelledText]:
    """Reads labelled texts from a file.

    Parameters
    ----------
    path : .tsv (tabs, no quotes) or .csv, with the names of columns in the first line, or .jsonl (one object per line)
    label : name of the label column
    texts : names of the text column, or of the two columns of a pair
        The default is the first entry of `TEXTS` that the file has, or else the only column apart from the label.

    Returns
    -------
    list of LabelledText

    Raises
    ------
    NpformerError
        If a row lacks a column or has an empty value (the message has the file and line), or the file has no rows.

    Examples
    --------
    >>> with open("data.tsv", "w") as file:
    ...     _ = file.write("label\\ttext\\nPOSITIVE\\tI love ice cream\\n")
    >>> read_labelled("data.tsv")
    [LabelledText(label='POSITIVE', text='I love ice cream', text_pair=None, line=2)]
    """
    path = Path(path)
    if path.suffix not in FORMATS:
        raise NpformerError(f"{path}: expected a file name that ends in one of {', '.join(FORMATS)}")
    is_table = FORMATS[path.suffix] != "jsonl"
    records = _table(path, FORMATS[path.suffix]) if is_table else _objects(path)
    rows: list[LabelledText] = []
    columns: Sequence[str] = texts
    for line, record in records:
        if not texts and not (rows and is_table):
            found = _columns(f"{path}:{1 if is_table else line}", record, label)
            if rows and found != columns:
                wanted = f"expected texts in {_and(columns)}, as in earlier lines"
                raise NpformerError(f"{path}:{line}: {wanted}, got {_and(found)}")
            columns = found
        values = [_value(f"{path}:{line}", record, name) for name in (label, *columns)]
        rows.append(LabelledText(values[0].strip(), values[1], values[2] if len(values) > 2 else None, line))
    if not rows:
        raise NpformerError(f"{path}: no rows")
    return rows


def label_names(rows: Sequence[LabelledText]) -> tuple[str, ...]:
    """Returns the sorted labels of the rows, or all numbers from 0 to the largest label if every label is a number.

    Parameters
    ----------
    rows : list of LabelledText

    Returns
    -------
    tuple of str

    Raises
    ------
    NpformerError
        If a number has more than four digits.

    Examples
    --------
    >>> label_names([LabelledText(label, "text", None, 1) for label in ("3", "1")])
    ('0', '1', '2', '3')
    """
    found = {row.label for row in rows}
    if all(each.isdecimal() for each in found):
        largest = max((each.lstrip("0") for each in found), key=lambda each: (len(each), each))
        if len(largest) > 4:
            line = next(row.line for row in rows if row.label.lstrip("0") == largest)
            raise NpformerError(f"line {line}: expected label numbers of at most four digits, got {largest:.80}")
        return tuple(str(i) for i in range(int(largest or "0") + 1))
    return tuple(sorted(found))


def label_keys(labels: Sequence[str]) -> dict[str, int]:
    """Maps the name of each label in lower case, and its number as a string, to its number.

    If any name is a number, the mapping contains only names.
    """
    names = {each.lower(): i for i, each in enumerate(labels)}
    numbers = {str(i): i for i in range(len(labels))}
    return names if any(each.isdecimal() for each in names) else numbers | names


def label_ids(path: str | Path, rows: Sequence[LabelledText], labels: Sequence[str]) -> list[int]:
    """Converts the label of each row to its number.

    Parameters
    ----------
    path : file of the rows, for error messages
    rows : list of LabelledText
        A row specifies its label by name, in upper or lower case, or by number.
    labels : names of the labels

    Returns
    -------
    list of int

    Raises
    ------
    NpformerError
        If the label of a row is unknown (the message has the file and line), or if `labels` has an empty name or two
        names that differ only in case.

    Examples
    --------
    >>> label_ids("data.tsv", [LabelledText("Positive", "text", None, 2)], ("NEGATIVE", "POSITIVE"))
    [1]
    """
    if not all(each.strip() for each in labels):
        raise NpformerError(f"{path}: labels: expected names, got an empty name in {','.join(labels)!r:.200}")
    if len({each.lower() for each in labels}) < len(labels):
        raise NpformerError(f"{path}: labels: expected names that differ by more than case, got {listed(labels):.200}")
    known, ids = label_keys(labels), []
    for row in rows:
        if row.label.lower() not in known:
            names = ", ".join(f"{each} ({i})" if known.get(str(i)) == i else each for i, each in enumerate(labels[:20]))
            raise NpformerError(f"{path}:{row.line}: label: expected one of {names}, got {row.label!r:.80}")
        ids.append(known[row.label.lower()])
    return ids


def encode(model: Model, path: str | Path, rows: Sequence[LabelledText], limit: int | None = None) -> list[Example]:
    """Encodes rows as token ids and label numbers. Truncates long texts, to `limit` if given, with a warning."""
    encoder = Encoder(model, limit)
    targets = label_ids(path, rows, model.config.labels)
    texts, cut = [], {}
    for start in range(0, len(rows), WINDOW):
        window = rows[start : start + WINDOW]
        given = [row.text if row.text_pair is None else Pair(row.text, row.text_pair) for row in window]
        for row, encoded in zip(window, encoder.read(given), strict=True):
            texts += encoded.texts
            if encoded.truncated:
                cut[f"{path}:{row.line}"] = encoded.n_tokens
    warn_of_cuts(cut, len(rows), encoder.limit)
    return [Example(*each) for each in zip(texts, targets, strict=True)]


def read_pairs(source: str | Path, target: str | Path) -> list[tuple[str, str]]:
    """Reads the lines of two files as pairs.

    Raises NpformerError for an empty line, with the file and line number, and for files of different lengths or without
    lines.
    """
    sources, targets = read_lines(source), read_lines(target)
    if len(sources) != len(targets):
        raise NpformerError(f"{target}: expected {len(sources)} lines, as in {source}, got {len(targets)}")
    for path, lines in ((source, sources), (target, targets)):
        for number, line in enumerate(lines, 1):
            if not line.strip():
                raise NpformerError(f"{path}:{number}: expected a sentence in each line, got an empty line")
    if not sources:
        raise NpformerError(f"{source}: no lines")
    return list(zip(sources, targets, strict=True))


def encode_pairs(
    tokenizer: Any, files: tuple[str | Path, str | Path], pairs: Sequence[tuple[str, str]], longest: int
) -> list[Example]:
    """Encodes pairs as token ids. Raises NpformerError, with file and line, if a sentence exceeds `longest` tokens."""
    sides = []
    for path, texts in zip(files, zip(*pairs, strict=True), strict=True):
        encodings = tokenizer.encode_batch_fast(list(texts))
        for number, encoding in enumerate(encodings, 1):
            if len(encoding) > longest:
                raise NpformerError(f"{path}:{number}: expected at most {longest} tokens, got {len(encoding)}")
        sides.append([np.array(encoding.ids) for encoding in encodings])
    return [Example(Text(source), target[:-1]) for source, target in zip(*sides, strict=True)]


def encode_blocks(model: Model, paths: Sequence[str | Path], limit: int | None = None) -> list[Example]:
    """Packs text files into blocks of the model's maximum length, or of `limit` tokens if that is shorter.

    The target of each token is the next token.

    Each file is a document, and an end token is added unless the document ends with this token. Documents are
    concatenated, so a block can contain the end of one document and the beginning of the next. Every token except the
    first is a target once. Raises NpformerError for invalid text (with the file and line), for a file without text, and
    for an end token outside the vocabulary.
    """
    encoder, parts, ends, size = Encoder(model, limit), [], model.config.end_ids, model.config.vocab_size
    if ends and ends[0] >= size:
        raise NpformerError(f"eos_token_id: expected a token id below vocab_size {size}, got {ends[0]}")
    for path in paths:
        text = "".join(line for _, line in _lines(Path(path)))
        if not text.strip():
            raise NpformerError(f"{path}: no text")
        document = encoder.ids(text)
        parts += [document, np.array([] if np.isin(document[-1:], ends).any() else ends[:1], np.int64)]
    ids = np.concatenate(parts)
    if len(ids) < 2:
        raise NpformerError(f"{paths[0]}: expected at least two tokens, because a target is the next token, got one")
    return blocks(ids, encoder.limit)


def blocks(ids: np.ndarray, size: int) -> list[Example]:
    """Splits token ids (L,) into blocks of `size`. The target of each token except the last is the next token."""
    starts = range(0, len(ids) - 1, size)
    return [Example(Text(ids[at : at + size][: len(ids) - 1 - at]), ids[at + 1 : at + 1 + size]) for at in starts]


def read_lines(path: str | Path) -> list[str]:
    """Returns the lines of a file, without line ends."""
    return [line.rstrip("\r\n") for _, line in _lines(Path(path))]


def _columns(where: str, record: Mapping[str, Any], label: str) -> Sequence[str]:
    for names in TEXTS:
        if all(name in record and name != label for name in names):
            return names
    others = [name for name in record if name != label]
    if len(others) == 1 and len(record) == 2:
        return others
    wanted = "; ".join(map(_and, TEXTS))
    got = f"{listed(record)}; choose a column with --text-columns"
    raise NpformerError(f"{where}: expected text columns with one of these names: {wanted}; got {got}")


def _and(names: Sequence[str]) -> str:
    return " and ".join(names)


def _value(where: str, record: Mapping[str, Any], name: str) -> str:
    if name not in record:
        others = "choose columns with --label-column and --text-columns"
        raise NpformerError(f"{where}: expected a column {name!r}, got {listed(record)}; {others}")
    value = record[name]
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise NpformerError(f"{where}: {name!r}: expected text, got {shown(value)}")
    if not str(value).strip():
        raise NpformerError(f"{where}: {name!r} is empty")
    if any("\ud800" <= character <= "\udfff" for character in str(value)):
        raise NpformerError(f"{where}: {name!r} has a lone surrogate, which is not valid text")
    return str(value)


def _table(path: Path, kind: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields the rows of a TSV or CSV file as dicts by column name. In a TSV file, quotes have no special meaning."""
    options: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if kind == "tsv" else {}
    rows = csv_rows(_lines(path), path, **options)
    _, names = next(rows, (0, []))
    if len(set(names)) < len(names):
        raise NpformerError(f"{path}:1: duplicate column name: {listed(names)}")
    for number, values in rows:
        yield number, dict(zip(names, values, strict=True))


def _objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in _lines(path):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise NpformerError(f"{path}:{number}: not JSON: {error!s:.200}") from None
        if not isinstance(record, dict):
            raise NpformerError(f"{path}:{number}: expected a JSON object, got {shown(record)}")
        yield number, record


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    with named(path), open_file(as_given(path)) as file:
        for number, line in lines_of(file, path):
            try:
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise NpformerError(f"{path}:{number}: not UTF-8 (byte {error.start})") from None
