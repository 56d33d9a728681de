"""Train an encoder-decoder from scratch to translate. After an interruption, the
same command resumes the training."""

from __future__ import annotations

import argparse
from dataclasses import replace

from npformer.cli import recipes
from npformer.cli.arguments import THREADS, add_options
from npformer.cli.process import complain
from npformer.families.vaswani import residual_rates
from npformer.model import Seq2Seq
from npformer.tasks.declaration import whole
from npformer.training import Recipe, Trainable, Trainer, TranslationLoss, initialize
from npformer.training.data import encode_pairs, read_pairs
from npformer.training.epoch_lines import Progress
from npformer.training.metrics import evaluate_translation
from npformer.training.start import write_model
from npformer.training.translator import companions, learn_tokenizer, translator

EPILOG = """files: one sentence per line; line N of the second is the translation
of line N of the first.

examples:
  npformer train-translation --train train.en train.de \\
      --dev dev.en dev.de -o en-de
  npformer evaluate --model en-de --source test.en --reference test.de --beams 5
  npformer translate --model en-de "A dog runs through the snow." """

RECIPE = Recipe(
    epochs=20, batch_size=128, learning_rate=1.4e-3, warmup=0.1, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0,
    lazy=False, average=5, window=20,
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pair = {"nargs": 2, "metavar": ("SOURCE", "TARGET"), "required": True}
    parser.add_argument("--train", help="sentences and their translations to train on", **pair)  # type: ignore[arg-type]
    parser.add_argument("--dev", help="pairs used to select the best epoch", **pair)  # type: ignore[arg-type]
    recipes.add_output_argument(parser)
    sizes = {
        "--vocabulary": (6000, "tokens shared by both languages"),
        "--width": (256, "d_model"),
        "--heads": (4, "attention heads"),
        "--ffn": (512, "width of the feed-forward networks"),
        "--layers": (4, "layers of the encoder, and of the decoder"),
        "--max-length": (256, "maximum tokens in a sentence"),
    }
    for name, (default, what) in sizes.items():
        parser.add_argument(name, type=whole, metavar="N", default=default, help=f"{what} (%(default)s)")
    recipes.add_arguments(parser, RECIPE, label_smoothing=0.1)
    parser.set_defaults(dropout=0.3)
    add_options(parser, [THREADS])


def run(args: argparse.Namespace) -> None:
    output, recipe = recipes.output(args), recipes.read(args)
    train, dev = read_pairs(*args.train), read_pairs(*args.dev)
    tokenizer = learn_tokenizer((text for pair in train for text in pair), args.vocabulary)
    config = translator(tokenizer.get_vocab_size(), args.width, args.heads, args.layers, args.ffn, args.max_length)
    examples = encode_pairs(tokenizer, args.train, train, args.max_length)
    held_out = encode_pairs(tokenizer, args.dev, dev, args.max_length)
    weights = Trainable(initialize(config, args.seed, "xavier"), config)
    model = Seq2Seq(config, weights.tree, threads=args.threads)
    count = sum(array.size for array in weights.flat.values())
    complain(f"{count / 1e6:.1f} million weights, {config.vocab_size} tokens, {len(examples)} pairs")

    recipe = replace(recipe, dropout=residual_rates(args.dropout))
    objective = TranslationLoss(config, args.label_smoothing)
    training = Trainer(
        objective, weights, recipe, output / recipes.TRAINING, model.threads, args.save_every, Progress()
    )

    def numbers(epoch: int) -> dict[str, float]:
        return evaluate_translation(model, held_out)

    training.train(examples, numbers, held_out=held_out)
    found = training.choose(numbers)
    write_model(output, companions(tokenizer, args.max_length), config, weights.tree)
    shares = f"next-token accuracy {found['accuracy']:.4f}, loss {found['dev_loss']:.4f}"
    print(f"{output}: {recipes.chosen(found)}: {shares}\n{recipes.finish(args, training)}")
