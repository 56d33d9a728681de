"""Writes the table of well-known checkpoints, `docs/howto/checkpoints.md`: which of them run, for which task, and which
features the others need.

    python examples/checkpoints.py            # rewrites the page
    python examples/checkpoints.py --check    # fails if it is out of date

`checkpoints.json` has the relevant fields of each checkpoint's config.json; each line of the table follows from the
results of `npformer info` and of loading with these fields. `modules` is a task that the folder's modules add.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from npformer import NpformerError
from npformer.families import family_of, read_config
from npformer.tasks.catalogue import TASKS
from npformer.tasks.pipelines import tasks_of

HERE = Path(__file__).parent
DATA, PAGE = HERE / "checkpoints.json", HERE.parent / "docs" / "howto" / "checkpoints.md"
#: Tasks of every encoder, listed only for checkpoints without other tasks.
VECTORS = tuple(name for name, task in TASKS.items() if task.head == "base")

HEAD = """# Which checkpoints run

`npformer info NAME` checks any checkpoint without downloading its weights. DistilBERT, BERT, ELECTRA, ALBERT, RoBERTa,
XLM-RoBERTa, CamemBERT, MPNet, DeBERTa-v2 and -v3, ModernBERT, Nomic BERT, GPT-2, GPT-NeoX (Pythia), OPT, BLOOM,
Llama, Mistral, Qwen2, Qwen3, Gemma (1 to 3; text only), Phi-3, SmolLM3, OLMo 2, BART, T5 (1.0, 1.1, FLAN-T5) and mT5
run with their heads, as do Marian and torch's own `nn.Transformer`, from safetensors or `.bin`, in float16 to float64
or bfloat16.

Below are well-known checkpoints on the hub and whether they run, according to their config.json.
`python examples/checkpoints.py` writes this page from the fields in `examples/checkpoints.json`, and a test compares
the page with npformer's results; the checkpoints are not downloaded. Every encoder that runs also makes vectors
(`feature-extraction`, `sentence-embedding`), whatever its own task is. A decoder with the modules of
sentence-transformers in its folder makes vectors (Qwen3-Embedding, EmbeddingGemma) or ranks texts (Qwen3-Reranker). A
checkpoint also needs a tokenizer: `tokenizer.json`, `vocab.txt`, `vocab.json` with `merges.txt`,
`sentencepiece.bpe.model`, `spiece.model`, `spm.model` or `tokenizer.model`. Code in a checkpoint (`auto_map`) is never
run: if its model_type is in the list above, as in Phi-3, npformer's own model is used, with a warning.

{counts}

| checkpoint | used for | model_type | runs | tasks, or the missing feature |
| --- | --- | --- | --- | --- |
"""


def verdict(config: dict[str, Any]) -> tuple[str, str]:
    """Returns whether a checkpoint runs, and its tasks or the missing feature."""
    try:
        read = read_config(config)
    except NpformerError as error:
        why = re.sub(r"expected one of .*?, got ('[^']*')(; did you mean [^;]*)?", r"\1 is not supported", str(error))
        why = re.sub(r"(, which is not supported)?; expected one of [^;]*", "", why)
        return "no", why
    tasks = tasks_of(read, config)
    own = [each for each in tasks if each not in VECTORS] or tasks
    extra = "translate" if family_of(read).tokenizer_pieces else ""
    return f"with the extra `{extra}`" if extra else "yes", ", ".join(own)


def page() -> str:
    lines, counts = [], {"yes": 0, "with an extra": 0, "no": 0}
    for each in json.loads(DATA.read_text(encoding="utf-8")):
        runs, what = verdict(each["config"])
        what = f"{each['modules']}, {what}" if "modules" in each and runs == "yes" else what
        counts[runs if runs in counts else "with an extra"] += 1
        link = f"[{each['name']}](https://huggingface.co/{each['name']})"
        lines.append(f"| {link} | {each['use']} | {each['config']['model_type']} | {runs} | {what} |\n")
    runs, extra, no = counts.values()
    more = f"{extra} more runs with an optional dependency"
    return HEAD.format(counts=f"Of {len(lines)} checkpoints, {runs} run, {more}, and {no} do not run.") + "".join(lines)


def main(arguments: list[str]) -> int:
    if "--check" not in arguments:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    same = page() == PAGE.read_text(encoding="utf-8")
    print(f"{PAGE.name}: {'up to date' if same else 'out of date; run python examples/checkpoints.py'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
