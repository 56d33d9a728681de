"""`NarrowWeight`: a weight that is stored in bfloat16, float16 or int8 and behaves like a float32 array.

Products widen one tile at a time to float32 (`narrow_products.py`), so that each core has only one float32 tile, which
stays in its cache. Widening bfloat16 and float16 is exact.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from npformer.common.errors import NpformerError

#: A dtype for the bits of bfloat16, which NumPy does not have.
BFLOAT16 = np.dtype([("bfloat16", "<u2")])
#: Maps each name to the dtype of the stored values.
NARROW: dict[str, np.dtype[Any]] = {"bfloat16": BFLOAT16, "float16": np.dtype("f2"), "int8": np.dtype("i1")}

_TIMES = np.float32(2 ** (127 - 15))  # compensates for the different exponent biases of float16 and float32
_LARGEST = 127  # int8 values range from -127 to 127
_BLOCK = 64  # number of rows that are converted at a time


class NarrowWeight(np.lib.mixins.NDArrayOperatorsMixin):
    """A float32 matrix that is stored in fewer bytes. NumPy functions and operators convert it to a float32 array.

    Parameters
    ----------
    values : (in, out) array, or a table (V, D), in a dtype of `NARROW`
    scale : (1, out) or (V, 1) float32 array, the factors of int8 values
    """

    dtype = np.dtype(np.float32)
    ndim = 2

    def __init__(self, values: np.ndarray, scale: np.ndarray | None = None) -> None:
        self.values = values
        self.scale = scale

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def size(self) -> int:
        return self.values.size

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + (0 if self.scale is None else self.scale.nbytes)

    @property
    def stored(self) -> str:
        """The name of the stored dtype."""
        return next(name for name, dtype in NARROW.items() if dtype == self.values.dtype)

    @property
    def T(self) -> NarrowWeight:
        return NarrowWeight(self.values.T, None if self.scale is None else self.scale.T)

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        return f"<NarrowWeight {self.stored} {self.shape}>"

    @np.errstate(over="ignore", invalid="ignore")  # a scale may be infinite with allow_nonfinite
    def __getitem__(self, index: Any) -> np.ndarray:
        """A float32 copy of the selected numbers."""
        values = self.values[index]
        found = np.empty(values.shape, np.float32)
        widen(values, found)
        if self.scale is not None:
            found *= np.broadcast_to(self.scale, self.shape)[index]
        return found if found.ndim else found[()]

    @np.errstate(over="ignore", invalid="ignore")
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("a NarrowWeight is widened to a new array; copy=False is not possible")
        if self.values.flags.f_contiguous and not self.values.flags.c_contiguous:
            # The same layout as the float32 weight, because the bits of a product depend on the layout.
            return self.T.__array__(dtype).T
        found = np.empty(self.shape, np.float32)
        for block in _blocks(len(found)):
            widen(self.values[block], found[block])
        if self.scale is not None:
            found *= self.scale
        found.flags.writeable = False
        return found if dtype is None else found.astype(dtype, copy=False)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **how: Any) -> Any:
        if any(isinstance(each, NarrowWeight) for each in how.get("out", ())):
            self._refuse_writing()
        plain = [np.asarray(each) if isinstance(each, NarrowWeight) else each for each in inputs]
        return getattr(ufunc, method)(*plain, **how)

    def __getattr__(self, name: str) -> Any:
        """Attributes and methods of the float32 array, such as `mean` and `astype`."""
        if name.startswith("_") or name in ("values", "scale"):  # copy and pickle ask for these before they are set
            raise AttributeError(name)
        return getattr(np.asarray(self), name)

    def __setitem__(self, index: Any, value: Any) -> None:
        self._refuse_writing()

    def _refuse_writing(self) -> NoReturn:
        raise NpformerError(
            f"a weight stored in {self.stored} cannot be changed; load the model with writable=True and without keep"
        )


# --- wider -----------------------------------------------------------------------------------------------------------


def widen(values: np.ndarray, out: np.ndarray, around: np.ndarray | None = None) -> None:
    """Writes `values` as float32 to `out`, an array of the same shape. The scale of int8 values is not applied.

    around: a contiguous array that contains `out` and is zero elsewhere. In-place steps process all of `around`,
    because one long loop is faster. float16 numbers must be finite.
    """
    around = out if around is None else around
    if values.dtype == BFLOAT16:  # the bits of a bfloat16 are the upper half of a float32
        out.view(np.uint32)[...] = values["bfloat16"]
        bits = around.view(np.uint32)
        bits <<= 16
    elif values.dtype == np.float16 and _has_subnormals():
        _widen_float16(values, out, around)
    else:
        out[...] = values


def _widen_float16(values: np.ndarray, out: np.ndarray, around: np.ndarray) -> None:
    """Widens finite float16 numbers exactly, in a quarter to a half of the time that NumPy takes.

    float16 has 5 exponent bits, and float32 has 8. If the bits of a float16 are shifted to where float32 has its
    fraction, the result is the value divided by 2^(127 - 15).
    """
    out.view(np.int32)[...] = values.view(np.int16)  # sign extension fills the upper half
    bits = around.view(np.int32)
    bits <<= 13
    bits &= ~(0b111 << 28)
    around *= _TIMES


def has_nonfinite(array: np.ndarray) -> bool:
    """Whether a float16 array contains infinity or NaN. Takes a fifth of the time of np.isfinite.

    Only infinity and NaN have all exponent bits set.
    """
    return bool((array.view(np.uint16) << 1).max(initial=0) >= 0b11111 << 11)


def _has_subnormals() -> bool:
    """Whether this thread computes with subnormal numbers. Some libraries set a mode that replaces them with 0."""
    return bool((np.ones(1, np.int32).view(np.float32) * _TIMES)[0] > 0)


def widened(array: np.ndarray) -> np.ndarray:
    """Converts a bfloat16 array to float32. Returns any other array unchanged."""
    if array.dtype != BFLOAT16:
        return array
    return (array["bfloat16"].astype(np.uint32) << 16).view(np.float32)


# --- narrower --------------------------------------------------------------------------------------------------------


def narrowed(array: np.ndarray, stored: str, outputs: int = -1, copy: bool = False) -> NarrowWeight:
    """Rounds a floating-point matrix to a dtype of `NARROW`.

    A matrix that already has this dtype is copied only if it is not contiguous or not aligned, or if copy=True. int8
    has a scale for each index along the axis `outputs`, and the largest magnitude becomes 127. Raises NpformerError for
    a number that is too large for float16.
    """
    dtype = NARROW[stored]
    if array.dtype == dtype and array.flags.c_contiguous and array.flags.aligned and not copy:
        return NarrowWeight(array)
    values = np.empty(array.shape, dtype)
    scale = _scales(array, outputs) if stored == "int8" else None
    factors = np.broadcast_to(np.float32(1) if scale is None else scale, array.shape)
    turned = array.strides[0] < array.strides[1]  # then read the transpose, whose rows are contiguous in memory
    source, target, factors = (each.T if turned else each for each in (array, values, factors))
    for block in _blocks(len(source)):
        _round(source[block], target[block], factors[block])
    for each in (values, scale):
        if each is not None:
            each.flags.writeable = False
    return NarrowWeight(values, scale)


def _round(source: np.ndarray, target: np.ndarray, factors: np.ndarray) -> None:
    """Writes source / factors to `target`, rounded to its dtype with ties to even."""
    if target.dtype == source.dtype:
        target[...] = source
    elif target.dtype == BFLOAT16:
        bits = _floats(source).view(np.uint32)
        target["bfloat16"] = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    elif target.dtype == np.int8:
        target[...] = np.rint(_floats(source) / factors)
    else:
        try:
            with np.errstate(over="raise"):
                target[...] = widened(source)
        except FloatingPointError:
            raise NpformerError(f"contains a number that is too large for {target.dtype}") from None


def _scales(array: np.ndarray, outputs: int) -> np.ndarray:
    """The scale of each output: the largest magnitude divided by 127, or 1 if all values are 0, (1, out) or (V, 1)."""
    inputs = (outputs + 1) % 2
    largest = [np.abs(_floats(array[block])).max(axis=inputs, keepdims=True) for block in _blocks(len(array))]
    scales = np.concatenate(largest) if inputs else np.maximum.reduce(largest)
    scales /= np.float32(_LARGEST)
    scales[scales == 0] = 1
    return scales


def _floats(array: np.ndarray) -> np.ndarray:
    """The numbers as contiguous float32."""
    return np.ascontiguousarray(widened(array), np.float32)


def _blocks(count: int) -> list[slice]:
    """Slices of rows, so small that intermediate arrays fit in the cache."""
    return [slice(i, i + _BLOCK) for i in range(0, count, _BLOCK)]
