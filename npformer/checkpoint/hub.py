"""Models from the Hugging Face hub, through huggingface_hub: its cache, endpoint, login, progress bars and retries.

`download` turns a hub id into a local folder, which `read.py` reads like any other. A model in the cache needs no
import of the client. `loading.py` decides whether a name is a hub id.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from npformer.checkpoint.modules import MODULES, encoder_folder, module_files
from npformer.checkpoint.read import CONFIG, WEIGHTS
from npformer.common.errors import NpformerError
from npformer.common.files import open_file, read_json
from npformer.families import FAMILIES, read_config

# Files to fetch besides config and weights; most repositories lack some of them.
TOKENIZER = ("tokenizer_config.json", "special_tokens_map.json")
GENERATION = "generation_config.json"  # of a model that writes texts
TRANSLATION = ("vocab.json", "target_vocab.json", "source.spm", "target.spm", GENERATION)
# One of these, without tokenizer.json.
OLD_TOKENIZER = ("vocab.txt", "merges.txt", "sentencepiece.bpe.model", "spiece.model", "spm.model")
# Of sentence-transformers, where there is a modules.json: beside the encoder's files, and beside modules.json.
ENCODER_SETTINGS, SETTINGS = "sentence_bert_config.json", "config_sentence_transformers.json"

_PART = r"[A-Za-z0-9_](?:[\w.-]*[A-Za-z0-9_])?"
_ID = re.compile(rf"(?!.*(?:--|\.\.|\.git$))(?:{_PART}/)?(?=.{{1,96}}$){_PART}", re.ASCII)
_REVISION = re.compile(r"(?!.*\.\.)[\w.+-]+(?:/[\w.+-]+)*", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_LOGIN = "log in with `hf auth login`, or set HF_TOKEN"


class UnknownModel(NpformerError):
    """The hub has no model of this name, or could not be reached: the name may mean something else."""


def is_hub_id(name: str) -> bool:
    """Tells whether a name has the form `owner/model`, or `model` for one of the hub's oldest."""
    return bool(_ID.fullmatch(name))


def download(name: str, revision: str | None = None, offline: bool = False, weights: bool = True) -> Path:
    """Fetches what is missing of a hub model, and returns its folder in the cache that all Hugging Face tools share.

    A revision is a branch ("main" by default), a tag or a commit. A revision in the cache is used as it is, without
    asking whether the branch has changed: name a commit, or delete the model from the cache, to get another version.
    Only the files that npformer reads are fetched, and without `weights` only config.json and the tokenizer's settings.
    `offline`, or HF_HUB_OFFLINE in the environment, forbids the network.

    Raises NpformerError: no such model or revision, no permission, no connection or a broken one, no config or weights.
    """
    from huggingface_hub import constants  # takes a tenth of the client's import time

    revision = "main" if revision is None else revision
    if not isinstance(revision, str) or not _REVISION.fullmatch(revision):
        raise NpformerError(f"revision: expected a branch, a tag or a commit, got {revision!r:.80}")
    cached = _Cached(Path(constants.HF_HUB_CACHE), name, revision)
    missing = _collect(cached.folder, cached.has, weights)
    if not cached.unsure and not missing:
        return _model(cached.folder)
    if offline or constants.HF_HUB_OFFLINE:
        if missing:
            why = "offline was asked for" if offline else "HF_HUB_OFFLINE is set"
            where = f"in the cache {constants.HF_HUB_CACHE} (revision {revision})"
            kind = UnknownModel if missing == CONFIG else NpformerError
            raise kind(f"{name}: no {missing} {where}, and {why}; load it once with a connection")
        return _model(cached.folder)
    try:
        return _fetch(name, revision if missing else cached.commit, weights)
    except NpformerError:
        if missing:
            raise
        return _model(cached.folder)  # it may lack only small files that other tools did not request


class _Cached:
    """One revision of a model in the cache.

    huggingface_hub's guide describes the layout: refs/<branch> names a commit, snapshots/<commit> has the files, and
    .no_exist/<commit> an empty file for each that was requested and is not on the hub.
    """

    def __init__(self, cache: Path, name: str, revision: str) -> None:
        repo = cache / f"models--{name.replace('/', '--')}"
        try:
            with open_file(repo / "refs" / revision) as file:
                stored = file.read(100).decode(errors="replace").strip()
        except NpformerError:
            stored = ""
        self.commit = stored if _COMMIT.fullmatch(stored) else revision
        self.folder = repo / "snapshots" / self.commit
        self.unsure: list[str] = []  # files that were requested and may be on the hub

    def has(self, file: str) -> bool:
        if os.path.exists(self.folder / file):
            return True
        if not is_known_absent(self.folder, file):
            self.unsure.append(file)
        return False


def is_known_absent(snapshot: Path, file: str) -> bool:
    return os.path.exists(snapshot.parents[1] / ".no_exist" / snapshot.name / file)


def _collect(folder: Path, has: Callable[[str], bool], with_weights: bool) -> str:
    """Asks `has` for each file that a model needs, and returns what is missing, or "".

    One of several forms of the weights is enough, so those in `folder` are tried first.
    """
    start = ""  # of the names of the model's files
    if not has(CONFIG):
        start = _inside(folder) if has(MODULES) else ""
        if not start or not has(start + CONFIG):
            return start + CONFIG
    if not with_weights:
        has(start + TOKENIZER[0])
        return ""
    forms = sorted((start + each for each in WEIGHTS), key=lambda each: not os.path.exists(folder / each))
    weights = next((each for each in forms if has(each)), None)
    if weights is None:
        return "weights"
    for shard in _shards(folder / weights) if weights.endswith(".index.json") else []:
        if not has(start + shard):
            return start + shard
    extras = [*TOKENIZER]
    config = read_json(folder / start / CONFIG)
    family, classes = FAMILIES.get(config.get("model_type", "")), config.get("architectures")
    if family is not None and family.tokenizer_pieces:
        extras += TRANSLATION
    elif family is not None and isinstance(classes, list) and classes:
        writes = family.architectures.get(str(classes[0])) in ("causal-lm", "translation")
        extras += [GENERATION] if writes else []
    if not has(start + "tokenizer.json"):
        old = next((each for each in OLD_TOKENIZER if has(start + each)), "")
        extras += ["added_tokens.json", *(["vocab.json"] if old == "merges.txt" else [])]
    if has(MODULES):
        extras.append(ENCODER_SETTINGS)
        has(SETTINGS)
        for alternatives in module_files(folder):
            any(has(each) for each in alternatives)
    for extra in extras:
        has(start + extra)
    return ""


def _inside(folder: Path) -> str:
    """The part of the names of the model's files that says in which folder of modules.json they lie; "" in none."""
    encoder = encoder_folder(folder)
    return "" if encoder == folder else f"{encoder.name}/"


def _model(snapshot: Path) -> Path:
    """The folder of a snapshot that has the model's config.json."""
    return snapshot if (snapshot / CONFIG).exists() else snapshot / _inside(snapshot)


def _shards(index: Path) -> list[str]:
    """The files that an index names, without names that are not plain; `read.py` reports those."""
    weight_map = read_json(index).get("weight_map")
    names = weight_map.values() if isinstance(weight_map, dict) else ()
    return [name for name in dict.fromkeys(map(str, names)) if re.fullmatch(r"\w[\w.-]*", name)]


def _fetch(name: str, revision: str, weights: bool) -> Path:
    """Downloads what the cache lacks, all from one commit."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    with _explained(name, revision):
        first = next((each for each in (CONFIG, MODULES) if _probe(name, revision, each)), None)
        if first is None:
            raise NpformerError(f"{name}: no {CONFIG} on the hub, so npformer cannot read it as a transformer")
        folder = Path(hf_hub_download(name, first, revision=revision)).parent

    def has(file: str) -> bool:
        if is_known_absent(folder, file):
            return False
        with _explained(name, revision, file):
            try:
                hf_hub_download(name, file, revision=folder.name)
            except EntryNotFoundError as error:
                if isinstance(error, LocalEntryNotFoundError):  # the hub was not reached
                    raise
                return False
        return True

    start = "" if first == CONFIG else _inside(folder)
    if not has(start + CONFIG):
        raise NpformerError(f"{name}: no {start + CONFIG} on the hub, so npformer cannot read it as a transformer")
    try:
        read_config(read_json(folder / start / CONFIG))
    except NpformerError as error:  # raised before the weights of an unsupported model are fetched
        raise NpformerError(f"{name}: {error}") from None
    missing = _collect(folder, has, weights)
    if missing == "weights":
        raise NpformerError(f"{name}: no weights on the hub that npformer reads; looked for {', '.join(WEIGHTS)}")
    if missing:
        raise NpformerError(f"{name}: {missing} is not on the hub, though the index of the weights names it")
    return _model(folder)


def _probe(name: str, revision: str, file: str) -> bool:
    """Tells whether a file is there, in one request without the client's retries: a wrong name fails at once."""
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import EntryNotFoundError

    try:
        commit = get_hf_file_metadata(hf_hub_url(name, file, revision=revision)).commit_hash
    except EntryNotFoundError:
        return False
    if not _COMMIT.fullmatch(commit or ""):
        raise NpformerError(
            f"{name}: {constants.ENDPOINT} does not answer as a Hugging Face hub does (it names no commit); "
            "check HF_ENDPOINT, and whether a login page or proxy stands in between"
        )
    return True


@contextmanager
def _explained(name: str, revision: str, file: str = "") -> Iterator[None]:
    """Turns the errors of huggingface_hub and of its HTTP library into an NpformerError."""
    from huggingface_hub.errors import HfHubHTTPError

    # Its bases are the exceptions of the HTTP library that this version of huggingface_hub uses.
    failures: tuple[type[BaseException], ...] = (OSError, *HfHubHTTPError.__bases__)
    try:
        yield
    except failures as error:
        raise _clear_error(error, name, revision, file) from error


def _clear_error(error: BaseException, name: str, revision: str, file: str) -> NpformerError:
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    if isinstance(error, LocalEntryNotFoundError) and error.__cause__:
        error = error.__cause__
    hub, page = constants.ENDPOINT, f"{constants.ENDPOINT}/{name}"
    status = getattr(getattr(error, "response", None), "status_code", None)
    text = next(iter(str(error).strip().splitlines()), type(error).__name__)[:200]
    if isinstance(error, GatedRepoError):
        todo = (
            f"accept its conditions at {page}, then {_LOGIN}"
            if status == 401
            else f"this login has none; ask for it at {page}"
        )
        return NpformerError(f"{name}: access is restricted: {todo}")
    if isinstance(error, RepositoryNotFoundError):
        return UnknownModel(f"{name}: no such model on {hub}; if it is a private one, {_LOGIN}")
    if isinstance(error, RevisionNotFoundError):
        return NpformerError(
            f"{name}: no revision {revision!r}; expected a branch, a tag or a commit, as listed at {page}"
        )
    if status == 401:
        return NpformerError(
            f"{name}: {hub} refuses the login: HF_TOKEN, or what `hf auth login` stored, is wrong or expired"
        )
    if status:
        return NpformerError(f"{name}: {hub} answered {status} ({text}); try again later")
    on_the_line = isinstance(error, ConnectionError | TimeoutError)
    if isinstance(error, OSError) and (error.errno or 0) > 0 and not on_the_line:
        return NpformerError(
            f"{name}: cannot write to the cache: {error.strerror}: {error.filename or constants.HF_HUB_CACHE}"
        )
    if file:
        return NpformerError(
            f"{name}: the download of {file} broke off ({text}); nothing of it was kept as the file; try again"
        )
    return UnknownModel(f"{name}: cannot reach {hub} ({text}); check the connection, and HF_ENDPOINT where that is set")
