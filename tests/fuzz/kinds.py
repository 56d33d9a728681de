"""The kinds of cases: valid folders, the files to mutate in them, and the function that loads and uses the result."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.util import find_spec

from tests.fuzz import (
    byte_form,
    corpus,
    folder,
    hints,
    json_form,
    protobuf_form,
    records,
    tensor_form,
    text_form,
    torch_form,
    zip_form,
)
from tests.fuzz.draw import Draw, Plain
from tests.fuzz.folder import Entry

Mutate = Callable[[Draw, bytes, Sequence[bytes]], bytes]


@dataclass(frozen=True)
class Seed:
    """A valid folder, its files to mutate (name -> mutator), and the function of `uses.py` that gets the folder."""

    files: Mapping[str, bytes]
    targets: Mapping[str, Mutate]
    use: str = "model"


@dataclass(frozen=True)
class Kind:
    """The cases of one kind of file. `share`: how many of a run's cases are of this kind, relative to other kinds."""

    name: str
    seeds: Callable[[], list[Seed]]
    share: int = 1
    needs: str = ""  # a required module; the kind is skipped without it


@dataclass(frozen=True)
class Case:
    """The files of a folder, and the name of the function that loads and uses it."""

    kind: str
    files: dict[str, Entry]
    use: str
    draw: Draw = field(compare=False)  # random choices for this function
    texts: tuple[str, ...] = ()

    def digest(self) -> bytes:
        listed = [(name, each if isinstance(each, bytes) else repr(each)) for name, each in sorted(self.files.items())]
        return hashlib.sha256(repr((self.use, self.texts, listed)).encode("utf-8", "surrogatepass")).digest()


LARGEST = 2**22  # maximum size of a file: longer files would only cost time and memory
# One case in 14 has a file removed or replaced. One in 6 of the other cases has its bytes mutated blindly.
BYTES_ONE_IN, FOLDER_ONE_IN = 6, 14


def make(kind: str, seed: int, number: int) -> Case:
    """Returns the case of this kind, seed and number; it changes only with the mutators or the corpus."""
    draw = Draw(kind, seed, number)
    seeds = seeds_of(kind)
    valid = draw.pick(seeds)
    files: dict[str, Entry] = dict(valid.files)
    use = Draw("use", kind, seed, number)
    if kind == "text":
        return Case(kind, files, valid.use, use, tuple(text_form.text(draw) for _ in range(draw.between(1, 3))))
    names = sorted(valid.targets)
    name = draw.pick(names)
    data = valid.files[name]
    others = [each.files[name] for each in seeds if name in each.files and each is not valid][:4]
    if draw.chance(FOLDER_ONE_IN):
        folder.mutate(draw, files)
    elif draw.chance(BYTES_ONE_IN):
        files[name] = byte_form.mutate(draw, data, others)
    else:
        files[name] = valid.targets[name](draw, data, others)
        if draw.chance(8):  # a second file
            name = draw.pick(names)
            files[name] = valid.targets[name](draw, valid.files[name], others)
    cut = {name: each[:LARGEST] if isinstance(each, bytes) else each for name, each in files.items()}
    return Case(kind, cut, valid.use, use)


def valid(kind: str) -> list[Case]:
    """Returns the unmutated corpus of a kind."""
    return [Case(kind, dict(each.files), each.use, Plain()) for each in seeds_of(kind)]


@cache
def seeds_of(kind: str) -> list[Seed]:
    return KINDS[kind].seeds()


# --- the kinds -------------------------------------------------------------------------------------------------------


def _json(found: json_form.Hints | None = None) -> Mutate:
    return partial(json_form.mutate, hints=found)


def _tensors(found: json_form.Hints | None = None) -> Mutate:
    return partial(tensor_form.mutate, hints=found)


def _safetensors() -> list[Seed]:
    made = [corpus.encoder(family, head, own=False) for family, head in corpus.ENCODERS[::3]]
    made += [corpus.translation(own=False), corpus.modules("nn.TransformerEncoder", "token-classification")]
    return [Seed(each, {"model.safetensors": _tensors()}) for each in made]


def _own() -> list[Seed]:
    made = [corpus.encoder(family, head) for family, head in corpus.ENCODERS[1::3]] + [corpus.translation()]
    return [Seed(each, {"npformer.safetensors": _tensors()}) for each in made]


def _torch(legacy: bool) -> list[Seed]:
    seeds = []
    for family, head in (("distilbert", "sequence-classification"), ("bert", "base"), ("electra", "masked-lm")):
        files = corpus.encoder(family, head, own=False)
        del files["model.safetensors"]
        tensors = corpus.tensors(corpus.encoder_config(family, head), False)
        files["pytorch_model.bin"] = torch_form.build(tensors, legacy)
        seeds.append(
            Seed(
                files,
                {"pytorch_model.bin": lambda draw, _, __, tensors=tensors: torch_form.mutate(draw, tensors, legacy)},
            )
        )
    return seeds


def _shards() -> list[Seed]:
    seeds = []
    for suffix in ("safetensors", "bin"):
        files = corpus.encoder("distilbert", own=False)
        del files["model.safetensors"]
        tensors = corpus.tensors(corpus.encoder_config("distilbert", "sequence-classification"), False)
        stem = "model" if suffix == "safetensors" else "pytorch_model"
        weight_map, targets = {}, {f"{stem}.{suffix}.index.json": _json(hints.index(f"{stem}-0.{suffix}"))}
        for i, part in enumerate((tensors[::2], tensors[1::2])):
            name = f"{stem}-{i}.{suffix}"
            weight_map |= {each.name: name for each in part}
            if suffix == "safetensors":
                files[name], targets[name] = corpus.safetensors(part, {"format": "pt"}), _tensors()
            else:
                files[name] = torch_form.build(part, False)
                targets[name] = lambda draw, _, __, part=part: torch_form.mutate(draw, part, False)
        files[f"{stem}.{suffix}.index.json"] = corpus.dumped({"metadata": {"total_size": 1}, "weight_map": weight_map})
        seeds.append(Seed(files, targets))
    return seeds


def _config() -> list[Seed]:
    found = [(corpus.encoder(*each), hints.ENCODER, "model") for each in corpus.ENCODERS]
    found += [(corpus.translation(), hints.TRANSLATION, "model")] * 3
    for torch_class, head in (
        ("nn.TransformerEncoder", "sequence-classification"), ("nn.TransformerEncoder", "base"), ("nn.Transformer", "base"),
        ("nn.TransformerDecoder", "base"), ("nn.Transformer", "translation"), ("nn.TransformerEncoder", "token-classification"),
    ):  # fmt: skip
        found.append((corpus.modules(torch_class, head), hints.MODULES, "stack" if head == "base" else "model"))
    return [Seed(files, {"config.json": _json(known)}, use) for files, known, use in found]


def _tokenizer() -> list[Seed]:
    seeds = []
    for kind in ("WordPiece", "WordPiece", "WordLevel", "BPE", "Unigram"):
        for head in ("sequence-classification", "token-classification", "masked-lm"):
            files = corpus.encoder("distilbert", head) | {"tokenizer.json": corpus.dumped(corpus.tokenizer(kind))}
            seeds.append(Seed(files, {"tokenizer.json": _json(hints.TOKENIZER)}))
    return seeds


def _vocabulary() -> list[Seed]:
    settings = _json(hints.TOKENIZER_CONFIG)
    targets: dict[str, Mutate] = {
        "vocab.txt": text_form.mutate, "tokenizer_config.json": settings, "special_tokens_map.json": settings, "added_tokens.json": _json(),
    }  # fmt: skip
    files = corpus.vocabulary()
    newer = corpus.dumped({**corpus.SETTINGS, "added_tokens_decoder": {"78": {"content": "[NEW]", "special": True}}})
    return [
        Seed(files, targets),
        Seed(
            {**files, "tokenizer_config.json": newer},
            {name: targets[name] for name in ("tokenizer_config.json", "vocab.txt")},
        ),
        Seed(corpus.encoder("bert", "question-answering"), {"tokenizer_config.json": settings}),
    ]


def _merges() -> list[Seed]:
    settings = _json(hints.TOKENIZER_CONFIG)
    lines: Mutate = partial(text_form.mutate, separator=b" ")
    targets = {"merges.txt": lines, "vocab.json": _json(), "tokenizer_config.json": settings}
    files = corpus.merges()
    return [
        Seed(files, targets),
        Seed(files, {"merges.txt": lines}),
        Seed(files, {"special_tokens_map.json": settings}),
    ]


def _unigram() -> list[Seed]:
    message: Mutate = protobuf_form.mutate
    settings = _json(hints.TOKENIZER_CONFIG)
    seeds = []
    for name, family in (
        ("sentencepiece.bpe.model", "xlm-roberta"), ("sentencepiece.bpe.model", "camembert"), ("spiece.model", "bert"), ("spm.model", "deberta-v2")
    ):  # fmt: skip
        files = corpus.unigram(name, family)
        seeds += [Seed(files, {name: message}), Seed(files, {name: message, "tokenizer_config.json": settings})]
    return seeds


def _translation() -> list[Seed]:
    files = corpus.translation()
    both = {**files, "target_tokenizer.json": files["tokenizer.json"]}
    found = {"tokenizer.json": _json(hints.TOKENIZER), "tokenizer_config.json": _json(hints.TOKENIZER_CONFIG)}
    return [Seed(files, found), Seed(both, {**found, "target_tokenizer.json": _json(hints.TOKENIZER)})]


def _generation() -> list[Seed]:
    files = corpus.translation()
    older = {name: data for name, data in files.items() if name != corpus.GENERATION}
    older["config.json"] = corpus.describe(corpus.translator_config(), num_beams=2, max_length=9, bad_words_ids=[[4]])
    found = _json(hints.GENERATION)
    return [*[Seed(files, {corpus.GENERATION: found})] * 4, Seed(older, {"config.json": found})]


def _pieces() -> list[Seed]:
    message: Mutate = protobuf_form.mutate
    settings = _json(hints.TOKENIZER_CONFIG)
    targets = {"source.spm": message, "target.spm": message, "vocab.json": _json(), "tokenizer_config.json": settings}
    return [Seed(corpus.pieces(), targets), Seed(corpus.pieces(), {"source.spm": message})]


def _sentence() -> list[Seed]:
    found = _json(hints.SENTENCE)
    names = ("modules.json", "1_Pooling/config.json", "sentence_bert_config.json", "config_sentence_transformers.json")
    return [Seed(corpus.sentence(), dict.fromkeys(names, found), "sentence")]


def _golden() -> list[Seed]:
    arrays = [corpus.of_array(name, each) for name, each in records.theirs().items()]
    files = corpus.encoder() | {
        "golden.safetensors": records.golden(),
        "theirs.safetensors": corpus.safetensors(arrays, {}),
        "names.json": corpus.dumped({"theirs": "logits", "a": "layers.0.ffn.hidden"}),
    }
    found = _tensors(hints.GOLDEN)
    targets = {"golden.safetensors": found, "theirs.safetensors": _tensors()}
    return [*[Seed(files, targets, "golden")] * 2, Seed(files, {"names.json": _json()}, "golden")]


def _arrays() -> list[Seed]:
    described = {"float32": "'<f4'", "float64": "'<f8'", "int64": "'<i8'"}
    arrays = {
        name: (described[each.dtype.name], str(each.shape), each.tobytes()) for name, each in records.theirs().items()
    }
    whole = zip_form.build(
        [
            zip_form.Entry(f"{name}.npy", zip_form.npy(data, shape, descr))
            for name, (descr, shape, data) in arrays.items()
        ]
    )
    files = corpus.encoder() | {"golden.safetensors": records.golden(), "theirs.npz": whole}
    seeds = []
    for deflated in (False, True):
        change: Mutate = lambda draw, _, __, deflated=deflated: zip_form.mutate_npz(draw, arrays, deflated)  # noqa: E731
        seeds.append(Seed(files, {"theirs.npz": change}, "golden"))
    return seeds


def _trace() -> list[Seed]:
    return [Seed({"trace.safetensors": records.trace()}, {"trace.safetensors": _tensors(hints.TRACE)}, "trace")]


def _table() -> list[Seed]:
    model = corpus.encoder()
    made = {
        "data.tsv": (corpus.table("\t"), b"\t"),
        "data.csv": (corpus.table(","), b","),
        "data.jsonl": (corpus.jsonl(), b" "),
    }
    seeds = []
    for name, (data, separator) in made.items():
        lines: Mutate = partial(text_form.mutate, separator=separator)
        seeds.append(Seed({**model, name: data}, {name: lines}, "table"))
    rows = Seed({**model, "data.jsonl": corpus.jsonl().split(b"\n")[0]}, {"data.jsonl": _json(hints.ROW)}, "table")
    return [*seeds, rows]


def _texts() -> list[Seed]:
    lines: Mutate = text_form.mutate
    text = "\n".join(text_form.TEXTS[:4]).encode() + b"\n"
    pairs = {**corpus.translation(), "source.txt": text, "target.txt": text}
    return [
        Seed({**corpus.encoder(), "texts.txt": text}, {"texts.txt": lines}, "texts"),
        Seed({**corpus.encoder("bert", "question-answering"), "context.txt": text}, {"context.txt": lines}, "context"),
        Seed(pairs, {"source.txt": lines, "target.txt": lines}, "pairs"),
        Seed({**corpus.encoder(), "README.md": b"---\nbase_model: a/b\n---\n"}, {"README.md": lines}, "info"),
    ]


def _state() -> list[Seed]:
    files = {**corpus.encoder(), **records.state()}
    return [
        Seed(
            files,
            {"training/last.safetensors": _tensors(hints.STATE), "training/best.safetensors": _tensors()},
            "training",
        )
    ]


def _text() -> list[Seed]:
    found = [corpus.encoder(family, head) for family, head in corpus.ENCODERS if family != "electra"]
    return [Seed(each, {}) for each in [*found, corpus.translation(), corpus.vocabulary()]] + [
        Seed(corpus.sentence(), {}, "sentence")
    ]


KINDS = {
    each.name: each
    for each in (
        Kind("safetensors", _safetensors, 2),
        Kind("npformer", _own),
        Kind("torch-zip", partial(_torch, False), 2),
        Kind("torch-legacy", partial(_torch, True)),
        Kind("shards", _shards),
        Kind("config", _config, 3),
        Kind("tokenizer", _tokenizer, 3),
        Kind("vocabulary", _vocabulary, 2),
        Kind("merges", _merges),
        Kind("unigram", _unigram),
        Kind("translation", _translation),
        Kind("spm", _pieces, 1, "sentencepiece"),
        Kind("generation", _generation),
        Kind("sentence", _sentence),
        Kind("golden", _golden),
        Kind("npz", _arrays),
        Kind("trace", _trace),
        Kind("table", _table),
        Kind("texts", _texts),
        Kind("state", _state),
        Kind("text", _text),
    )
}


def available() -> list[str]:
    """Returns the kinds whose packages are installed."""
    return [name for name, each in KINDS.items() if not each.needs or find_spec(each.needs)]
