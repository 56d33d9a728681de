"""The command `npformer` on tiny models, run as users run it: in a separate process, from a different folder."""

import ast
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import npformer
from npformer.checkpoint import tree as layout
from npformer.cli.main import COMMANDS
from npformer.tasks import Pair, pipeline
from npformer.tasks.token_classification import STRATEGIES
from tests.support import seq2seq_models, tiny
from tests.support.cli_runner import ENVIRONMENT, rows, run

# --- usage -----------------------------------------------------------------------------------------------------------


def test_help_names_every_command_and_fits_80_columns():
    code, output, _ = run("--help")
    assert code == 0
    assert all(f"  {name}" in output for name in COMMANDS)
    assert max(map(len, output.splitlines())) <= 80


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_s_help_fits_80_columns(name):
    code, output, errors = run(name, "--help")
    assert (code, errors) == (0, "")
    assert output.startswith(f"usage: npformer {name}")
    assert max(map(len, output.splitlines())) <= 80


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "usage: npformer"),
        (("clasify", "x"), "no command 'clasify'; did you mean classify?"),
        (("classify", "--jsn", "x"), "--jsn"),
        (("classify", "-k", "0", "x"), "-k/--top-k: expected a whole number above 0, got '0'"),
        (("zero-shot", "-l", " , ", "x"), "-l/--labels: expected labels separated by commas, got ' , '"),
        (("classify", "-k", "few", "x"), "-k/--top-k: expected a whole number above 0, got 'few'"),
        (("classify", "--long", "cut", "x"), "invalid choice"),
        (("tag", "x"), "--model"),
        (("answer", "-m", "x", "who?"), "--context"),
        (("convert", "x"), "DST"),
    ],
)
def test_wrong_usage_is_exit_code_2(arguments, message):
    code, output, errors = run(*arguments)
    assert (code, output) == (2, "")
    assert message in errors


def test_an_unknown_command_is_answered_in_two_lines():
    *_, errors = run("clasify")
    assert errors.splitlines() == [
        "npformer: no command 'clasify'; did you mean classify?",
        "  npformer --help lists the commands",
    ]


def test_version_is_printed():
    code, output, _ = run("--version")
    assert code == 0
    assert output.startswith("npformer ")


# --- answers ---------------------------------------------------------------------------------------------------------


def test_classify_texts_from_arguments(models, tmp_path):
    code, output, errors = run("classify", "-m", models["classify"], "I love ice cream", "", cwd=tmp_path)
    assert (code, errors) == (0, "")
    task = pipeline("text-classification", models["classify"])
    for line, text in zip(output.splitlines(), ("I love ice cream", ""), strict=True):
        answer = task(text)
        assert line == f"{answer['label']:8}  {answer['score']:.4f}  {text}"


def test_classify_the_lines_of_a_file_as_json(models, tmp_path):
    texts = ["ice cream", "", "naïve 我爱 😀", "last"]
    (tmp_path / "texts.txt").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(texts).encode())
    code, output, errors = run("classify", "-m", models["classify"], "--json", "-f", "texts.txt", cwd=tmp_path)
    assert (code, errors) == (0, "")
    task = pipeline("text-classification", models["classify"])
    for row, text in zip(rows(output), texts, strict=True):
        answer = task(text)
        assert row == {"text": text, **answer, "n_tokens": answer.n_tokens, "truncated": False}


def test_classify_standard_input_with_top_k(models):
    code, output, errors = run("classify", "-m", models["classify"], "--json", "-k", "2", stdin=b"ice\ncream\n")
    assert (code, errors) == (0, "")
    labels = pipeline("text-classification", models["classify"])(["ice", "cream"], top_k=2)
    assert [row["labels"] for row in rows(output)] == labels


def test_classify_reads_pairs_with_a_tab_in_between(models, tmp_path):
    code, output, errors = run("classify", "-m", models["zero-shot"], "--json", "--pairs", "ice\tcream", "alone")
    assert code == 1
    assert errors == "npformer: argument 2: expected two texts separated by a tab, got 1\n"
    answer = pipeline("text-classification", models["zero-shot"])(Pair("ice", "cream"))
    assert rows(output)[0]["score"] == answer["score"]
    assert "argument 2" in rows(output)[1]["error"]


def test_zero_shot_scores_the_given_labels(models):
    arguments = (
        "zero-shot",
        "-m",
        models["zero-shot"],
        "--labels",
        "politics, sport",
        "--template",
        "It is {}.",
        "ice",
    )
    answer = pipeline("zero-shot-classification", models["zero-shot"])(
        "ice", ["politics", "sport"], hypothesis_template="It is {}."
    )
    code, output, errors = run(*arguments, "--json")
    assert (code, errors) == (0, "")
    assert {name: rows(output)[0][name] for name in ("labels", "scores")} == {
        name: answer[name] for name in ("labels", "scores")
    }
    shown = run(*arguments)[1].splitlines()
    assert shown == ["ice", *(f"  {s:.4f}  {n}" for n, s in zip(answer["labels"], answer["scores"], strict=True))]


def test_tag_shows_the_entities_of_its_strategy(models):
    entities = pipeline("token-classification", models["tag"])("Anna in Paris", aggregation_strategy="simple")
    code, output, errors = run("tag", "-m", models["tag"], "--json", "Anna in Paris")
    assert (code, errors) == (0, "")
    assert rows(output)[0]["entities"] == entities
    assert f"{{{','.join(STRATEGIES)}}}" in run("tag", "--help")[1]
    shown = run("tag", "-m", models["tag"], "--strategy", "none", "--ignore", "", "Anna in Paris")[1]
    assert len(shown.splitlines()) > 3


def test_answer_takes_a_context_from_a_file_or_an_option(models, tmp_path):
    (tmp_path / "context.txt").write_text("I live in Paris,\nnot in Kyoto.")
    arguments = ("answer", "-m", models["answer"], "--context-file", "context.txt", "-k", "2", "Where?")
    code, output, errors = run(*arguments, "--json", cwd=tmp_path)
    assert (code, errors) == (0, "")
    answers = pipeline("question-answering", models["answer"])("Where?", "I live in Paris,\nnot in Kyoto.", top_k=2)
    assert rows(output)[0]["answers"] == answers
    shown = run("answer", "-m", models["answer"], "--context", "I live in Paris", "--no-answer", "Where?")[1]
    assert shown.splitlines()[0] == "Where?"


def test_a_context_without_an_end_is_refused(models):
    code, output, errors = run("answer", "-m", models["answer"], "--context-file", "/dev/zero", "Where?")
    assert (code, output) == (1, "")
    assert errors == "npformer: /dev/zero: more than 16777216 characters; give a shorter text\n"


def test_fill_shows_words_for_each_mask(models):
    words = pipeline("fill-mask", models["fill"])("I love [MASK]", top_k=2)
    code, output, errors = run("fill", "-m", models["fill"], "--json", "-k", "2", "I love [MASK]", "no mask")
    assert code == 1
    assert "argument 2: no [MASK]" in errors
    assert rows(output)[0]["masks"] == [words]
    shown = run("fill", "-m", models["fill"], "--targets", "ice,cream", "[MASK] and [MASK]")[1]
    assert [line for line in shown.splitlines() if "mask" in line] == ["  mask 1", "  mask 2"]


def test_embed_writes_vectors_as_text_json_or_an_array(models, tmp_path):
    vectors = pipeline("sentence-embedding", models["embed"])(["ice", "", "cream"])
    code, output, errors = run("embed", "-m", models["embed"], "--json", "ice", "", "cream")
    assert (code, errors) == (0, "")
    assert [row["embedding"] for row in rows(output)] == vectors.tolist()
    assert "32 numbers: " in run("embed", "-m", models["embed"], "ice")[1]
    code, output, errors = run("embed", "-m", models["embed"], "-o", "v.npy", stdin=b"ice\n\ncream\n", cwd=tmp_path)
    assert (code, output, errors) == (0, "", "")
    array = np.load(tmp_path / "v.npy")
    assert np.array_equal(array, vectors)
    assert array.dtype == np.float32
    assert [path.name for path in tmp_path.iterdir()] == ["v.npy"]


def test_embed_takes_a_prompt_of_the_folder_the_length_and_the_width_of_vectors(tmp_path):
    folder = tiny.folder(tmp_path / "model", "bert", "base")
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {"query": "news: "}}))
    expected = pipeline("sentence-embedding", folder)(
        ["ice"], prompt_name="query", normalize_embeddings=True, truncate_dim=5
    )
    options = ("--prompt-name", "query", "--normalize", "--truncate-dim", "5")
    code, output, errors = run("embed", "-m", folder, *options, "--json", "ice")
    assert (code, errors) == (0, "")
    assert [row["embedding"] for row in rows(output)] == expected.tolist()
    code, _, errors = run("embed", "-m", folder, "--prompt-name", "qeury", "ice")
    assert code == 1
    assert errors.startswith("npformer: --prompt-name: ")
    assert "query" in errors
    code, _, errors = run("embed", "-m", folder, "--truncate-dim", "33", "ice")
    assert (code, errors) == (1, "npformer: --truncate-dim: expected a whole number from 1 to 32, got 33\n")


def test_embed_sparse_shows_words_with_their_weights(models):
    answer = pipeline("sparse-embedding", models["fill"])("ice")
    code, output, errors = run("embed-sparse", "-m", models["fill"], "--json", "ice")
    assert (code, errors) == (0, "")
    (row,) = rows(output)
    assert row["indices"] == answer["indices"].tolist()
    assert row["values"] == answer["values"].tolist()
    assert row["tokens"] == answer["tokens"]
    best = sorted(zip(answer["values"], answer["tokens"], strict=True), key=lambda each: -each[0])[:3]
    _, output, _ = run("embed-sparse", "-m", models["fill"], "-k", "3", "ice")
    assert output.splitlines() == ["ice", *(f"  {value:.4f}  {token}" for value, token in best)]


def test_embed_writes_a_row_of_nan_for_a_text_it_cannot_read(models, tmp_path):
    arguments = ("embed", "-m", models["embed"], "-o", tmp_path / "v.npy")
    code, _, errors = run(*arguments, stdin=b"ice\n\xff\ncream")
    assert code == 1
    assert errors == "npformer: stdin:2: not UTF-8 (byte 0)\n"
    array = np.load(tmp_path / "v.npy")
    assert np.isnan(array).all(axis=1).tolist() == [False, True, False]


def test_rerank_shows_the_best_text_first(models, tmp_path):
    """The lines of all files are ranked together; an unreadable line is reported, and comes last in the JSON output."""
    (tmp_path / "a.txt").write_bytes(b"ice cream\nnot my music\n\xff\n")
    (tmp_path / "b.txt").write_text("she was in Paris\n\n")
    texts = ["ice cream", "not my music", "she was in Paris", ""]
    scores = pipeline("text-ranking", models["rerank"])([Pair("what is good", each) for each in texts])
    expected = sorted(zip([each["score"] for each in scores], texts, strict=True), reverse=True)
    arguments = ("rerank", "-m", models["rerank"], "what is good")
    code, output, errors = run(*arguments, "a.txt", "b.txt", cwd=tmp_path)
    assert (code, errors) == (1, "npformer: a.txt:3: not UTF-8 (byte 0)\n")
    assert output.splitlines() == [f"{score:.4f}  {text}" for score, text in expected]
    code, output, _ = run(*arguments, "--json", stdin=(tmp_path / "a.txt").read_bytes())
    *found, unread = rows(output)
    assert [(each["score"], each["text"]) for each in found] == [each for each in expected if each[1] in texts[:2]]
    assert unread == {"error": "stdin:3: not UTF-8 (byte 0)"}
    assert run("rerank", "-m", models["rerank"])[::2] == (
        1,
        "npformer: QUERY: missing; give a query and files of texts, or a dataset with --input\n",
    )


def test_no_texts_give_an_empty_answer(models, tmp_path):
    assert run("classify", "-m", models["classify"]) == (0, "", "")
    assert run("embed", "-m", models["embed"], "-o", tmp_path / "v.npy")[0] == 0
    assert np.load(tmp_path / "v.npy").shape == (0, 32)


# --- convert and info ------------------------------------------------------------------------------------------------


def test_a_conversion_round_trip_keeps_the_answers(models, tmp_path):
    code, output, errors = run("convert", models["classify"], "own", cwd=tmp_path)
    assert (code, errors) == (0, "")
    assert re.fullmatch(r"own: \d+\.\d MB\n", output)
    assert run("convert", "own", "back", "--to", "torch", cwd=tmp_path)[0] == 0
    answers = [pipeline("text-classification", path)("ice") for path in (models["classify"], tmp_path / "own")]
    assert answers[0] == answers[1]
    assert (tmp_path / "back" / "config.json").exists()
    code, _, errors = run("convert", models["classify"], "own", cwd=tmp_path)
    assert code == 1
    assert "own: already exists" in errors


def test_info_describes_the_installation():
    code, output, errors = run("info", "-j", "1", "--json")
    assert (code, errors) == (0, "")
    facts = json.loads(output)
    assert {"npformer", "NumPy", "BLAS", "threads", "same bits", "panels", "bundled models", "cache"} <= facts.keys()
    assert facts["threads"] == 1
    assert facts["NumPy"] == np.__version__
    assert facts["same bits"].startswith("float32: ")
    shown = run("info", "--dtype", "float64")[1]
    assert "float64: " in shown
    assert "float32" not in shown


def test_info_describes_a_model(models, tmp_path):
    code, output, errors = run("info", models["fill"], "--json")
    assert (code, errors) == (0, "")
    facts = json.loads(output)
    assert facts["head"] == "masked-lm"
    assert facts["tasks"].startswith("fill-mask, ")
    assert facts["longest text"] == "64 tokens"
    assert facts["memory"].endswith(" MB as float32")
    assert "MB as float64" in run("info", models["fill"], "--dtype", "float64")[1]
    for keep, size in (("float32", 90.9), ("bfloat16", 45.5), ("int8", 23.0)):
        assert f"memory        {size} MB as {keep}\n" in run("info", "distilbert-sst2", "--keep", keep)[1]
    for keep, message in (("stored", "does not read the dtypes of stored weights"), ("int4", "keep: expected one of")):
        code, output, errors = run("info", models["fill"], "--keep", keep)
        assert (code, output) == (1, "")
        assert message in errors
    shown = run("info", models["zero-shot"])[1]
    assert "zero-shot-classification" in shown
    assert "contradiction" in shown
    assert "text-classification, text-ranking, " in run("info", models["rerank"])[1]
    assert "made from" not in shown  # a folder without a card
    marian = run("info", str(Path(__file__).parents[1] / "golden" / "seq2seq" / "marian-files"), "--json")[1]
    assert json.loads(marian)["tasks"] == "translation"
    bart = seq2seq_models.bart_folder(tmp_path / "bart", task_specific_params={"summarization": {}})
    assert json.loads(run("info", bart, "--json")[1])["tasks"] == "summarization, text2text-generation"
    assert json.loads(marian)["layers"] == "2 and 2 in the decoder"


def test_info_reads_no_weights(models, tmp_path):
    for name in ("config.json", "tokenizer_config.json"):
        if (models["fill"] / name).exists():
            shutil.copy(models["fill"] / name, tmp_path)
    described = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**described, "torch_dtype": "float16", "use_cache": True}))
    code, output, errors = run("info", tmp_path, "--json")
    assert (code, errors) == (0, "")
    facts, whole = json.loads(output), json.loads(run("info", models["fill"], "--json")[1])
    assert (facts.pop("weights"), facts.pop("ignored")) == ("not here", "torch_dtype, use_cache")
    assert whole.pop("weights").endswith(".safetensors")
    assert {**facts, "folder": ""} == {**whole, "folder": ""}
    stored = npformer.load(models["fill"]).weights
    numbers = sum(array.size for array in layout.stored(stored, npformer.load(models["fill"]).config).values())
    assert facts["parameters"] == f"{numbers / 1e6:.1f} million"


def test_info_says_when_only_the_encoder_of_a_folder_runs(models, tmp_path):
    """The folder is a ColBERT model in the format of sentence-transformers 6."""
    folder = shutil.copytree(models["fill"], tmp_path / "model")
    kinds = ("Transformer", "Dense", "MultiVectorMask", "Normalize")
    modules = [{"type": f"m.{kind}", "path": f"{i}_{kind}" if i else ""} for i, kind in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(modules))
    facts = json.loads(run("info", folder, "--json")[1])
    said = f"{folder}/modules.json: Transformer, Dense, MultiVectorMask, Normalize is not supported"
    assert facts["runs"].startswith(f"only the encoder: {said}")
    assert "sentence-embedding" not in facts["tasks"]
    with pytest.raises(npformer.NpformerError, match=f"^{said}"):
        npformer.pipeline("sentence-embedding", folder)
    (folder / "modules.json").write_text(json.dumps([modules[0], {"type": "m.Pooling", "path": ""}]))
    facts = json.loads(run("info", folder, "--json")[1])
    assert facts["runs"].startswith("yes")
    assert "sentence-embedding" in facts["tasks"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "deberta"}, "'deberta' needs disentangled attention"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling: 'linear' is not supported for "),
        ({"model_type": "own", "auto_map": {"AutoModel": "own.Model"}}, "which is never run"),
    ],
)
def test_info_and_load_give_the_same_reason_for_an_unsupported_model(models, tmp_path, change, said):
    folder = tmp_path / "model"
    shutil.copytree(models["fill"], folder)
    described = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**described, **change}))
    code, output, errors = run("info", folder)
    assert (code, output) == (1, "")
    assert said in errors
    with pytest.raises(npformer.NpformerError) as caught:
        npformer.load(folder)
    assert str(caught.value) in errors


def test_info_shows_the_bundled_model_s_origin_and_card():
    facts = json.loads(run("info", "distilbert-sst2", "--json")[1])
    assert facts["made from"] == "sentence-transformers/all-MiniLM-L6-v2"
    card = Path(facts["card"]).read_text(encoding="utf-8")
    assert "It is not `distilbert-base-uncased-finetuned-sst-2-english`" in card
    assert "python examples/published_numbers.py" in card


# --- start-up --------------------------------------------------------------------------------------------------------


def test_help_imports_no_numpy():
    """A command's modules are imported only when it runs."""
    code = "import sys; from npformer.cli.main import main; main(['--help']); sys.exit('numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, timeout=300, check=True)


def test_answering_a_text_imports_nothing_heavy(models):
    script = (
        "import sys; from npformer.cli.main import main; code = main(sys.argv[1:]);"
        "print(sorted(sys.modules)); sys.exit(code)"
    )
    arguments = [sys.executable, "-c", script, "classify", "-m", str(models["classify"]), "ice"]
    done = subprocess.run(arguments, capture_output=True, env=ENVIRONMENT, timeout=300, text=True, check=True)
    modules = ast.literal_eval(done.stdout.splitlines()[-1])
    loaded = {name.partition(".")[0] for name in modules}
    heavy = {
        "huggingface_hub",
        "tqdm",
        "safetensors",
        "torch",
        "transformers",
        "logging",
        "asyncio",
        "requests",
        "yaml",
    }
    assert not heavy & loaded
    # Importing the other families, mechanisms and blocks would take a tenth of the time until the answer.
    others = {
        "npformer.families.llama",
        "npformer.engine.mechanisms.rotary",
        "npformer.engine.blocks.convolution",
        "npformer.generation",
    }
    assert "npformer.families.distilbert" in modules
    assert not others & set(modules)
