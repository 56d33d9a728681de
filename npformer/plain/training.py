"""Training: cross-entropy, AdamW, and a loop that trains a small DistilBERT to classify texts.

Kingma and Ba, 2015, Adam; Loshchilov and Hutter, 2019, AdamW. A batch has B texts of L tokens.
"""

import numpy as np

from npformer.plain.distilbert import classify, distilbert
from npformer.plain.formulas import gelu, softmax
from npformer.plain.gradients import distilbert_backward


def cross_entropy(logits, targets):
    """The mean of -log softmax(logits)[target]. logits (..., C), targets (...): class indices.

    log softmax(x) = x - max(x) - log(sum(exp(x - max(x)))) is finite even where softmax(x) rounds to 0.
    >>> cross_entropy(np.array([[0.0, np.log(3.0)]]), np.array([1])).round(4).item()
    0.2877
    """
    shifted = logits - logits.max(axis=-1, keepdims=True)
    log_probabilities = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return -np.take_along_axis(log_probabilities, targets[..., None], axis=-1).mean()


def cross_entropy_backward(logits, targets):
    """dlogits = (softmax(logits) - 1 at the target) / N, for N targets.

    >>> cross_entropy_backward(np.array([[0.0, np.log(3.0)]]), np.array([1])).tolist()
    [[0.25, -0.25]]
    """
    at_target = np.arange(logits.shape[-1]) == targets[..., None]
    return (softmax(logits) - at_target) / targets.size


def adamw(weight, m, v, grad, step, learning_rate, weight_decay):
    """w - learning_rate (m_hat / (sqrt(v_hat) + eps) + weight_decay w), and the new m and v. step counts from 1.

    m and v are moving averages of grad and grad^2 with betas 0.9 and 0.999, initially zeros. eps is 1e-8. As in torch,
    weight_decay is multiplied by the learning rate, unlike in Loshchilov and Hutter, 2019, algorithm 2.
    """
    m = 0.9 * m + 0.1 * grad
    v = 0.999 * v + 0.001 * grad**2
    m_hat, v_hat = m / (1 - 0.9**step), v / (1 - 0.999**step)
    return weight - learning_rate * (m_hat / (np.sqrt(v_hat) + 1e-8) + weight_decay * weight), m, v


def tree_map(function, tree, *others):
    """Nested dicts and lists like `tree`, with function(leaf, *leaves of the other trees) for each leaf.

    >>> tree_map(max, {"a": 1, "b": [2, 3]}, {"a": 10, "b": [0, 30]})
    {'a': 10, 'b': [2, 30]}
    """
    if isinstance(tree, dict):
        return {name: tree_map(function, each, *(other[name] for other in others)) for name, each in tree.items()}
    if isinstance(tree, list):
        return [tree_map(function, *each) for each in zip(tree, *others)]
    return function(tree, *others)


def adamw_of_all(weights, m, v, grads, step, learning_rate, weight_decay):
    """`adamw` for every array of nested weights. Returns weights, m and v."""
    updated = tree_map(lambda *arrays: adamw(*arrays, step, learning_rate, weight_decay), weights, m, v, grads)
    weights = tree_map(lambda triple: triple[0], updated)
    m = tree_map(lambda triple: triple[1], updated)
    v = tree_map(lambda triple: triple[2], updated)
    return weights, m, v


def random_linear(random, n_in, n_out):
    """A linear layer with standard deviation 0.02, as in BERT, and biases of 0. random: a NumPy Generator."""
    return {"weight": random.normal(0, 0.02, (n_in, n_out)), "bias": np.zeros(n_out)}


def new_norm(width):
    """A norm with weights of 1 and biases of 0."""
    return {"weight": np.ones(width), "bias": np.zeros(width)}


def random_layer(random, width, d_ffn):
    """The weights of an encoder layer."""
    names = ("query", "key", "value", "output")
    return {
        "attention": {name: random_linear(random, width, width) for name in names},
        "attention_norm": new_norm(width),
        "ffn": {"hidden": random_linear(random, width, d_ffn), "output": random_linear(random, d_ffn, width)},
        "ffn_norm": new_norm(width),
    }


def random_classifier(random, n_tokens, length, width, d_ffn, n_layers, n_labels):
    """The weights of a DistilBERT that classifies texts of at most this length."""
    tables = {
        name: {"weight": random.normal(0, 0.02, (rows, width))}
        for name, rows in zip(("token", "position"), (n_tokens, length))
    }
    return {
        "embeddings": tables | {"norm": new_norm(width)},
        "layers": [random_layer(random, width, d_ffn) for _ in range(n_layers)],
        "pooler": random_linear(random, width, width),
        "head": {"output": random_linear(random, width, n_labels)},
    }


def train(weights, ids, labels, n_heads, steps, learning_rate, weight_decay):
    """Trains on a batch ids (B, L) with labels (B,). Returns the weights and the loss of each step."""
    m = tree_map(np.zeros_like, weights)
    v = tree_map(np.zeros_like, weights)
    sizes = (np.arange(ids.shape[-1]), True, n_heads, gelu, 1e-12)  # positions, mask, n_heads, activation, eps
    losses = []
    for step in range(1, steps + 1):
        x = distilbert(ids, *sizes, weights["embeddings"], weights["layers"])
        logits = classify(x, weights["pooler"], weights["head"])["logits"]
        losses.append(cross_entropy(logits, labels))
        d_logits = cross_entropy_backward(logits, labels)
        grads = distilbert_backward(d_logits, ids, *sizes, **weights)
        weights, m, v = adamw_of_all(weights, m, v, grads, step, learning_rate, weight_decay)
    return weights, losses
