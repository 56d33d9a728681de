"""Compares translation with other engines: `python -m tests.benchmarks.translation [--quick] [--json FILE]`.

A model of Marian-base's size with random weights (6 + 6 layers, 512 wide, 58,101 tokens) translates 64 sources of mixed
length, greedily and with four beams, into targets of a fixed length. For npformer alone, the program also measures the
time per token as the target grows. Engines take turns in one process, and each figure is an engine's minimum time.
Needs the dependency groups `oracle` and `bench`, and the extra `translate`.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from npformer.engine.runtime.threads import available_cores
from npformer.loading import load
from npformer.model import Seq2Seq
from tests.benchmarks import measure, table
from tests.benchmarks.models import Contender

VOCABULARY = 58_101
# any tokenizer will do, because the ids are random
TOKENIZER = Path(__file__).parent.parent / "golden" / "seq2seq" / "marian-files"


def write_model(folder: Path) -> None:
    """Writes the checkpoint as Transformers saves it, with names for the ids, which CTranslate2 requires."""
    import torch
    from transformers import MarianConfig, MarianMTModel

    torch.manual_seed(0)
    sizes = {
        f"{side}_{name}": size
        for side in ("encoder", "decoder")
        for name, size in (("layers", 6), ("ffn_dim", 2048), ("attention_heads", 8))
    }
    last = VOCABULARY - 1
    config = MarianConfig(
        vocab_size=VOCABULARY, d_model=512, activation_function="swish", scale_embedding=True, pad_token_id=last,
        decoder_start_token_id=last, eos_token_id=0, forced_eos_token_id=0, max_position_embeddings=512, **sizes,
    )  # fmt: skip
    model = MarianMTModel(config).eval()
    # OPUS-MT's settings
    model.generation_config.update(bad_words_ids=[[last]], renormalize_logits=True, max_length=512)
    model.save_pretrained(folder)
    for name in ("source.spm", "target.spm"):
        (folder / name).write_bytes((TOKENIZER / name).read_bytes())
    pieces = {"</s>": 0, "<unk>": 1, **{f"t{i}": i for i in range(2, last)}, "<pad>": last}
    (folder / "vocab.json").write_text(json.dumps(pieces))
    settings = {"tokenizer_class": "MarianTokenizer", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def sources(count: int) -> list[np.ndarray]:
    """Returns the ids of sentences of 8 to 39 tokens."""
    random = np.random.default_rng(0)
    return [np.append(random.integers(2, VOCABULARY - 1, size=n - 1), 0) for n in random.integers(8, 40, size=count)]


def transformers_engine(folder: Path, threads: int, texts: list[np.ndarray]) -> Callable[[int, int], Any]:
    import torch
    from transformers import MarianMTModel

    torch.set_num_threads(threads)
    model = MarianMTModel.from_pretrained(folder).eval()
    width = max(map(len, texts))
    mask = np.arange(width) < np.array([len(text) for text in texts])[:, None]
    ids = np.full(mask.shape, VOCABULARY - 1)
    ids[mask] = np.concatenate(texts)
    given = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask.astype(np.int64))}

    def run(beams: int, length: int) -> Any:
        with torch.inference_mode():
            return model.generate(**given, num_beams=beams, max_new_tokens=length, min_new_tokens=length).numpy()

    return run


def ctranslate2_engine(folder: Path, threads: int, texts: list[np.ndarray]) -> Callable[[int, int], Any]:
    import ctranslate2

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ctranslate2.converters.TransformersConverter(str(folder)).convert(str(folder / "ct2"))
    translator = ctranslate2.Translator(str(folder / "ct2"), compute_type="float32", intra_threads=threads)
    tokens = [[f"t{i}" if i else "</s>" for i in text] for text in texts]

    def run(beams: int, length: int) -> Any:
        return translator.translate_batch(
            tokens, beam_size=beams, max_batch_size=len(tokens), min_decoding_length=length, max_decoding_length=length
        )

    return run


def own_engine(model: Seq2Seq, texts: list[np.ndarray]) -> Callable[[int, int], Any]:
    ids = [text.tolist() for text in texts]

    def run(beams: int, length: int) -> Any:
        return model.generate(ids, num_beams=beams, max_new_tokens=length, min_new_tokens=length)

    return run


def token_times(model: Seq2Seq, length: int) -> list[tuple[str, float]]:
    """Returns the mean time per token for each part of one source's target."""
    source, ids = sources(1)[0].tolist(), []
    for _ in range(2):  # the first run only warms up
        times = [perf_counter()]
        for _ in model.stream(source, max_new_tokens=length, min_new_tokens=length, num_beams=1):
            times.append(perf_counter())
        ids = np.diff(times)
    edges = [0, *(2**n for n in range(4, 20) if 2**n < length), length]
    return [(f"{a + 1} to {b}", float(np.median(ids[a:b]))) for a, b in pairwise(edges)]


def main() -> None:
    """Measures and prints all figures, and writes the JSON file if requested."""
    arguments = measure.parser(
        "translation", __doc__, "shorter targets and one turn: a look, not a measurement"
    ).parse_args()
    threads, length, rounds = available_cores(), 8 if arguments.quick else 32, 1 if arguments.quick else 3
    result: dict[str, Any] = {"machine": measure.machine(), "length": length, "rows": {}}
    print(measure.described(result["machine"]), flush=True)
    with tempfile.TemporaryDirectory(prefix="npformer-translation-") as place:
        folder, texts = Path(place), sources(64)
        write_model(folder)
        model = load(folder, threads=threads)
        assert isinstance(model, Seq2Seq)
        engines = {
            "npformer": own_engine(model, texts),
            "Transformers": transformers_engine(folder, threads, texts),
            "CTranslate2": ctranslate2_engine(folder, threads, texts),
        }
        lines = []
        for beams, work in ((1, "greedy"), (4, "4 beams")):
            contenders = [
                Contender(name, "", lambda run=run, beams=beams: run(beams, length)) for name, run in engines.items()
            ]
            raced = measure.race(contenders, rounds, 0)
            seconds = {name: each["seconds"] for name, each in raced.items()}
            result["rows"][work] = seconds
            own = seconds["npformer"]
            peers = [f"{seconds[name]:.2f} s {own / seconds[name]:.2f}x" for name in ("Transformers", "CTranslate2")]
            lines.append([f"64 sources, {length} tokens, {work}", f"{own:.2f} s", *peers])
        print(table.markdown(["work", "npformer", "Transformers", "CTranslate2"], lines), flush=True)
        result["token"] = token_times(model, 64 if arguments.quick else 256)
        print("\ntime per token: " + "; ".join(f"{part}: {1e3 * each:.1f} ms" for part, each in result["token"]))
    measure.save(result, arguments.json)


if __name__ == "__main__":
    main()
