"""A conformance suite for ports in any language: a tiny model and its golden file for every family, head and option.

    npformer.golden.suite("suite", ["bert-*"])              npformer golden run suite -- ./port

A case is a folder with config.json, model.safetensors, inputs.safetensors and golden.safetensors; suite.json says what
each case tests. `conformance.py` runs a port's program on them. Models and inputs have the same bytes on every machine,
but golden files only if the machine and the version of NumPy are the same, because BLAS kernels round differently. This
changes the last digits of stages, far within the budgets.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from npformer.checkpoint.archive import save_arrays
from npformer.common.checks import nearest
from npformer.common.errors import NpformerError
from npformer.common.files import new_folder, read_json
from npformer.common.progress import with_bar
from npformer.config import HEADS, LABELLED, REREADING_HEADS, Config, Decoder, InputConvolution, Positions, Sharing
from npformer.engine.mechanisms import RelativeBias, Rotary
from npformer.engine.mechanisms.rotary_scaling import Dynamic, Linear, Llama3, LongRope, Yarn
from npformer.families import FAMILIES, EncoderTable, distinct_encoders, encoders
from npformer.families.llama import Llama
from npformer.golden.tiny import narrowed, write_case

MANIFEST, INPUTS = "suite.json", "inputs.safetensors"
FORMAT, VERSION = "npformer-suite", "1"
LENGTHS = (6, 3)
#: Scalings of rotations. Two change for texts beyond their original length of 5, which the first of LENGTHS exceeds.
SCALINGS = {
    "linear": Linear(2.0),
    "dynamic": Dynamic(2.0, 5),
    "llama3": Llama3(2.0, 1.0, 2.0, 8),
    "yarn": Yarn(2.0, 8),
    "longrope": LongRope((1.0, 1.25), (1.5, 3.0), 5, 2.0),
}
SIZES = {"vocab_size": 40, "d_model": 16, "n_heads": 4, "n_layers": 2, "d_ffn": 24, "max_length": 10}
LABELS = {"sequence-classification": ("NEGATIVE", "POSITIVE"), "token-classification": ("O", "B", "I")}


Options = dict[str, dict[str, Any]]  # a case's name -> the fields of its config


class Case(NamedTuple):
    """A model of the suite with the lengths of its texts."""

    name: str
    tests: str  # features that a passing port computes correctly
    config: Config
    lengths: tuple[int, ...] = LENGTHS
    dtype: str = "float32"  # dtype of the stored weights


def suite(path: str | Path, patterns: list[str] | None = None, progress: bool = False) -> Path:
    """Writes the conformance suite, a new folder with a folder for each case.

    Parameters
    ----------
    path : folder to make
    patterns : list of str, optional
        Names of cases, or patterns with `*`; by default all cases.
    progress : bool
        Show a progress bar on stderr.

    Returns
    -------
    Path

    Raises
    ------
    NpformerError
        If the folder exists already, or a pattern matches no case.

    Examples
    --------
    >>> folder = suite("suite", ["distilbert-*-lm"])
    >>> [case["name"] for case in npformer.golden.read_suite(folder)]
    ['distilbert-masked-lm']
    """
    known = {case.name: case for case in cases()}
    wanted = _wanted(list(known), patterns)
    with new_folder(Path(path)) as folder:
        entries = [
            _write(folder / name, known[name]) for name in with_bar(wanted, len(wanted), "cases", shown=progress)
        ]
        manifest = {"format": FORMAT, "version": VERSION, "cases": entries}
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return Path(path)


def _write(folder: Path, case: Case) -> dict[str, Any]:
    folder.mkdir()
    seed = zlib.crc32(case.name.encode())  # makes each case independent of the others
    recorded = write_case(folder, case.name, case.config, seed, case.lengths, case.dtype)
    save_arrays(folder / INPUTS, recorded.input_arrays(), {})
    return {
        "name": case.name,
        "tests": case.tests,
        "family": case.config.model_type,
        "head": case.config.head,
        "dtype": case.dtype,
        "lengths": list(case.lengths),
        "stages": len(recorded.stages),
        "answers": recorded.answers,
    }


def read_suite(path: str | Path, patterns: list[str] | None = None) -> list[dict[str, Any]]:
    """Reads the entries of a suite's cases from its suite.json.

    Parameters
    ----------
    path : folder of the suite
    patterns : list of str, optional
        Names of cases, or patterns with `*`; by default all cases.

    Returns
    -------
    list of dict
        With name, tests, family, head, dtype, lengths, stages and answers.

    Raises
    ------
    NpformerError
        If there is no suite in the folder, or a pattern matches no case.

    Examples
    --------
    >>> folder = npformer.golden.suite("another", ["bert-base", "bert-masked-lm"])
    >>> read_suite(folder, ["*-lm"])[0]["answers"]
    ['logits']
    """
    manifest = read_json(Path(path) / MANIFEST)
    if (manifest.get("format"), manifest.get("version")) != (FORMAT, VERSION):
        raise NpformerError(f"{path}: not a suite of version {VERSION}; npformer golden suite DIR writes one")
    entries = manifest.get("cases")
    if not isinstance(entries, list) or not all(map(_is_entry, entries)):
        raise NpformerError(f"{Path(path) / MANIFEST}: damaged; npformer golden suite DIR writes a new one")
    wanted = set(_wanted([entry["name"] for entry in entries], patterns))
    return [entry for entry in entries if entry["name"] in wanted]


def _wanted(names: list[str], patterns: list[str] | None) -> list[str]:
    """Selects the names that match any pattern, in the order of `names`, or all names if there are no patterns."""
    for pattern in patterns or []:
        if not any(fnmatchcase(name, pattern) for name in names):
            near = nearest(pattern, names, 3) or names[:3]
            raise NpformerError(f"{pattern!r}: no such case; did you mean {' or '.join(near)}?")
    return [name for name in names if any(fnmatchcase(name, each) for each in patterns or ["*"])]


def _is_entry(entry: object) -> bool:
    """Returns whether an entry names a folder inside the suite."""
    name = entry.get("name") if isinstance(entry, dict) else None
    return isinstance(name, str) and Path(name).parts == (name,) and name != ".."


# --- the cases -------------------------------------------------------------------------------------------------------


def cases() -> Iterator[Case]:
    """Yields every case: encoders with each head and option, then the models with a decoder and nn.TransformerEncoder.

    A family that only renames the weights of another family has a single case.
    """
    for name, family in encoders().items():
        if name in distinct_encoders():
            yield from _encoder_cases(name, family)
        else:
            about = "another family's model with different names for its weights"
            yield Case(f"{name}-{LABELLED[0]}", about, encoder_config(family, LABELLED[0]))
    yield from _other_cases()


def encoder_config(family: EncoderTable, head: str, **fields: Any) -> Config:
    """Returns a tiny config of a family with this head."""
    wide = {"d_embedding": 8} if "d_embedding" in family.sizes else {}
    token_type_ids = {"n_token_types": 2} if family.token_types else {}
    grouped = {"n_kv_heads": 2} if isinstance(family, Llama) else {}
    sizes = {**SIZES, **wide, **token_type_ids, **grouped, "labels": LABELS.get(head, ())}
    return narrowed(family.config(head, **{**sizes, **fields}), 2)


def _encoder_cases(name: str, family: EncoderTable) -> Iterator[Case]:
    for head in (head for head in HEADS if head in family.architectures.values()):
        yield Case(f"{name}-{head}", f"the {head} head", encoder_config(family, head))
    plain = encoder_config(family, "sequence-classification", n_layers=1)
    about = "a text of the maximum length, in a batch with a text of one token"
    yield Case(f"{name}-lengths", about, plain, (plain.max_length, 1))
    for dtype in ("float16", "bfloat16"):
        yield Case(f"{name}-{dtype}", f"weights stored in {dtype}, with computation in float32", plain, dtype=dtype)
    others = sorted({"gelu", "gelu_tanh", "relu", "silu"} - {plain.activation})
    for activation in others if family.activation else ():
        about = f"the activation {activation}"
        yield Case(f"{name}-{activation.replace('_', '-')}", about, replace(plain, activation=activation))
    if family.eps:
        yield Case(f"{name}-eps", "layer_norm_eps of 1e-3", replace(plain, eps=1e-3))
    if family.token_types:
        yield Case(
            f"{name}-one-segment", "a single token type, whose embedding is added", replace(plain, n_token_types=1)
        )
    if family.padding:
        positions = replace(plain.positions, first=4)
        other = encoder_config(family, plain.head, n_layers=1, pad_id=3, padding_idx=3, positions=positions)
        yield Case(f"{name}-padding", "positions counted from a different padding token", other, (10, 6))
    if plain.pooling == "last":
        about = "texts that end in padding, with a classifier that reads the token before it"
        padded = replace(plain, pad_id=3)
        untrained = family.read_config(family.write_config(padded), plain.head).padding_idx
        yield Case(f"{name}-ends-in-padding", about, replace(padded, padding_idx=untrained))
    if "d_embedding" in family.sizes:
        about, width = ("with", plain.d_model) if family.always_projected else ("without", 0)
        about = f"embedding tables as wide as the layers, {about} a projection"
        yield Case(f"{name}-wide", about, replace(plain, d_embedding=width))
    if family.layer_groups:
        groups = replace(plain, n_layers=6, sharing=Sharing(2, 2))
        yield Case(f"{name}-groups", "two groups of two layers, one of which runs twice", groups)
    if "convolution" in family.encoder:
        about = "a convolution of the embeddings, added to the first layer's output"
        convolved = replace(plain, convolution=InputConvolution(3, "gelu"))
        yield Case(f"{name}-convolution", about, convolved)
    if "distances" in family.encoder:
        about = "one product with distances instead of two, and tables of positions and token types"
        of_keys = tuple(replace(each, forms=("key",)) for each in plain.mechanisms)
        one = replace(plain, mechanisms=of_keys, positions=Positions(), n_token_types=2)
        yield Case(f"{name}-one-form", about, one)
    words = next(head for head in ("masked-lm", "causal-lm") if head in family.architectures.values())
    usual = encoder_config(family, words, n_layers=1)
    about = "a separate vocabulary projection" if usual.tied else "the token table as the vocabulary projection"
    yield Case(f"{name}-{'untied' if usual.tied else 'tied'}", about, replace(usual, tied=not usual.tied))
    if plain.parallel:
        yield Case(f"{name}-in-turn", "sequential blocks instead of parallel ones", replace(plain, parallel=False))
    if isinstance(family, Llama) and not plain.local:
        bias = family.biased({"attention_bias": True})
        without = tuple(each for each in plain.mechanisms if not isinstance(each, Rotary))
        for kind in family.scalings:
            rotary = Rotary(100.0, scaling=SCALINGS[kind])
            width = 0 if kind == "longrope" else 6  # Transformers allows its factors only for heads of the usual width
            scaled = replace(plain, mechanisms=(*without, rotary), head_width=width, bias=bias)
            about = f"rotations scaled by {kind}{', heads of width 6' if width else ''}"
            yield Case(f"{name}-{kind}", f"{about}{', biases in attention' if bias else ''}", scaled)
    several = replace(plain, problem_type="multi_label_classification", labels=("A", "B", "C"))
    yield Case(f"{name}-multi-label", "several labels at once, each with a sigmoid", several)
    number = replace(plain, problem_type="regression", labels=("A",))
    yield Case(f"{name}-regression", "a regression: one number, without softmax", number)


def _other_cases() -> Iterator[Case]:
    """Yields the cases of torch's nn.Transformer modules, Marian, BART and T5."""
    decoder = {"tied": True, "decoder": _decoder(40)}
    encoder = {**SIZES, "torch_class": "nn.TransformerEncoder", "activation": "relu", "eps": 1e-5, "tied": False}
    both = {**encoder, "torch_class": "nn.Transformer", "decoder": _decoder(40), "pad_id": 39}
    marian = {**SIZES, **decoder, "pad_id": 39, "padding_idx": 39, "shared": True}
    bart = {**SIZES, **decoder, "pad_id": 1, "padding_idx": 1}
    for head in ("base", *LABELLED):
        yield _case("transformer", head, f"nn.TransformerEncoder, the {head} head", head, encoder)
    one_layer = {**encoder, "n_layers": 1}
    yield from _options("transformer", "nn.TransformerEncoder", "token-classification", one_layer, ENCODER_OPTIONS)
    yield from _options("transformer", "nn.Transformer", "translation", both, TRANSFORMER_OPTIONS)
    yield from _options("marian", "Marian", "translation", marian, MARIAN_OPTIONS)
    yield from _options("bart", "BART", "translation", bart, BART_OPTIONS)
    for head in REREADING_HEADS:
        yield _case("bart", head, f"BART's {head} head, on a decoder that reads the text again", head, bart)
    alone = {**bart, "decoder": Decoder(), "end_ids": (0,)}
    about = "BART's decoder alone, a causal stack with norms after its blocks"
    yield _case("bart", "causal-lm", about, "causal-lm", alone)
    yield from _t5_cases()


def _t5_cases() -> Iterator[Case]:
    """Yields T5's versions and heads, with texts long enough for buckets of several distances."""
    t5 = {
        **SIZES,
        "head_width": 6,
        "decoder": _decoder(40),
        "pad_id": 0,
        "mechanisms": (RelativeBias(8, max_distance=7),),
    }
    yield from _options("t5", "T5", "translation", t5, T5_OPTIONS)
    for head in ("base", *LABELLED, "question-answering"):
        yield _case("t5", head, f"T5's {head} head", head, t5)
    yield _case(
        "mt5",
        "translation",
        "mT5, without T5's scaling of the decoder's output",
        "translation",
        {**t5, **T5_OPTIONS["gated"]},
    )


def _case(family: str, name: str, about: str, head: str, fields: Mapping[str, Any]) -> Case:
    config = FAMILIES[family].config(head, **{**fields, "labels": LABELS.get(head, ())})
    return Case(f"{family}-{name}", about, config)


def _options(family: str, title: str, head: str, plain: Mapping[str, Any], options: Options) -> Iterator[Case]:
    for option, fields in options.items():
        about = f"{title} with {_listed(fields)}" if fields else title
        yield _case(family, option, about, head, {**plain, **fields})


def _listed(fields: Mapping[str, Any]) -> str:
    words: dict[str, Callable[[Any], str]] = {
        "decoder": lambda decoder: f"a decoder's vocabulary of {decoder.vocab_size}",
        "positions": lambda positions: f"positions {positions.table}",
    }
    return ", ".join(words[name](value) if name in words else f"{name} {value}" for name, value in fields.items())


def _decoder(vocab_size: int) -> Decoder:
    """Returns a decoder with numbers of layers and heads that differ from the encoder's."""
    return Decoder(n_layers=1, n_heads=2, d_ffn=24, vocab_size=vocab_size, start_id=vocab_size - 1, end_ids=(0,))


ENCODER_OPTIONS: Options = {
    "learned": {"positions": Positions()},
    "scaled": {"scale_embedding": True},
    "pre-norm": {"norm_first": True, "final_norm": True},
    "no-bias": {"bias": False},
    "gelu": {"activation": "gelu"},
}
BART_OPTIONS: Options = {
    "translation": {"activation": "gelu"},
    "scaled": {"activation": "relu", "scale_embedding": True},
}
T5_OPTIONS: Options = {
    "translation": {"scale_output": True},
    "gated": {"gated": True, "activation": "gelu_tanh", "tied": False},
}
TRANSFORMER_OPTIONS: Options = {
    "translation": {},
    "translation-tied": {"shared": True, "tied": True, "scale_embedding": True},
    "translation-pre-norm": {"norm_first": True, "final_norm": True},
    "translation-no-bias": {"bias": False, "activation": "gelu"},
}
MARIAN_OPTIONS: Options = {
    "translation": {"activation": "silu", "scale_embedding": True},
    "relu": {"activation": "relu"},
    "gelu": {"activation": "gelu", "scale_embedding": True},
    "two-vocabularies": {"activation": "silu", "shared": False, "decoder": _decoder(44)},
}
