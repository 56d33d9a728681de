"""Models from the Hugging Face hub, through huggingface_hub: its cache, endpoint, login, progress bars and retries.

`download` is the whole interface: a hub id in, a local folder out, which `read.py` reads like any other. For a model
that is in the cache the client is not even imported. Whether a user's name means one is decided in `load.py`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from npformer.checkpoint.read import CONFIG, WEIGHTS, read_json
from npformer.errors import NpformerError
from npformer.families import FAMILIES, read_config

# Wanted beside config and weights; most repositories lack some of them.
TOKENIZER = ("tokenizer_config.json", "special_tokens_map.json")
TRANSLATION = ("vocab.json", "target_vocab.json", "source.spm", "target.spm", "generation_config.json")
OLD_TOKENIZER = ("vocab.txt", "added_tokens.json")  # where there is no tokenizer.json
SENTENCE_TRANSFORMERS = (  # where there is a modules.json
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "1_Pooling/config.json",
)

_PART = r"[A-Za-z0-9_](?:[\w.-]*[A-Za-z0-9_])?"
_ID = re.compile(rf"(?!.*(?:--|\.\.|\.git$))(?:{_PART}/)?(?=.{{1,96}}$){_PART}", re.ASCII)
_REVISION = re.compile(r"(?!.*\.\.)[\w.+-]+(?:/[\w.+-]+)*", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_LOGIN = "log in with `hf auth login`, or set HF_TOKEN"


class UnknownModel(NpformerError):
    """The hub has no model of this name, or could not be asked: the name may have been meant otherwise."""


def is_hub_id(name: str) -> bool:
    """Whether a name is of the form `owner/model`, or `model` for one of the hub's oldest."""
    return bool(_ID.fullmatch(name))


def download(name: str, revision: str | None = None, offline: bool = False) -> Path:
    """The folder of a hub model in the cache that all Hugging Face tools share, once what it lacks has been fetched.

    A revision is a branch ("main" by default), a tag or a commit. What is in the cache is used as it is: nobody asks
    whether a branch has moved on since; name a commit, or delete the model from the cache, to get another state of it.
    Only the files npformer reads are fetched. `offline`, or HF_HUB_OFFLINE in the environment, forbids any network.

    Errors: no such model or revision; no permission; no connection, or one that broke; no config or weights there.
    """
    from huggingface_hub import constants  # settings alone: a tenth of the client

    revision = "main" if revision is None else revision
    if not isinstance(revision, str) or not _REVISION.fullmatch(revision):
        raise NpformerError(f"revision: expected a branch, a tag or a commit, got {revision!r:.80}")
    cached = _Cached(Path(constants.HF_HUB_CACHE), name, revision)
    missing = _collect(cached.folder, cached.has)
    if not cached.unsure and not missing:
        return cached.folder
    if offline or constants.HF_HUB_OFFLINE:
        if missing:
            why = "offline was asked for" if offline else "HF_HUB_OFFLINE is set"
            where = f"in the cache {constants.HF_HUB_CACHE} (revision {revision})"
            kind = UnknownModel if missing == CONFIG else NpformerError
            raise kind(f"{name}: no {missing} {where}, and {why}; load it once with a connection")
        return cached.folder
    try:
        return _fetch(name, revision if missing else cached.commit)
    except NpformerError:
        if missing:
            raise
        return cached.folder  # what it may lack is a small file that other tools did not ask for


class _Cached:
    """What the cache holds of one revision of a model.

    Its layout is described in huggingface_hub's guide: refs/<branch> names a commit, snapshots/<commit> has the files,
    and .no_exist/<commit> an empty file for each that was asked for and is not on the hub.
    """

    def __init__(self, cache: Path, name: str, revision: str) -> None:
        repo = cache / f"models--{name.replace('/', '--')}"
        try:
            stored = (repo / "refs" / revision).read_text(errors="replace").strip()
        except OSError:
            stored = ""
        self.commit = stored if _COMMIT.fullmatch(stored) else revision
        self.folder = repo / "snapshots" / self.commit
        self.unsure: list[str] = []  # what was asked for, and the hub may have

    def has(self, file: str) -> bool:
        if os.path.exists(self.folder / file):
            return True
        if not is_known_absent(self.folder, file):
            self.unsure.append(file)
        return False


def is_known_absent(snapshot: Path, file: str) -> bool:
    return os.path.exists(snapshot.parents[1] / ".no_exist" / snapshot.name / file)


def _collect(folder: Path, has: Callable[[str], bool]) -> str:
    """Ask `has` for the files a model needs, each only where those before it call for it. Returns what is missing.

    Of several forms of the weights one is enough, so what `folder` has already goes first.
    """
    if not has(CONFIG):
        return CONFIG
    forms = sorted(WEIGHTS, key=lambda each: not os.path.exists(folder / each))
    weights = next((each for each in forms if has(each)), None)
    if weights is None:
        return "weights"
    for shard in _shards(folder / weights) if weights.endswith(".index.json") else []:
        if not has(shard):
            return shard
    extras = [*TOKENIZER]
    family = FAMILIES.get(read_json(folder / CONFIG).get("model_type", ""))
    if family is not None and family.tokenizer_pieces:
        extras += TRANSLATION
    extras += [] if has("tokenizer.json") else OLD_TOKENIZER
    extras += SENTENCE_TRANSFORMERS if has("modules.json") else []
    for extra in extras:
        has(extra)
    return ""


def _shards(index: Path) -> list[str]:
    """The files an index names, as far as they are plain names; `read.py` says what is wrong with others."""
    weight_map = read_json(index).get("weight_map")
    names = weight_map.values() if isinstance(weight_map, dict) else ()
    return [name for name in dict.fromkeys(map(str, names)) if re.fullmatch(r"\w[\w.-]*", name)]


def _fetch(name: str, revision: str) -> Path:
    """Download what the cache lacks, all of it from one commit."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    with _explained(name, revision):
        _probe(name, revision)
        folder = Path(hf_hub_download(name, CONFIG, revision=revision)).parent
    try:
        read_config(read_json(folder / CONFIG))
    except NpformerError as error:  # said before the weights of a model that cannot be loaded are fetched
        raise NpformerError(f"{name}: {error}") from None

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

    missing = _collect(folder, has)
    if missing == "weights":
        raise NpformerError(f"{name}: no weights on the hub that npformer reads; looked for {', '.join(WEIGHTS)}")
    if missing:
        raise NpformerError(f"{name}: {missing} is not on the hub, though the index of the weights names it")
    return folder


def _probe(name: str, revision: str) -> None:
    """Ask for config.json once, without the client's patient retries: a wrong name or address is known at once."""
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import EntryNotFoundError

    try:
        commit = get_hf_file_metadata(hf_hub_url(name, CONFIG, revision=revision)).commit_hash
    except EntryNotFoundError:
        raise NpformerError(f"{name}: no {CONFIG} on the hub, so it is no transformer npformer knows") from None
    if not _COMMIT.fullmatch(commit or ""):
        raise NpformerError(
            f"{name}: {constants.ENDPOINT} does not answer as a Hugging Face hub does (it names no commit); "
            "check HF_ENDPOINT, and whether a login page or proxy stands in between"
        )


@contextmanager
def _explained(name: str, revision: str, file: str = "") -> Iterator[None]:
    """Turn what huggingface_hub and the HTTP library below it raise into an NpformerError."""
    from huggingface_hub.errors import HfHubHTTPError

    # its bases are the exceptions of the HTTP library that this version of huggingface_hub is built on
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
