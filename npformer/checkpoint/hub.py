"""Downloads models from the Hugging Face hub. huggingface_hub handles caching, locks, login, progress and retries.

`download` returns a local folder for `read.py`. A model in the cache is found without importing the client of
huggingface_hub. `loading.py` decides whether a name is a hub id.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from npformer.checkpoint.modules import MODULES, encoder_folder, module_files, read_modules
from npformer.checkpoint.read import ADAPTER, CONFIG, MERGE, WEIGHTS, shards
from npformer.common.errors import NpformerError
from npformer.common.files import open_file, read_json
from npformer.families import UnknownClass, named_family, read_config, text_config

# Files to download in addition to the config and the weights. Most repositories lack some of these files.
TOKENIZER = ("tokenizer_config.json", "special_tokens_map.json")
GENERATION = "generation_config.json"  # only for models that generate
TRANSLATION = ("vocab.json", "target_vocab.json", "source.spm", "target.spm", GENERATION)
# At least one of these files is needed if there is no tokenizer.json.
OLD_TOKENIZER = ("vocab.txt", "merges.txt", "sentencepiece.bpe.model", "spiece.model", "spm.model", "tokenizer.model")
# Files of sentence-transformers if modules.json exists: next to the encoder's files, and next to modules.json.
ENCODER_SETTINGS, SETTINGS = "sentence_bert_config.json", "config_sentence_transformers.json"
CHAT_TEMPLATE = "chat_template.jinja"  # only for rerankers that are causal language models

_PART = r"[A-Za-z0-9_](?:[\w.-]*[A-Za-z0-9_])?"
_ID = re.compile(rf"(?!.*(?:--|\.\.|\.git$))(?:{_PART}/)?(?=.{{1,96}}$){_PART}", re.ASCII)
_REVISION = re.compile(r"(?!.*\.\.)[\w.+-]+(?:/[\w.+-]+)*", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_LOGIN = "log in with `hf auth login`, or set HF_TOKEN"


class UnknownModel(NpformerError):
    """The hub is unreachable or has no model with this name, so the name may mean something else."""


def is_hub_id(name: str) -> bool:
    """Whether a name has the form `owner/model`, or the form `model` of some of the oldest models on the hub."""
    return bool(_ID.fullmatch(name))


def download(name: str, revision: str | None = None, offline: bool = False, weights: bool = True) -> Path:
    """Downloads the missing files of a hub model. Returns the folder in the cache shared by all Hugging Face tools.

    A revision is a branch ("main" by default), a tag or a commit. A revision in the cache is used without asking the
    hub for updates. For a newer version, name a commit, or delete the model from the cache. Only files that npformer
    reads are downloaded, and without `weights` only config.json, modules.json and the tokenizer's settings. `offline`,
    or the environment variable HF_HUB_OFFLINE, forbids network access.

    Raises NpformerError if the model or revision does not exist or is restricted, the connection fails, or the config
    or the weights are missing.
    """
    try:
        from huggingface_hub import constants  # the client of huggingface_hub takes ten times as long to import
    except ValueError as error:
        raise NpformerError(f"{name}: HF_ENDPOINT: not a valid address ({error}); correct or unset it") from error

    revision = "main" if revision is None else revision
    if not isinstance(revision, str) or not _REVISION.fullmatch(revision):
        raise NpformerError(f"revision: expected a branch, a tag or a commit, got {revision!r:.80}")
    cached = _Cached(Path(constants.HF_HUB_CACHE), name, revision)
    missing = _collect(cached.folder, cached.has, weights)
    if not cached.unsure and not missing:
        return _model(cached.folder)
    if offline or constants.HF_HUB_OFFLINE:
        if missing:
            why = "offline=True" if offline else "HF_HUB_OFFLINE is set"
            where = f"in the cache {constants.HF_HUB_CACHE} (revision {revision})"
            kind = UnknownModel if missing == CONFIG else NpformerError
            raise kind(f"{name}: no {missing} {where}, and {why}; load the model once with a connection")
        return _model(cached.folder)
    try:
        return _fetch(name, revision if missing else cached.commit, weights)
    except NpformerError:
        if missing:
            raise
        return _model(cached.folder)  # only small files are missing, which another tool did not download


class _Cached:
    """A revision of a model in the cache.

    The guide of huggingface_hub describes the layout: refs/<branch> has the name of a commit, snapshots/<commit> has
    the files, and .no_exist/<commit> has an empty file for each requested file that is not on the hub.
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
        self.unsure: list[str] = []  # files missing from the cache that may be on the hub

    def has(self, file: str) -> bool:
        if os.path.exists(self.folder / file):
            return True
        if not is_known_absent(self.folder, file):
            self.unsure.append(file)
        return False


def is_known_absent(snapshot: Path, file: str) -> bool:
    return os.path.exists(snapshot.parents[1] / ".no_exist" / snapshot.name / file)


def _collect(folder: Path, has: Callable[[str], bool], with_weights: bool) -> str:
    """Calls `has` for each file that a model needs. Returns the name of a missing file, or "" if no file is missing.

    Only one format of the weights is needed, so formats already in `folder` are tried first.
    """
    start = ""  # prefix of the file names of the model
    if not has(CONFIG):
        start = _inside(folder) if has(MODULES) else ""
        if not start or not has(start + CONFIG):
            return start + CONFIG
    if not with_weights:
        has(start + TOKENIZER[0])
        has(MODULES)
        return ""
    forms = sorted((start + each for each in WEIGHTS), key=lambda each: not os.path.exists(folder / each))
    weights = next((each for each in forms if has(each)), None)
    if weights is None:
        return "weights"
    for shard in shards(folder / weights) if weights.endswith(".index.json") else []:
        if not has(start + shard):
            return start + shard
    extras = [*TOKENIZER]
    config = text_config(read_json(folder / start / CONFIG))
    family = named_family(config)
    if family is not None and family.tokenizer_pieces:
        extras += TRANSLATION
    elif family is not None and family.named_head(config) in ("causal-lm", "translation", None):
        extras += [GENERATION]
    if not has(start + "tokenizer.json"):
        old = next((each for each in OLD_TOKENIZER if has(start + each)), "")
        extras += ["added_tokens.json", *(["vocab.json"] if old == "merges.txt" else [])]
    if has(MODULES):
        reads_chat = any(each.kind == "LogitScore" for each in read_modules(folder))
        extras += [ENCODER_SETTINGS, *([CHAT_TEMPLATE] if reads_chat else [])]
        has(SETTINGS)
        for alternatives in module_files(folder):
            any(has(each) for each in alternatives)
    for extra in extras:
        has(start + extra)
    return ""


def _inside(folder: Path) -> str:
    """The prefix of the model's file names: the encoder's subfolder in modules.json, or "" if there is no subfolder."""
    encoder = encoder_folder(folder)
    return "" if encoder == folder else f"{encoder.name}/"


def _model(snapshot: Path) -> Path:
    """The folder in a snapshot with the config.json of the model."""
    return snapshot if (snapshot / CONFIG).exists() else snapshot / _inside(snapshot)


def _fetch(name: str, revision: str, weights: bool) -> Path:
    """Downloads the files that are missing from the cache, all from one commit."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    with _explained(name, revision):
        first = next((each for each in (CONFIG, MODULES) if _probe(name, revision, each)), None)
        if first is None and _probe(name, revision, ADAPTER):
            raise NpformerError(f"{name}: an adapter, {MERGE}")
        if first is None:
            raise NpformerError(f"{name}: no {CONFIG} on the hub; npformer reads only transformer models")
        folder = Path(hf_hub_download(name, first, revision=revision)).parent

    def has(file: str) -> bool:
        if is_known_absent(folder, file):
            return False
        with _explained(name, revision, file):
            try:
                hf_hub_download(name, file, revision=folder.name)
            except EntryNotFoundError as error:
                if isinstance(error, LocalEntryNotFoundError):  # the hub is unreachable
                    raise
                return False
        return True

    start = "" if first == CONFIG else _inside(folder)
    if not has(start + CONFIG):
        raise NpformerError(f"{name}: no {start + CONFIG} on the hub; npformer reads only transformer models")
    try:
        read_config(read_json(folder / start / CONFIG))
    except UnknownClass:
        pass  # not an error here, because the caller may name the head
    except NpformerError as error:  # raised before the weights of an unsupported model are downloaded
        raise NpformerError(f"{name}: {error}") from None
    missing = _collect(folder, has, weights)
    if missing == "weights":
        raise NpformerError(f"{name}: no weights on the hub in a supported format; looked for {', '.join(WEIGHTS)}")
    if missing:
        raise NpformerError(f"{name}: {missing} is named in the index of the weights, but is not on the hub")
    return _model(folder)


def _probe(name: str, revision: str, file: str) -> bool:
    """Whether a file exists on the hub. Sends only one request, without retries, so that a wrong name fails quickly."""
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import EntryNotFoundError

    try:
        commit = get_hf_file_metadata(hf_hub_url(name, file, revision=revision)).commit_hash
    except EntryNotFoundError:
        return False
    if not _COMMIT.fullmatch(commit or ""):
        raise NpformerError(
            f"{name}: {constants.ENDPOINT} does not respond like a Hugging Face hub (no commit in its response); "
            "check HF_ENDPOINT, and whether a login page or proxy intercepts requests"
        )
    return True


@contextmanager
def _explained(name: str, revision: str, file: str = "") -> Iterator[None]:
    """Converts errors of huggingface_hub and of its HTTP library to an NpformerError.

    The HTTP library raises many types of errors for unusable settings, such as a malformed proxy address.
    """
    try:
        yield
    except NpformerError:
        raise
    except Exception as error:
        raise _clear_error(error, name, revision, file) from error


def _settings_error(error: BaseException, text: str) -> str:
    """The reason for an error that is caused by connection settings, or "" for other errors."""
    from ssl import SSLError

    from huggingface_hub.errors import HfHubHTTPError

    file = os.environ.get("SSL_CERT_FILE")
    local = isinstance(error, OSError) and error.filename is None and _is_local(error)
    if file and local and (isinstance(error, SSLError) or not Path(file).is_file()):
        return f"SSL_CERT_FILE: {file:.200} is not a file of certificates ({text}); correct or unset it"
    # The bases of HfHubHTTPError are exceptions of the HTTP library that this version of huggingface_hub uses.
    if isinstance(error, (OSError, *HfHubHTTPError.__bases__)):
        return ""
    named = ", ".join(_proxies()) or "HF_ENDPOINT"
    if isinstance(error, ImportError):
        return (
            f"{named}: a SOCKS proxy needs the package socksio ({text}); `pip install socksio`, or give an HTTP proxy"
        )
    return f"{named}: not a valid address ({text}); expected a form such as http://host:port"


def _is_local(error: OSError) -> bool:
    """Whether an error, such as a missing file, is local and not an error of the connection."""
    return (error.errno or 0) > 0 and not isinstance(error, ConnectionError | TimeoutError)


def _proxies() -> list[str]:
    """The environment variables that set a proxy."""
    names = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")
    return sorted(name for name, value in os.environ.items() if name.upper() in names and value)


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
    if reason := _settings_error(error, text):
        return UnknownModel(f"{name}: cannot reach {hub}: {reason}")
    if isinstance(error, GatedRepoError):
        todo = (
            f"accept its conditions at {page}, then {_LOGIN}"
            if status == 401
            else f"your account has no access; request access at {page}"
        )
        return NpformerError(f"{name}: access is restricted: {todo}")
    if isinstance(error, RepositoryNotFoundError):
        return UnknownModel(f"{name}: no such model on {hub}; if it is private, {_LOGIN}")
    if isinstance(error, RevisionNotFoundError):
        return NpformerError(
            f"{name}: no revision {revision!r}; expected a branch, a tag or a commit, as listed at {page}"
        )
    if status == 401:
        return NpformerError(
            f"{name}: {hub} rejects the token in HF_TOKEN or from `hf auth login`: it is invalid or expired"
        )
    if status:
        return NpformerError(f"{name}: {hub} answered {status} ({text}); try again later")
    if isinstance(error, OSError) and _is_local(error):
        return NpformerError(
            f"{name}: cannot write to the cache: {error.strerror}: {error.filename or constants.HF_HUB_CACHE}"
        )
    if file:
        return NpformerError(
            f"{name}: the download of {file} was interrupted ({text}); no partial file was kept; try again"
        )
    named = " and ".join(_proxies() or ["HF_ENDPOINT"])
    return UnknownModel(f"{name}: cannot reach {hub} ({text}); check the connection, and {named} if it is set")
