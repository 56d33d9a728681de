"""A golden file: token ids of texts, their stages in float32 and float64, and each stage's error budget.

`docs/reference/golden-format.md` describes the format. `record.py` creates a file, and `compare.py` compares another
program's arrays with it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from npformer.checkpoint.archive import load_arrays, save_arrays
from npformer.checkpoint.parameters import parameters
from npformer.common.errors import NpformerError
from npformer.config import Config
from npformer.engine.descriptions import earlier_names
from npformer.engine.runtime.packing import Text
from npformer.families import read_config, write_config

FORMAT, VERSION = "npformer-golden", "1"


@dataclass(frozen=True)
class Golden:
    """The contents of a golden file. `stages` and `truth` map names, in order of computation, to one array per text."""

    model: str  # the name under which the model was loaded
    config: Config
    weights_sha256: str
    versions: Mapping[str, str]
    texts: list[Text]
    tokens: list[list[str]]
    stages: Mapping[str, list[np.ndarray]]  # float32
    truth: Mapping[str, list[np.ndarray]]  # float64
    budgets: Mapping[str, float]  # stage -> the largest error of a correct float32 port
    sources: list[Text] = field(default_factory=list)  # for a translation model, whose `texts` are the decoder's input
    source_tokens: list[list[str]] = field(default_factory=list)
    #: The truth without rounding sqrt(d_model) to the checkpoint's dtype; {} if that changes nothing. Transformers
    #: rounds it if it runs in that dtype, but not if it runs in float32, so both are correct.
    unrounded: Mapping[str, list[np.ndarray]] = field(default_factory=dict)

    @property
    def inputs(self) -> list[Any]:
        """The model's inputs: texts, or pairs of a source and a text."""
        return list(zip(self.sources, self.texts, strict=True)) if self.sources else self.texts

    def __repr__(self) -> str:
        return f"<npformer Golden of {self.model}: {len(self.stages)} stages of {len(self.texts)} texts>"

    @property
    def answers(self) -> list[str]:
        """The model's final stages: its logits, or for a base model the last layer and the pooled rows."""
        if logits := [name for name in self.stages if name.endswith("logits")]:
            return logits
        rows = [name for name in self.stages if name not in ("pooler", "pooled")]
        return [*rows[-1:], *(["pooled"] if "pooled" in self.stages else [])]

    @property
    def with_unrounded_scale(self) -> Golden | None:
        """The golden file of the same model without rounding sqrt(d_model); None if that changes nothing."""
        if not self.unrounded:
            return None
        single = {name: [array.astype(np.float32) for array in each] for name, each in self.unrounded.items()}
        config = replace(self.config, scale_dtype="float32")
        return replace(self, config=config, stages=single, truth=self.unrounded, unrounded={})

    def of_texts(self, numbers: Sequence[int]) -> Golden:
        """Returns the golden file of some of its texts."""

        def chosen(each: list[Any]) -> list[Any]:
            return [each[i] for i in numbers] if each else []

        stages, truth, unrounded = (
            {name: chosen(arrays) for name, arrays in kind.items()}
            for kind in (self.stages, self.truth, self.unrounded)
        )
        return replace(
            self, texts=chosen(self.texts), tokens=chosen(self.tokens), stages=stages, truth=truth,
            sources=chosen(self.sources), source_tokens=chosen(self.source_tokens), unrounded=unrounded,
        )  # fmt: skip

    def save(self, path: str | Path) -> None:
        """Writes the file. Equal content gives equal bytes."""
        arrays = self.input_arrays()
        for i in range(len(self.texts)):
            for name in self.stages:
                arrays[f"{i}/{name}"] = self.stages[name][i]
                arrays[f"{i}/float64/{name}"] = self.truth[name][i]
            arrays |= {f"{i}/unrounded/{name}": each[i] for name, each in self.unrounded.items()}
        manifest = {
            "model": self.model,
            "config": write_config(self.config),
            "weights_sha256": self.weights_sha256,
            "versions": dict(self.versions),
            "tokens": self.tokens,
            **({"source_tokens": self.source_tokens} if self.sources else {}),
            **({"names": earlier_names.NAMES} if self.config.gated else {}),
            "stages": list(self.stages),
            "budgets": dict(self.budgets),
        }
        written = json.dumps(manifest, ensure_ascii=False, indent=1)
        save_arrays(path, arrays, {"format": FORMAT, "version": VERSION, "manifest": written})

    def input_arrays(self) -> dict[str, np.ndarray]:
        """Returns the ids and other inputs of each text, by their names in the file."""
        arrays: dict[str, np.ndarray] = {}
        for i, text in enumerate(self.texts):
            for name, array in (("ids", text.ids), ("segments", text.token_type_ids), ("positions", text.positions)):
                if array is not None:
                    arrays[f"{i}/{name}"] = array.astype(np.int64)
        return arrays | {f"{i}/source_ids": source.ids.astype(np.int64) for i, source in enumerate(self.sources)}


def load(path: str | Path) -> Golden:
    """Reads a golden file.

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    Golden

    Raises
    ------
    NpformerError
        If the file is not a golden file, is truncated, or does not match its manifest.

    Examples
    --------
    >>> model = npformer.load("distilbert-sst2")
    >>> npformer.golden.record(model, "I love ice cream", "logits").save("g.safetensors")
    >>> load("g.safetensors")
    <npformer Golden of distilbert-sst2: 1 stages of 1 texts>
    """
    arrays, metadata = load_arrays(path)
    if metadata.get("format") != FORMAT:
        raise NpformerError(
            f"{path}: not a golden file: its metadata has no format {FORMAT}; make one with golden record"
        )
    if metadata.get("version") != VERSION:
        raise NpformerError(
            f"{path}: format version {metadata.get('version')!r:.20}; this npformer reads version {VERSION}"
        )
    try:
        manifest = json.loads(metadata["manifest"])
        json.dumps(manifest, ensure_ascii=False).encode()  # rejects lone surrogates, which no file can hold
        golden = _golden(arrays, manifest)
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError, RecursionError) as error:
        problem = f"missing {error}" if isinstance(error, KeyError) else error
        raise NpformerError(f"{path}: the golden file does not match its manifest: {problem!s:.200}") from None
    try:
        names = [*golden.stages, *parameters(golden.config)]  # the hash of the weights depends on their names
        earlier_names.refuse(names, golden.config.gated, manifest.get("names"))
    except NpformerError as error:
        raise NpformerError(f"{path}: {error}") from None
    return golden


def _golden(arrays: Mapping[str, np.ndarray], manifest: dict[str, Any]) -> Golden:
    stages: list[str] = manifest["stages"]
    texts, tokens = [], manifest["tokens"]
    for i, row in enumerate(tokens):
        given = {"token_type_ids": arrays.get(f"{i}/segments"), "positions": arrays.get(f"{i}/positions")}
        texts.append(Text(arrays[f"{i}/ids"], **given))
        if any(array.shape != (len(row),) for array in (texts[i].ids, *given.values()) if array is not None):
            raise ValueError(f"{i}/ids: expected {len(row)} tokens")
    source_tokens = manifest.get("source_tokens", [])
    sources = [Text(arrays[f"{i}/source_ids"]) for i in range(len(source_tokens))]
    if list(map(len, sources)) != list(map(len, source_tokens)) or len(sources) not in (0, len(texts)):
        raise ValueError("source_tokens: expected a token for each id of source_ids, for every text")
    golden = Golden(
        model=str(manifest["model"]),
        config=read_config(manifest["config"]),
        weights_sha256=str(manifest["weights_sha256"]),
        versions=dict(manifest["versions"]),
        texts=texts,
        tokens=tokens,
        stages={name: [arrays[f"{i}/{name}"] for i in range(len(texts))] for name in stages},
        truth={name: [arrays[f"{i}/float64/{name}"] for i in range(len(texts))] for name in stages},
        budgets={name: float(manifest["budgets"][name]) for name in stages},
        sources=sources,
        source_tokens=source_tokens,
        unrounded={
            name: [arrays[f"{i}/unrounded/{name}"] for i in range(len(texts))]
            for name in (stages if any(name.startswith("0/unrounded/") for name in arrays) else ())
        },
    )
    if not texts or not stages:
        raise ValueError("no texts or no stages")
    for name in stages:
        for i, (single, double) in enumerate(zip(golden.stages[name], golden.truth[name], strict=True)):
            doubles = [double, *([golden.unrounded[name][i]] if golden.unrounded else [])]
            alike = all(array.dtype == np.float64 and array.shape == single.shape for array in doubles)
            if single.dtype != np.float32 or not alike:
                raise ValueError(f"{name}: expected float32 and float64 arrays of the same shape")
        if not 0 < golden.budgets[name] < math.inf:
            raise ValueError(f"{name}: expected a finite error budget above 0")
    return golden
