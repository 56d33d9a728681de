"""Models from the hub are downloaded from the small hub server on loopback, each in a separate process.

Every test has its own HF_HOME. `loads` runs npformer.load in a fresh process.
"""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from npformer.checkpoint import load_folder
from npformer.checkpoint.verify import verify
from tests.support import tiny, torch_writer, writers
from tests.support.hub_server import CLIENT, cache, closed_port, loads, python
from tests.support.terminals import run_on_terminal

NAME = "owner/tiny"


# --- files that are fetched --------------------------------------------------------------------------------


def test_only_the_files_needed_are_fetched_and_a_second_load_needs_no_network(hub, env, folder):
    for unneeded in ("README.md", "pytorch_model.bin", "tf_model.h5", "vocab.txt", "onnx/model.onnx"):
        (folder / unneeded).parent.mkdir(exist_ok=True)
        (folder / unneeded).write_bytes(b"not needed")
    hub.add(NAME, folder, large=5000)
    (first,) = loads(env, {"name": NAME})
    assert first["files"] == ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    assert sorted(hub.asked("GET")) == first["files"]
    hub.requests.clear()
    (second,) = loads(env, {"name": NAME}, network=False)
    assert second == first | {"client": False}
    assert not hub.requests
    (local,) = loads(env, {"name": str(folder)})
    assert local["logits"] == first["logits"]


FORMS = (
    "npformer.safetensors",
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)


@pytest.mark.slow
def test_every_form_of_weights(hub, env, folder, tmp_path):
    expected, flat = whole(folder)
    (folder / "model.safetensors").unlink()
    names = [f"owner/{form}" for form in FORMS]
    for form, name in zip(FORMS, names, strict=True):
        save(shutil.copytree(folder, tmp_path / form), form, flat)
        hub.add(name, tmp_path / form)
    answers = loads(env, *({"name": name} for name in names))
    again = loads(env, *({"name": name, "offline": True} for name in names), network=False)
    for form, answer, offline in zip(FORMS, answers, again, strict=True):
        assert form in answer["files"], form
        np.testing.assert_array_equal(answer["logits"], expected)
        assert offline["logits"] == answer["logits"]


def whole(folder):
    """Returns the tiny model's logits, and its tensors by Hugging Face's names."""
    from npformer.checkpoint import to_torch
    from npformer.model import Model

    config, weights = load_folder(folder)
    return Model(config, weights)([2, 9, 8, 3]).logits, to_torch(weights, config)


def save(folder, form, flat):
    from npformer.checkpoint.safetensors import write_tensors

    kind = "bin" if form.startswith("pytorch") else "safetensors"
    write = torch_writer.save if kind == "bin" else lambda path, arrays: write_tensors(path, arrays, {"format": "pt"})
    flat = {name: np.ascontiguousarray(array) for name, array in flat.items()}
    if form == "npformer.safetensors":
        tiny.folder(folder, own=True)
        return
    if not form.endswith(".index.json"):
        write(folder / form, flat)
        return
    names, weight_map = sorted(flat), {}
    for i in range(3):
        shard = f"{form.removesuffix(f'.{kind}.index.json')}-{i + 1:05}-of-00003.{kind}"
        write(folder / shard, {name: flat[name] for name in names[i::3]})
        weight_map |= dict.fromkeys(names[i::3], shard)
    (folder / form).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


@pytest.mark.slow
def test_an_old_tokenizer_and_a_sentence_transformers_folder(hub, env, folder):
    (folder / "tokenizer.json").unlink()
    tiny.vocabulary_folder(folder, do_lower_case=True)
    (folder / "1_Pooling").mkdir()
    paths = {"Transformer": "", "Pooling": "1_Pooling", "Dense": "2_Dense", "LayerNorm": "3_LayerNorm"}
    modules = [{"type": f"models.{kind}", "path": path} for kind, path in paths.items()]
    for file in ("2_Dense/config.json", "2_Dense/model.safetensors", "2_Dense/pytorch_model.bin"):
        (folder / "2_Dense").mkdir(exist_ok=True)
        (folder / file).write_text("{}")
    (folder / "3_LayerNorm").mkdir()
    (folder / "3_LayerNorm/pytorch_model.bin").write_text("{}")
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling/config.json").write_text("{}")
    (folder / "sentence_bert_config.json").write_text("{}")
    hub.add(NAME, folder)
    (answer,) = loads(env, {"name": NAME})
    assert answer["files"] == [
        "1_Pooling/config.json",
        "2_Dense/config.json",
        "2_Dense/model.safetensors",
        "3_LayerNorm/pytorch_model.bin",
        "config.json",
        "model.safetensors",
        "modules.json",
        "sentence_bert_config.json",
        "tokenizer_config.json",
        "vocab.txt",
    ]


@pytest.mark.slow
def test_an_older_sentence_transformers_folder_has_its_model_in_a_folder_inside(hub, env, folder, tmp_path):
    outer = tmp_path / "outer"
    outer.mkdir()
    folder.rename(outer / "0_Transformer")
    modules = [{"type": "models.Transformer", "path": "0_Transformer"}, {"type": "models.Pooling", "path": "1_Pooling"}]
    (outer / "modules.json").write_text(json.dumps(modules))
    (outer / "1_Pooling").mkdir()
    (outer / "1_Pooling/config.json").write_text("{}")
    (outer / "0_Transformer/sentence_bert_config.json").write_text("{}")
    hub.add(NAME, outer)
    info = f"from npformer.cli.main import main; raise SystemExit(main(['info', {NAME!r}]))"
    assert python(env, info).returncode == 0
    assert hub.asked("GET") == ["modules.json", "0_Transformer/config.json", "0_Transformer/tokenizer_config.json"]
    (answer,) = loads(env, {"name": NAME})
    wanted = [
        "config.json",
        "model.safetensors",
        "sentence_bert_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert answer["files"] == wanted
    assert "1_Pooling/config.json" in hub.asked("GET")
    hub.requests.clear()
    (again,) = loads(env, {"name": NAME}, network=False)
    assert again == answer | {"client": False}
    assert not hub.requests
    (local,) = loads(env, {"name": str(outer)})
    assert local["logits"] == answer["logits"]


@pytest.mark.slow
def test_info_fetches_no_weights(hub, env, folder):
    (folder / "tokenizer_config.json").write_text("{}")
    hub.add(NAME, folder)
    program = f"from npformer.cli.main import main; raise SystemExit(main(['info', {NAME!r}, '--json']))"
    done = python(env, program)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["weights"], facts["tasks"].split(", ")[0]) == ("not here", "text-classification")
    assert hub.asked("GET") == ["config.json", "tokenizer_config.json"]
    hub.requests.clear()
    assert python(env, program).stdout == done.stdout  # needs only the cache
    assert not hub.requests
    (loaded,) = loads(env, {"name": NAME})  # other files are fetched on demand
    assert "model.safetensors" in loaded["files"]


@pytest.mark.slow
def test_info_of_a_model_that_does_not_run(hub, env):
    config = {"model_type": "nystromformer", "auto_map": {"AutoModel": "modeling.Own"}}
    hub.add(NAME, {"config.json": json.dumps(config).encode(), "modeling.py": b"x", "model.safetensors": b"x"})
    done = python(env, f"from npformer.cli.main import main; raise SystemExit(main(['info', {NAME!r}]))")
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        "'nystromformer' needs attention approximated with landmarks, which is not supported; expected one of"
        in done.stderr
    )
    assert "; auto_map: the model is the checkpoint's own code ('modeling.Own'), which is never run" in done.stderr
    assert hub.asked("GET") == ["config.json"]


def test_a_masked_language_model_requests_no_generation_settings(hub, env, tmp_path):
    """No generation settings are requested for a masked language model, although BERT can also generate text."""
    hub.add(NAME, tiny.folder(tmp_path / "bert", "bert", "masked-lm"))
    loads(env, {"name": NAME})
    assert "config.json" in hub.asked("GET")
    assert "generation_config.json" not in hub.asked("HEAD") + hub.asked("GET")


@pytest.mark.slow
def test_a_model_that_writes_texts(hub, env, tmp_path):
    hub.add(NAME, writers.folder(tmp_path / "writer", generation={"max_new_tokens": 9}))
    (answer,) = loads(env, {"name": NAME})
    assert "generation_config.json" in answer["files"]


@pytest.mark.slow
def test_a_translation_model(hub, env):
    names = ["config.json", "generation_config.json", "model.safetensors", "source.spm", "target.spm", "vocab.json"]
    config = {
        "model_type": "marian",
        "architectures": ["MarianMTModel"],
        **dict.fromkeys(("pad_token_id", "eos_token_id", "decoder_start_token_id"), 0),
        **dict.fromkeys(("vocab_size", "d_model", "max_position_embeddings"), 8),
        **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2),
        **dict.fromkeys(("encoder_layers", "decoder_layers"), 1),
        **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 8),
    }
    hub.add(NAME, dict.fromkeys(names, b"x") | {"config.json": json.dumps(config).encode(), "README.md": b"x"})
    done = python(env, f"from npformer.loading import find_folder; print(find_folder({NAME!r}))")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in Path(done.stdout.strip()).iterdir()) == names


@pytest.mark.slow
def test_revisions_are_branches_tags_and_commits(hub, env, folder, tmp_path):
    first = hub.add(NAME, folder)
    hub.add(NAME, tiny.folder(tmp_path / "other", seed=1), branch="v2")
    hub.repositories[NAME].refs["refs/pr/1"] = hub.repositories[NAME].refs["v2"]
    calls = [{"name": NAME, "revision": each} for each in (first, "v2", "refs/pr/1")]
    by_commit, by_branch, by_pull = loads(env, *calls)
    assert Path(by_commit["folder"]).name == first
    assert by_branch["folder"] == by_pull["folder"] != by_commit["folder"]
    assert by_branch["logits"] != by_commit["logits"]
    assert loads(env, *calls, network=False)[1]["logits"] == by_branch["logits"]


@pytest.mark.slow
def test_a_branch_in_the_cache_is_used_as_it_is(hub, env, folder, tmp_path):
    old = hub.add(NAME, folder)
    loads(env, {"name": NAME})
    new = hub.add(NAME, tiny.folder(tmp_path / "other", seed=1))
    kept, newer = loads(env, {"name": NAME}, {"name": NAME, "revision": new})
    assert (Path(kept["folder"]).name, Path(newer["folder"]).name) == (old, new)


# --- other programs share the cache ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_client_finds_npformer_s_downloads(hub, env, folder):
    hub.add(NAME, folder)
    loads(env, {"name": NAME})
    found = python(env, CLIENT + f"print(get({NAME!r}, 'model.safetensors', local_files_only=True))")
    assert Path(found.stdout.strip()).read_bytes() == (folder / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_downloads_of_other_tools_load_without_a_network(hub, env, folder):
    """Other tools do not record which files the hub lacks, so npformer asks the hub and continues if it is down."""
    commit = hub.add(NAME, folder)
    done = python(env, CLIENT + f"[get({NAME!r}, f) for f in ('config.json', 'model.safetensors', 'tokenizer.json')]")
    assert done.returncode == 0, done.stderr
    (offline,) = loads(env, {"name": NAME, "offline": True}, network=False)
    with closed_port() as address:
        (unplugged,) = loads(env | {"HF_ENDPOINT": address}, {"name": NAME})
    assert offline["logits"] == unplugged["logits"]
    (online,) = loads(env, {"name": NAME})
    assert "tokenizer_config.json" in online["files"]
    assert hub.asked("GET").count("model.safetensors") == 1
    assert Path(online["folder"]).name == commit


@pytest.mark.slow
def test_weights_of_another_form_in_the_cache_are_enough(hub, env, folder):
    _, flat = whole(folder)
    save(folder, "pytorch_model.bin", flat)
    hub.add(NAME, folder)
    python(env, CLIENT + f"[get({NAME!r}, f) for f in ('config.json', 'pytorch_model.bin')]")
    (answer,) = loads(env, {"name": NAME})
    assert "model.safetensors" not in answer["files"]


@pytest.mark.slow
def test_shards_in_the_store_that_models_share(hub, env, folder):
    """Newer clients store only one copy of a file that several repositories share, and link to it."""
    expected, flat = whole(folder)
    (folder / "model.safetensors").unlink()
    save(folder, "model.safetensors.index.json", flat)
    hub.add(NAME, folder)
    (answer,) = loads(env, {"name": NAME})
    store = cache(env) / "blobs" / "ab"
    store.mkdir(parents=True)
    for link in Path(answer["folder"]).glob("*.safetensors"):
        blob = link.resolve()
        blob.rename(store / blob.name)
        blob.symlink_to(Path("../../blobs/ab") / blob.name)
    (again,) = loads(env, {"name": NAME}, network=False)
    np.testing.assert_array_equal(again["logits"], expected)


@pytest.mark.slow
def test_every_cached_file_can_be_checked_against_the_hub(hub, env, folder):
    hub.add(NAME, folder, large=5000)
    (answer,) = loads(env, {"name": NAME})
    checked = list(verify(Path(answer["folder"])))
    assert {each.verdict for each in checked} == {"matches the hub"}
    assert [each.name for each in checked] == answer["files"]
    weights = Path(answer["folder"], "model.safetensors").resolve()
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    assert [each.name for each in verify(Path(answer["folder"])) if each.damaged] == ["model.safetensors"]


def test_the_server_speaks_to_the_client_itself(hub, env, folder):
    commit = hub.add(NAME, folder)
    done = python(
        env, f"from huggingface_hub import HfApi; i = HfApi().model_info({NAME!r}); print(i.sha, len(i.siblings))"
    )
    assert done.stdout.split() == [commit, "4"], done.stderr


@pytest.mark.slow
def test_a_progress_bar_on_a_terminal(hub, env, folder):
    hub.add(NAME, folder)
    program = f"from npformer.loading import load; load({NAME!r})"
    code, output, shown = run_on_terminal([sys.executable, "-c", program], 100, env=env)
    assert (code, output) == (0, b"")
    assert b"model.safetensors: 100%" in shown
