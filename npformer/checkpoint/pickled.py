"""Reads the pickle in a torch checkpoint without executing it.

A pickle is a program for a stack machine. Python's machine can call any function, but this machine calls no function.
It supports the instructions that torch.save writes for a dictionary of tensors. For a function that rebuilds a tensor,
it creates a record (`Tensor`) instead of calling the function. Everything else is an error. `torch_file.py` finds the
bytes that the records describe.
"""

from __future__ import annotations

import pickletools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from npformer.common.errors import NpformerError
from npformer.common.limits import LIMITS, Limits

_MOST_AXES = 32  # maximum number of axes of a tensor


@dataclass(frozen=True)
class Storage:
    """A range of elements in the file. `view`: (first element, number of elements) in use, or None for all elements."""

    dtype: str  # torch's name, such as "FloatStorage"
    key: str
    size: int  # elements
    view: tuple[int, int] | None


@dataclass(frozen=True)
class Tensor:
    """A tensor in a storage. offset, shape and strides are in elements."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Name:
    """An allowed global. Only its name is stored, and nothing is imported."""

    name: str


STORAGES = {
    f"torch.{kind}Storage"
    for kind in ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")
}
REBUILD = {
    "torch._utils._rebuild_tensor": 4,  # storage, offset, shape, strides
    "torch._utils._rebuild_tensor_v2": 6,  # storage, offset, shape, strides, requires_grad, hooks
}
PARAMETER = "torch._utils._rebuild_parameter"
ORDERED_DICT = "collections.OrderedDict"
ADMITTED = {*STORAGES, *REBUILD, PARAMETER, ORDERED_DICT}

# Instructions that push their argument, except those of protocol 0, whose argument is a line of text.
_LITERALS = {
    "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT",
    "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINSTRING", "SHORT_BINSTRING",
}  # fmt: skip
_MARK = object()
OPCODES = {each.code: each for each in pickletools.opcodes}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}


def read_pickle(file: BinaryIO, limits: Limits = LIMITS) -> Any:
    """Reads the object of the pickle that starts at the current position. Reads no bytes after the pickle.

    The object consists of None, numbers, strings, tuples, lists, dicts (OrderedDict becomes dict) and records such as
    `Tensor`. The time and memory of an instruction do not depend on the size of existing values, so the limit on the
    number of instructions bounds both. Tuples, lists and dicts are never compared, hashed or printed, which could take
    exponential time and memory for nested references to the same object.
    """
    machine = _Machine()
    try:
        for count, (instruction, argument) in enumerate(_instructions(file)):
            if instruction == "STOP":
                return machine.pop()
            if count > limits.pickle:
                limits.check("pickle", count, "instructions of the pickle")
            machine.run(instruction, argument)
    except NpformerError:
        raise
    except (ValueError, TypeError, IndexError, KeyError, MemoryError) as error:
        raise NpformerError(f"the pickle is corrupt ({type(error).__name__}: {error!s:.100})") from None
    raise NpformerError("the pickle is corrupt: it has no STOP instruction")


def _instructions(file: BinaryIO) -> Iterator[tuple[str, Any]]:
    """Yields the name and the argument of each instruction.

    Arguments that end with a newline belong to protocol 0 and are rejected, except the two arguments of GLOBAL. This
    function reads those two arguments itself, because pickletools would decode escapes and warn about invalid escapes.
    """
    while code := file.read(1):
        instruction = OPCODES.get(code.decode("latin-1"))
        if instruction is None:
            raise NpformerError(f"the pickle is corrupt: {code!r} is not an instruction")
        name, argument = instruction.name, instruction.arg
        if name == "GLOBAL":
            yield name, " ".join(file.readline().decode().removesuffix("\n") for _ in range(2))
        elif argument is not None and argument.n == pickletools.UP_TO_NEWLINE:
            raise NpformerError(f"the pickle contains the instruction {name}, which is not allowed")
        else:
            yield name, argument.reader(file) if argument is not None else None


class _Machine:
    """The stack and the memo of a pickle."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def pop(self) -> Any:
        return self.stack.pop()

    def pop_to_mark(self) -> list[Any]:
        values = []
        while (value := self.pop()) is not _MARK:
            values.append(value)
        values.reverse()
        return values

    def run(self, instruction: str, argument: Any) -> None:
        push = self.stack.append
        match instruction:
            case "PROTO" | "FRAME":
                pass
            case _ if instruction in _LITERALS:
                push(_small(argument))
            case _ if instruction in _CONSTANTS:
                push(_CONSTANTS[instruction])
            case "MARK":
                push(_MARK)
            case "EMPTY_DICT":
                push({})
            case "EMPTY_LIST":
                push([])
            case "EMPTY_TUPLE":
                push(())
            case "TUPLE":
                push(tuple(self.pop_to_mark()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                size = int(instruction[-1])
                values = [self.pop() for _ in range(size)]
                push(tuple(reversed(values)))
            case "APPEND":
                value = self.pop()
                _expect(list, self.stack[-1]).append(value)
            case "APPENDS":
                values = self.pop_to_mark()
                _expect(list, self.stack[-1]).extend(values)
            case "SETITEM":
                value, key = self.pop(), self.pop()
                _set_items(self.stack[-1], [key, value])
            case "SETITEMS":
                values = self.pop_to_mark()
                _set_items(self.stack[-1], values)
            case "BINPUT" | "LONG_BINPUT":
                self.memo[argument] = self.stack[-1]
            case "MEMOIZE":
                self.memo[len(self.memo)] = self.stack[-1]
            case "BINGET" | "LONG_BINGET":
                push(self.memo[argument])
            case "GLOBAL":
                push(_name(*argument.split(" ", 1)))
            case "STACK_GLOBAL":
                name, module = self.pop(), self.pop()
                push(_name(_expect(str, module), _expect(str, name)))
            case "BINPERSID":
                push(_storage(self.pop()))
            case "REDUCE":
                arguments, function = self.pop(), self.pop()
                push(_rebuild(_expect(Name, function).name, _expect(tuple, arguments)))
            case "BUILD":
                self.pop()  # discards a state dict's attribute _metadata
                _expect(dict, self.stack[-1])
            case _:
                raise NpformerError(f"the pickle contains the instruction {instruction}, which is not allowed")


def _expect(kind: type[Any], value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"expected {kind.__name__}, got {type(value).__name__}")
    return value


def _small(literal: Any) -> Any:
    """Rejects huge integers. In a checkpoint, integers have at most 64 bits, except the magic number, which has 80."""
    if isinstance(literal, int) and literal.bit_length() > 80:
        raise NpformerError("the pickle contains an integer that is too large for a checkpoint")
    return literal


def _set_items(target: object, values: list[Any]) -> None:
    keys = values[::2]
    if not all(isinstance(key, str) for key in keys):  # integers with equal hashes could make a dict slow
        raise NpformerError("the pickle contains a dict with a key that is not a string")
    _expect(dict, target).update(zip(keys, values[1::2], strict=True))


def _name(module: str, name: str) -> Name:
    full = f"{module}.{name}"
    if full not in ADMITTED:
        remedy = "save only the model's state_dict()"
        if module == "torch._utils":  # a function for tensors of an unsupported kind, such as float8
            remedy = "save plain tensors in float32, float16 or bfloat16"
        raise NpformerError(f"the pickle refers to {full!r:.200}, which is not allowed; nothing was executed; {remedy}")
    return Name(full)


def _storage(pid: object) -> Storage:
    """The storage of torch's persistent id ("storage", type, key, device, size[, view])."""
    match _expect(tuple, pid)[:7]:
        case ("storage", Name(kind), str(key), str(_device), int(size), *view) if kind in STORAGES:
            match view:
                case [] | [None]:
                    return Storage(kind, key, size, None)
                case [(str(), int(first), int(count))]:
                    return Storage(kind, key, size, (first, count))
    raise NpformerError("the pickle refers to external data that is not a storage of numbers")


def _rebuild(function: str, arguments: tuple[Any, ...]) -> Any:
    if function == ORDERED_DICT and not arguments:
        return {}
    if function == PARAMETER and len(arguments) == 3 and isinstance(arguments[0], Tensor):
        return arguments[0]
    if function in REBUILD and len(arguments) >= REBUILD[function]:
        storage, offset, shape, strides = arguments[:4]
        if len(_expect(tuple, shape)) <= _MOST_AXES and len(_expect(tuple, strides)) <= _MOST_AXES:
            numbers = (offset, *shape, *strides)
            if isinstance(storage, Storage) and all(type(number) is int for number in numbers):
                return Tensor(storage, offset, shape, strides)
    raise NpformerError(f"the pickle calls {function} with unexpected arguments")
