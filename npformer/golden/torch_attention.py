"""Records the stages inside the attention of a Hugging Face model in torch, because no module returns them.

Most families call an eager attention function, so its arguments and results are recorded. MPNet and DeBERTa compute
attention in their modules, so the products and the softmax that a module calls are recorded. `torch_model.py` records
all other stages.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from npformer.checkpoint.tree import module_path
from npformer.config import Config
from npformer.families import family_of
from npformer.golden.format import Golden
from npformer.golden.fused import fused_layers
from npformer.interpret import stages as table

EAGER = "eager_attention_forward"  # the function's name in each family's transformers module
PRODUCTS = ("matmul", "bmm", "__matmul__")
#: Methods of DeBERTa's attention -> the stages that they return, in the order of the calls.
METHODS = {
    "transpose_for_scores": ("query_heads", "key_heads", "value_heads"),
    "disentangled_attention_bias": ("distance_scores",),
}

Hear = Callable[[str, str, Any], None]  # (attention block, last part of the stage, tensor)


@contextmanager
def attention(model: Any, golden: Golden, modules: dict[str, Any], heard: dict[str, np.ndarray]) -> Iterator[None]:
    """Records each layer's heads, scores, weights and context while the model runs."""

    def hear(ours: str, name: str, tensor: Any) -> None:
        stage = f"{ours}.{name}"
        if stage in golden.stages and stage not in heard and name not in family_of(golden.config).unheard:
            heard[stage] = as_numpy(tensor)

    home = sys.modules[type(model).__module__]
    eager = getattr(home, EAGER, None)
    queries = _queries(golden, modules)
    with ExitStack() as stack:
        if eager is None:
            stack.enter_context(_written_out(golden, modules, queries, hear))
        else:
            setattr(home, EAGER, _recording(eager, queries, hear, golden.config))
            stack.callback(setattr, home, EAGER, eager)
        yield


def _queries(golden: Golden, modules: dict[str, Any]) -> dict[Any, list[str]]:
    """Maps each query module to its attention blocks; layers with the same weights share a module."""
    config, fused = golden.config, fused_layers(golden.config)
    queries: dict[Any, list[str]] = {}
    for ours in (name.removesuffix(".query") for name in table.names(config) if name.endswith("attention.query")):
        paths = [path for path, attention in fused.items() if attention == ours]
        paths.append(module_path(config, f"{ours}.query") or "")
        queries.setdefault(next((modules[path] for path in paths if path and path in modules), None), []).append(ours)
    return queries


def _recording(
    eager: Callable[..., Any], queries: dict[Any, list[str]], hear: Hear, config: Config
) -> Callable[..., Any]:
    """Wraps the eager attention function to record its arguments and results."""

    def recording(module: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        context, weights = eager(module, query, key, value, *args, **kwargs)
        ours = next((queries[each].pop(0) for each in module.children() if queries.get(each)), "")
        own = query / config.d_head**-0.5 if family_of(config).scales_queries else query
        arrays = {"query_heads": own, "key_heads": key, "value_heads": value, "weights": weights}
        for name, array in {**arrays, "context": context.transpose(1, 2)}.items():  # transformers returns (B, L, H, K)
            hear(ours, name, array)
        return context, weights

    return recording


@contextmanager
def _written_out(golden: Golden, modules: dict[str, Any], queries: dict[Any, list[str]], hear: Hear) -> Iterator[None]:
    """Records the softmax and the surrounding products in each module with a query projection."""
    from torch.overrides import TorchFunctionMode

    heads, running = golden.config.n_heads, list[_Attention]()

    class Functions(TorchFunctionMode):  # type: ignore[misc, unused-ignore]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            if running:
                running[-1].called(getattr(function, "__name__", ""), args, result)
            return result

    with ExitStack() as stack:
        for module in set(modules.values()):
            attentions = next((queries[each] for each in module.children() if each in queries), [])
            for ours in attentions[:1]:
                here = _Attention(ours, heads, hear)
                before = module.register_forward_pre_hook(lambda module, args, here=here: running.append(here))
                after = module.register_forward_hook(lambda module, args, output: running.pop() and None)
                stack.callback(before.remove)
                stack.callback(after.remove)
                for method, stages in METHODS.items():
                    if hasattr(module, method):
                        setattr(module, method, here.method(getattr(module, method), iter(stages)))
                        stack.callback(delattr, module, method)
        stack.enter_context(Functions())
        yield


class _Attention:
    """The state of one attention block while it runs."""

    def __init__(self, ours: str, heads: int, hear: Hear) -> None:
        self._ours, self._heads, self._tell = ours, heads, hear
        self._products, self._weighed = 0, False

    def hear(self, name: str, tensor: Any) -> None:
        self._tell(self._ours, name, tensor.reshape(-1, self._heads, *tensor.shape[-2:]))  # (B H, L, K) in DeBERTa

    def called(self, name: str, args: Any, result: Any) -> None:
        """Records a function's result: Q K^T is the first product, and W V the product after the softmax."""
        if name == "softmax":
            self.hear("scores", args[0])
            self.hear("weights", result)
            self._weighed = True
        elif name in PRODUCTS:
            self._products += 1
            if self._weighed:
                self._weighed = False
                self.hear("value_heads", args[1])
                self.hear("context", result)
            elif self._products == 1 and result.dim() == 4:  # DeBERTa's key is scaled here; `METHODS` records it
                self.hear("query_heads", args[0])
                self.hear("key_heads", args[1].mT)

    def method(self, own: Callable[..., Any], stages: Iterator[str]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            result = own(*args, **kwargs)
            if (stage := next(stages, "")) and hasattr(result, "reshape"):  # DeBERTa returns 0 if it uses no distances
                self.hear(stage, result)
            return result

        return wrapped


def as_numpy(tensor: Any) -> np.ndarray:
    """Returns a copy of a tensor in float32."""
    array: np.ndarray = tensor.detach().cpu().float().numpy().copy()
    return array
