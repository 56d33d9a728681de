"""`npformer search`: the nearest lines of files, and the vectors stored next to the files."""

import numpy as np
import pytest
from safetensors.numpy import save_file

from npformer import pipeline
from npformer import search as nearest
from npformer.checkpoint.archive import load_arrays, save_arrays
from tests.support import tiny
from tests.support.cli_runner import rows, run

TEXTS = ["ice cream", "", "not my music", "the news", "my music is good", "hot ice"]


@pytest.fixture
def model(models):
    return models["embed"]


@pytest.fixture
def file(tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    return tmp_path / "texts.txt"


def kept(file):
    return file.with_name(f"{file.name}.vectors.safetensors")


def search(model, *arguments, **more):
    return run("search", "-m", model, *arguments, **more)


def test_the_nearest_lines_best_first(model, file):
    embed = pipeline("sentence-embedding", model)
    texts = [text for text in TEXTS if text]
    hits = nearest(embed("music"), embed(texts), 3)
    code, output, errors = search(model, "-k", 3, "music", "texts.txt", cwd=file.parent)
    assert (code, errors) == (0, "")
    expected = [
        f"{score:.4f}  texts.txt:{TEXTS.index(texts[index]) + 1}  {texts[index]}"
        for index, score in zip(hits.indices, hits.scores, strict=True)
    ]
    assert output.splitlines() == expected
    _, output, _ = search(model, "-k", 3, "--json", "music", stdin="\n".join(TEXTS).encode())
    assert [row["text"] for row in rows(output)] == [texts[index] for index in hits.indices]
    assert [row["score"] for row in rows(output)] == [float(score) for score in hits.scores]
    assert rows(output)[0]["line"].startswith("stdin:")


def test_several_files_are_searched_together(model, file):
    (file.parent / "b.txt").write_text("music\nmusic\n")
    _, output, _ = search(model, "-k", 3, "music", "texts.txt", "b.txt", cwd=file.parent)
    assert [line.split("  ")[1] for line in output.splitlines()[:2]] == ["b.txt:1", "b.txt:2"]
    assert len(output.splitlines()) == 3


def test_vectors_are_kept_until_the_file_or_the_model_changes(model, file, tmp_path):
    first = search(model, "music", file)
    arrays, metadata = load_arrays(kept(file))
    assert arrays["vectors"].shape == (6, 32)
    save_arrays(kept(file), {"vectors": -arrays["vectors"]}, metadata)  # negated, to show that they are used
    assert search(model, "music", file)[1] != first[1]
    other = tiny.folder(tmp_path / "other", "bert", "base", seed=9)
    assert search(other, "music", file)[1] not in (first[1], "")
    assert search(model, "music", file) == first
    file.write_text("\n".join(TEXTS[::-1]) + "\n", encoding="utf-8")
    changed = [line.split("  ")[2] for line in search(model, "music", file)[1].splitlines()]
    assert changed == [line.split("  ")[2] for line in first[1].splitlines()]


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "folder", "link", "bit"])
def test_a_broken_file_of_vectors_is_recomputed(damage, model, file):
    first = search(model, "music", file)
    whole = kept(file).read_bytes()
    kept(file).unlink()
    if damage == "folder":
        kept(file).mkdir()
    elif damage == "link":
        (file.parent / "elsewhere").write_bytes(b"mine")
        kept(file).symlink_to(file.parent / "elsewhere")
    else:
        middle = len(whole) - 40
        flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
        kept(file).write_bytes({"cut": whole[:-9], "empty": b"", "text": b"vectors", "bit": flipped}[damage])
    code, output, errors = search(model, "music", file)
    assert (code, output) == first[:2]
    assert errors.count("\n") == (damage != "link")
    assert damage == "link" or errors.endswith("The vectors are computed again\n")
    if damage == "link":
        assert (file.parent / "elsewhere").read_bytes() == b"mine"
    elif damage != "folder":
        assert kept(file).read_bytes() == whole


@pytest.mark.parametrize("damage", ["dtype", "checksum", "infinite", "blank", "shape"])
def test_files_with_invalid_vectors_are_recomputed(damage, model, file):
    """Invalid stored vectors, with or without a correct checksum, are computed again, and searches succeed."""
    first = search(model, "music", file)
    whole = kept(file).read_bytes()
    arrays, metadata = load_arrays(kept(file))
    vectors = arrays["vectors"].copy()
    if damage == "dtype":
        vectors = np.nan_to_num(vectors).astype(np.int32)
    elif damage == "shape":
        vectors = vectors[:, :-1]
    else:
        vectors[1 if damage == "blank" else 0] = {"infinite": np.inf, "blank": 1.0}.get(damage, 0.5)
    if damage == "checksum":
        save_file({"vectors": vectors}, kept(file), {name: metadata[name] for name in ("lines", "model")})
    else:
        save_arrays(kept(file), {"vectors": vectors}, metadata)
    code, output, errors = search(model, "music", file)
    assert (code, output) == first[:2]
    assert "vectors.safetensors: damaged: expected" in errors
    assert kept(file).read_bytes() == whole
    assert search(model, "music", file) == first


def test_a_file_next_to_which_vectors_cannot_be_stored(model, file):
    """A suffix would make the file's name too long. (In a read-only folder, root could still store the vectors.)"""
    first = search(model, "music", file)
    kept(file).unlink()
    long = file.with_name("a" * 250)
    file.rename(long)
    code, output, errors = search(model, "music", long)
    assert (code, errors) == (0, "")
    assert [line.split("  ")[0] for line in output.splitlines()] == [
        each.split("  ")[0] for each in first[1].splitlines()
    ]


def test_unreadable_lines_are_reported_each_time(model, tmp_path):
    (tmp_path / "t.txt").write_bytes(b"ice\n\xff\nnews\n")
    for _ in range(2):
        code, output, errors = search(model, "ice", "t.txt", cwd=tmp_path)
        assert (code, errors) == (1, "npformer: t.txt:2: not UTF-8 (byte 0)\n")
        assert len(output.splitlines()) == 2


FORM = "after the query, give files with one text per line, or texts on stdin"


def test_missing_files_are_errors(model, tmp_path):
    code, output, errors = search(model, "ice", "no.txt", cwd=tmp_path)
    assert (code, output, errors) == (1, "", f"npformer: no.txt: No such file or directory; {FORM}\n")
