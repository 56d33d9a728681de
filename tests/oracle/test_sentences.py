"""sentence-embedding compared with sentence-transformers: `encode` and `similarity`, for folders of every layout."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer, util
from sentence_transformers.sentence_transformer import modules as m
from transformers import RobertaConfig, RobertaModel

import npformer
from npformer import pipeline
from npformer.tasks.pooling import POOLINGS
from tests.golden.make_tokenizer import CASES as TOKENIZERS
from tests.golden.make_tokenizer import write_folder
from tests.support import tiny
from tests.support.sentence_folders import TOKENIZER

TEXTS = ["I love ice cream", "", "not my MUSIC", "what [MASK] [SEP] the news 我爱 😀", "ice " * 90]
pytestmark = pytest.mark.filterwarnings("ignore:input [34]")  # the warning that inputs are truncated


def save(path, poolings=("mean",), include_prompt=True, after=(), old=False, inside=False, settings=None, **more):
    """Writes a folder as sentence-transformers does. old: version 2's form; inside: the encoder is in a subfolder."""
    torch.manual_seed(0)
    bare = tiny.folder(path / "bare", "bert", "base", seed=2)
    (bare / "tokenizer_config.json").write_text(json.dumps(TOKENIZER))
    pooling = m.Pooling(32, tuple(poolings), include_prompt=include_prompt)
    SentenceTransformer(modules=[m.Transformer(str(bare)), pooling, *after], device="cpu", **more).save(str(path / "m"))
    folder = path / "m"
    if settings is not None:
        (folder / "sentence_bert_config.json").write_text(json.dumps(settings))
    if old:
        modules = json.loads((folder / "modules.json").read_text())
        for each in modules:
            each["type"] = f"sentence_transformers.models.{each['type'].rsplit('.', 1)[-1]}"
        if inside:
            modules[0]["path"] = "0_Transformer"
            (folder / "0_Transformer").mkdir()
            for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
                shutil.move(folder / name, folder / "0_Transformer" / name)
            shutil.move(folder / "sentence_bert_config.json", folder / "0_Transformer" / "sentence_bert_config.json")
        (folder / "modules.json").write_text(json.dumps(modules))
        flags = {f"pooling_mode_{mode}": mode in poolings for mode in ("mean_sqrt_len_tokens", "lasttoken")}
        flags |= {f"pooling_mode_{mode}_tokens": mode in poolings for mode in ("max", "mean", "weightedmean")}
        flags |= {"word_embedding_dimension": 32, "pooling_mode_cls_token": "cls" in poolings}
        (folder / "1_Pooling" / "config.json").write_text(json.dumps({**flags, "include_prompt": include_prompt}))
    return folder


def dense(width, out, **more):
    return m.Dense(width, out, **more)


ROBERTA = {"vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
PROMPTS = {"prompts": {"query": "the news: ", "passage": "text "}}
CASES = {
    **{mode: {"poolings": (mode,)} for mode in POOLINGS},
    **{f"{mode}, prompt left out": {"poolings": (mode,), "include_prompt": False, **PROMPTS} for mode in POOLINGS},
    "several": {"poolings": ("cls", "lasttoken", "mean")},
    "old": {"poolings": ("cls", "max"), "old": True, "after": [m.Normalize()]},
    "old, encoder inside": {"old": True, "inside": True, "settings": {"max_seq_length": 12}},
    "dense": {"after": [dense(32, 8), m.Normalize()]},
    "old dense": {"poolings": ("cls", "max"), "old": True, "after": [dense(64, 8, bias=False, activation_function=None)]},
    "dense, norm": {"after": [m.Normalize(), dense(32, 8, activation_function=torch.nn.GELU()), m.LayerNorm(8)]},
    "residual": {"after": [dense(32, 32, use_residual=True), dense(32, 8, use_residual=True), m.Dropout(0.5)]},
    "default prompt": {**PROMPTS, "default_prompt_name": "query", "include_prompt": False},
    "truncated": {"after": [m.Normalize()], "truncate_dim": 5, "similarity_fn_name": "euclidean"},
    "manhattan": {"similarity_fn_name": "manhattan"},
    "dot": {"similarity_fn_name": "dot"},
}  # fmt: skip
CALLS = [{}, {"prompt": "ice: "}, {"prompt_name": "query"}, {"normalize_embeddings": True, "truncate_dim": 4}]


@pytest.mark.parametrize("case", CASES)
def test_vectors_and_similarities_match_a_sentence_transformer(case, tmp_path):
    """Vectors agree in float64 to 1e-9, and in float32 to 1e-6 of their length: the rounding of a few hundred
    operations."""
    folder = save(tmp_path, **CASES[case])
    model = SentenceTransformer(str(folder), device="cpu")
    embed = pipeline(None, folder)
    assert embed.name == "sentence-embedding"
    single = model.encode(TEXTS)
    size = np.linalg.norm(single, axis=1, keepdims=True) + 1
    assert np.abs((embed(TEXTS) - single) / size).max() <= 1e-6
    double, precise = model.double(), pipeline(None, folder, dtype=np.float64)
    for call in CALLS:
        theirs, ours = double.encode(TEXTS, **call), precise(TEXTS, **call)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-9)
        similar = model.similarity(torch.from_numpy(theirs), torch.from_numpy(theirs[:2])).numpy()
        # sentence-transformers computes similarities in float32
        np.testing.assert_allclose(precise.similarity(ours, ours[:2]), similar, rtol=0, atol=1e-6)


def test_a_lowercase_normalizer_counts_though_transformers_5_drops_it(tmp_path):
    """The vectors equal those of the model before it was saved. transformers 5 loads the folder without its normalizer,
    which changes the vectors."""
    torch.manual_seed(0)
    folder = write_folder(tmp_path / "bare", TOKENIZERS["merges"])
    RobertaModel(RobertaConfig(**ROBERTA)).save_pretrained(folder)
    encoder = m.Transformer(str(folder), do_lower_case=True)
    made = SentenceTransformer(modules=[encoder, m.Pooling(32)], device="cpu")
    made.save(str(tmp_path / "m"))
    texts = ["the GOOD thing", "not my MUSIC"]
    ours, expected = pipeline("sentence-embedding", tmp_path / "m")(texts), made.encode(texts)
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-6)
    again = SentenceTransformer(str(tmp_path / "m"), device="cpu").encode(texts)
    assert np.abs(again - expected).max() > 0.1


@pytest.mark.parametrize(("similarity", "function"), [("cosine", util.cos_sim), ("dot", util.dot_score)])
def test_a_search_finds_the_results_of_semantic_search(similarity, function):
    random = np.random.default_rng(0)
    corpus, queries = (random.standard_normal((n, 32)).astype(np.float32) for n in (3000, 7))
    theirs = util.semantic_search(
        torch.from_numpy(queries), torch.from_numpy(corpus), top_k=9, score_function=function, corpus_chunk_size=500
    )
    hits = npformer.search(queries, corpus, 9, similarity)
    assert hits.indices.tolist() == [[each["corpus_id"] for each in row] for row in theirs]
    expected = [[each["score"] for each in row] for row in theirs]
    np.testing.assert_allclose(hits.scores, expected, rtol=1e-6, atol=1e-6)
