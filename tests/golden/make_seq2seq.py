"""Makes the golden values of encoder-decoders, or with --check makes them again and compares them.

    python tests/golden/make_seq2seq.py [--check]

It needs the `oracle` group. It writes these files to `seq2seq/`, with every float computed by torch both in float32 and
in float64, and with the errors of stages and logits in each order of `orders.py` (`error/...`):

    <case>/           a state dict of one of torch's modules with its config.json, and the results of a run: for an
                      encoder-decoder, every stage
    marian.safetensors    three Marian models of three sizes: logits of three pairs, and the results of `generate` for
                      sixty sources and thirteen settings; `ties` marks sources with a different answer in float64
    bart.safetensors  the same for a BART and twenty sources
    marian-files/     a tiny Marian model as Transformers saves it, with its tokenizer: files to load, text to translate
"""

from __future__ import annotations

import io
import json
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file
from transformers import BartConfig, BartForConditionalGeneration, MarianConfig, MarianMTModel, MarianTokenizer

from tests.golden import seq2seq_cases as cases
from tests.golden.make import _differences as tensor_differences
from tests.golden.make import make_or_check
from tests.golden.orders import ORDERS, errors
from tests.golden.seq2seq_torch import DTYPES, make_torch

HERE = Path(__file__).parent
MODELS = {"marian": (MarianConfig, MarianMTModel), "bart": (BartConfig, BartForConditionalGeneration)}


def make(folder: Path) -> None:
    torch.set_num_threads(1)
    torch.backends.mha.set_fastpath_enabled(False)
    for case in cases.TORCH:
        make_torch(folder / case, case)
    for kind, models in (("marian", cases.MARIAN), ("bart", cases.BART)):
        arrays = {f"{case}/{name}": array for case in models for name, array in generated(case).items()}
        save_file(arrays, folder / f"{kind}.safetensors", {"orders": "; ".join(ORDERS)})
    make_files(folder / "marian-files")


# --- Marian and BART -------------------------------------------------------------------------------------------------


def generated(case: str) -> dict[str, np.ndarray]:
    """Logits of some pairs, and for each setting the targets of all sources, with the targets' scores."""
    config = cases.model_config(case)
    kind, generator = MODELS[config["model_type"]]
    model = generator(kind(**{k: v for k, v in config.items() if k not in ("model_type", "architectures")}))
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), ("final_logits_bias", model.final_logits_bias)]:
            if case in cases.BART or "embed_positions" not in name:  # Marian's positions are sinusoidal
                tensor.copy_(torch.from_numpy(cases.model_tensor(case, name, tuple(tensor.shape))))
    model.eval()
    sources, targets = cases.sources(case), cases.targets(case, cases.PAIRS)
    ids, mask = padded(sources, config["pad_token_id"])
    arrays: dict[str, np.ndarray] = {}
    answers: dict[str, list[np.ndarray]] = {}

    def logits() -> np.ndarray:
        pairs = ((torch.from_numpy(s)[None], torch.from_numpy(t)[None]) for s, t in zip(sources, targets, strict=False))
        return torch.cat([model(source, decoder_input_ids=target).logits[0] for source, target in pairs]).numpy()

    for dtype, type_ in DTYPES.items():
        model.to(type_)
        with torch.no_grad():
            arrays[f"{dtype}/logits"] = logits()
            for name, settings in cases.SETTINGS.items():
                out = model.generate(
                    input_ids=ids, attention_mask=mask, max_new_tokens=cases.MAX_NEW_TOKENS, **settings,
                    return_dict_in_generate=True, output_scores=True,
                )  # fmt: skip
                found = np.full((len(out.sequences), cases.MAX_NEW_TOKENS + 1), config["pad_token_id"])
                found[:, : out.sequences.shape[1]] = out.sequences
                answers.setdefault(name, []).append(found)
                if "num_beams" in settings and dtype == "float32":
                    arrays[f"{name}/scores"] = np.ascontiguousarray(out.sequences_scores.numpy())
    model.to(torch.float32)
    with torch.no_grad():
        arrays |= errors(lambda: {"logits": logits()}, {"logits": arrays["float64/logits"]})
    for name, (single, double) in answers.items():
        arrays[f"{name}/ids"] = single.astype(np.int16)
        copies = len(single) // len(sources)
        arrays[f"{name}/ties"] = (single != double).any(axis=1).reshape(-1, copies).any(axis=1)
        lengths = (single != config["pad_token_id"]).sum(axis=1)
        print(f"{case:14} {name:22} ties {arrays[f'{name}/ties'].sum()}, lengths {lengths.min()} to {lengths.max()}, "
              f"{len(np.unique(single, axis=0))} different")  # fmt: skip
    return arrays


def padded(texts: list[np.ndarray], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(map(len, texts))
    ids = np.full((len(texts), width), pad)
    for row, text in zip(ids, texts, strict=True):
        row[: len(text)] = text
    mask = np.arange(width) < np.array([len(text) for text in texts])[:, None]
    return torch.from_numpy(ids), torch.from_numpy(mask.astype(np.int64))


# --- files and text --------------------------------------------------------------------------------------------------

ENGLISH = [
    "A dog runs through the snow.", "Two men sit on a bench in the park.", "A woman in a red coat is reading.",
    "The children play with a ball near the water.", "A man rides a bike down the street.",
    "Three people are standing in front of a house.", "A girl in a blue dress is smiling at the camera.",
    "The brown horse jumps over a fence.", "An old man plays the guitar on the street.", "A boy is eating an apple.",
]  # fmt: skip
GERMAN = [
    "Ein Hund rennt durch den Schnee.", "Zwei Männer sitzen auf einer Bank im Park.", "Eine Frau in rotem Mantel liest.",
    "Die Kinder spielen mit einem Ball am Wasser.", "Ein Mann fährt mit dem Fahrrad die Straße hinunter.",
    "Drei Personen stehen vor einem Haus.", "Ein Mädchen in einem blauen Kleid lächelt in die Kamera.",
    "Das braune Pferd springt über einen Zaun.", "Ein alter Mann spielt auf der Straße Gitarre.",
    "Ein Junge isst einen Apfel.",
]  # fmt: skip
TEXTS = [
    *ENGLISH[:6], ">>deu<< A dog runs.", ">>fra<<A dog runs.", "Ünknown létters, 😀 and  two  spaces ", "</s> in a text",
]  # fmt: skip


def make_files(folder: Path) -> None:
    """A model as Transformers saves it, with a tokenizer, and their results for a few texts."""
    import sentencepiece

    folder.mkdir()
    pieces = ["</s>", "<unk>", ">>deu<<", ">>fra<<"]
    for name, texts in (("source.spm", ENGLISH), ("target.spm", GERMAN)):
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=model,
            vocab_size=64,
            minloglevel=2,
            num_threads=1,
            normalization_rule_name="identity",
        )
        (folder / name).write_bytes(model.getvalue())
        processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        pieces += [processor.id_to_piece(i) for i in range(3, processor.get_piece_size())]
    pieces = [*dict.fromkeys(pieces), "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}, ensure_ascii=False))
    names = ("source.spm", "target.spm", "vocab.json")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a warning about a missing package for punctuation, which is not needed here
        tokenizer = MarianTokenizer(*(str(folder / name) for name in names))
    tokenizer.save_pretrained(folder)

    config = {**cases.MARIAN["marian-small"], "vocab_size": len(pieces), "pad_token_id": len(pieces) - 1}
    config |= {"d_model": 24, "encoder_attention_heads": 3, "decoder_attention_heads": 3}
    model = MarianMTModel(MarianConfig(**config, decoder_start_token_id=len(pieces) - 1, eos_token_id=0))
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), ("final_logits_bias", model.final_logits_bias)]:
            if "embed_positions" not in name:
                tensor.copy_(torch.from_numpy(cases.drawn("marian-small", name, tuple(tensor.shape))))
    model.final_logits_bias[0, 0] = 4
    settings = {"num_beams": 4, "max_length": 24, "no_repeat_ngram_size": 1, "renormalize_logits": True}
    settings["bad_words_ids"] = [[len(pieces) - 1]]
    for name, value in settings.items():
        setattr(model.generation_config, name, value)
    model.eval().save_pretrained(folder)
    ids = [tokenizer(text).input_ids for text in TEXTS]
    with torch.no_grad():
        found = [model.generate(input_ids=torch.tensor([each]))[0] for each in ids]
    expected = [
        {"text": text, "ids": each, "target": tokenizer.decode(target, skip_special_tokens=True)}
        for text, each, target in zip(TEXTS, ids, found, strict=True)
    ]
    (folder / "expected.json").write_text(json.dumps(expected, indent=1, ensure_ascii=False) + "\n")
    for name in ("config.json", "generation_config.json"):
        data = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**data, "transformers_version": "5"}, indent=2) + "\n")


def check(made: Path, committed: Path) -> list[str]:
    """Lists the differences from the committed files. State dicts are compared by their tensors, because zip archives
    never have the same bytes twice."""
    here, there = ({str(f.relative_to(each)) for f in each.rglob("*") if f.is_file()} for each in (made, committed))
    found = [f"{name}: {'made' if name in here else 'committed'} only" for name in sorted(here ^ there)]
    for name in sorted(here & there):
        new, old = made / name, committed / name
        if name.endswith(".safetensors"):
            found += [f"{name}: {line}" for line in tensor_differences(new, old)]
        elif name.endswith(".bin"):
            a, b = torch.load(new), torch.load(old)
            if a.keys() != b.keys() or not all(torch.equal(a[each], b[each]) for each in a):
                found.append(f"{name}: other tensors")
        elif new.read_bytes() != old.read_bytes():
            found.append(f"{name}: other content")
    return found


if __name__ == "__main__":
    told = f"{len(cases.TORCH)} modules, {len(cases.GENERATORS)} models that generate"
    sys.exit(make_or_check(__doc__, make, HERE / "seq2seq", told, check))
