"""Trains a small encoder on film reviews, and shows how the embeddings of [CLS] separate.

    python examples/train_encoder.py --train train.tsv --test test.tsv -o DIR [--epochs 20] [--tsne] [--gif]

The set-up of "Transformers: How Do They Transform Your Data?": width 256, 4 heads, 4 layers, feed-forward 512,
dropout 0.4 on the outputs of attention and feed-forward network, 256 tokens, Adam at 1e-4, batches of 32, 20 epochs,
bert-base-uncased's word pieces. The article applies softmax before its cross-entropy, which applies it again; this
program omits the first softmax. Each line of the files has a label and a text. After an interruption the same command
resumes. The files written to DIR are the learning curve (history.json), embeddings.html, and the embeddings after each
epoch (embeddings-N.npy).
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from animation import animate  # next to this file

from npformer.common.errors import NpformerError
from npformer.common.files import written_whole
from npformer.families.torch_nn import TORCH_MODULES
from npformer.interpret.plane import project
from npformer.loading import find_folder
from npformer.model import Model
from npformer.text.tokenizer import load_tokenizer
from npformer.training import HeadLoss, Recipe, Trainable, Trainer, initialize, read_labelled
from npformer.training.data import encode
from npformer.training.epoch_lines import Progress
from npformer.training.metrics import evaluate_labels

CONFIG = TORCH_MODULES.config(
    "sequence-classification", vocab_size=30522, d_model=256, n_heads=4, n_layers=4, d_ffn=512,
    max_length=256, activation="relu", eps=1e-5, labels=("negative", "positive"), torch_class="nn.TransformerEncoder",
)  # fmt: skip
RECIPE = Recipe(
    epochs=20, batch_size=32, learning_rate=1e-4, schedule="constant", warmup=0, weight_decay=0.0, clip=None,
    dropout={"layers.*.attention.output": 0.4, "layers.*.ffn.output": 0.4}, lazy=False, seed=0,
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True)
    parser.add_argument("--test", required=True)
    parser.add_argument("-o", "--output", required=True, type=Path)
    parser.add_argument("--epochs", type=int, default=RECIPE.epochs)
    parser.add_argument("--seed", type=int, default=RECIPE.seed)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--tsne", action="store_true", help="t-SNE for each epoch, as in the article (scikit-learn)")
    parser.add_argument("--gif", action="store_true", help="also write embeddings.gif (matplotlib)")
    args = parser.parse_args()

    weights = Trainable(initialize(CONFIG, args.seed, "torch"), CONFIG)
    model = Model(CONFIG, weights.tree, threads=args.threads)
    model.tokenizer = load_tokenizer(find_folder("distilbert-sst2"), CONFIG)  # its pieces are bert-base-uncased's
    rows, test_rows = read_labelled(args.train), read_labelled(args.test)
    examples, held_out = encode(model, args.train, rows), encode(model, args.test, test_rows)
    headless = {name: tree for name, tree in weights.tree.items() if name != "head"}
    encoder = Model(replace(CONFIG, head="base", labels=()), headless, threads=args.threads)
    embeddings = [args.output / f"embeddings-{epoch}.npy" for epoch in range(args.epochs + 1)]

    def watch(epoch: int) -> dict[str, float]:
        answers = encoder.run([example.text for example in examples])
        with written_whole(embeddings[epoch]) as partial:
            np.save(partial, np.stack([each["last_hidden_state"][0] for each in answers]))
        return {"accuracy": evaluate_labels(model, held_out).accuracy}

    recipe = replace(RECIPE, epochs=args.epochs, seed=args.seed)
    trainer = Trainer(HeadLoss(CONFIG), weights, recipe, args.output / "training", model.threads, 50, Progress())
    history = trainer.train(examples, watch, held_out=held_out)
    with written_whole(args.output / "history.json") as partial:
        partial.write_text(json.dumps(history, indent=1) + "\n", encoding="utf-8")

    if missing := [path for path in embeddings if not path.exists()]:
        raise NpformerError(f"{missing[0]}: missing for a finished epoch; delete {trainer.folder} to start again")
    found = [np.load(path) for path in embeddings]
    if args.tsne:
        frames = [project(each, "tsne") for each in found]
    else:  # projects all epochs onto the same two directions
        frames = np.split(project(np.concatenate(found)), len(found))
    titles = [f"epoch {row['epoch']}: accuracy on the test reviews {row['accuracy']:.3f}" for row in history]
    labels = [example.target for example in examples]
    for name in ("embeddings.html", *(["embeddings.gif"] if args.gif else [])):
        animate(
            args.output / name,
            frames,
            labels,
            CONFIG.labels,
            titles,
            f"[CLS] of {len(examples)} film reviews, by epoch",
        )


if __name__ == "__main__":
    try:
        main()
    except NpformerError as error:
        raise SystemExit(f"train_encoder: {error}") from None
