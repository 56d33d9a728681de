"""The unpickler builds the tensors that torch.save describes, and executes nothing else."""

import io
import os
import pickle
import pickletools
import struct
import tracemalloc
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npformer.checkpoint.pickled import Storage, Tensor, read_pickle
from npformer.common.errors import NpformerError
from tests.support.torch_writer import Call, Global, Persistent, Raw, dump, storage, tensor

GOLDEN = Path(__file__).parents[1] / "golden/checkpoints"
ORDERED_DICT = Global("collections", "OrderedDict")
FLOATS = storage("FloatStorage", "0", 6)
MATRIX = Tensor(Storage("torch.FloatStorage", "0", 6, None), 0, (2, 3), (3, 1))


def read(code: bytes):
    return read_pickle(io.BytesIO(code))


PROTOCOLS = range(2, pickle.HIGHEST_PROTOCOL + 1)  # the protocols that torch.save can write


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_plain_values_in_every_protocol(protocol):
    value = {
        "a": [1, -1, 2**40, 300, None, True, False, 1.5],
        "b": ("x", (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)),
        "3": {},
    }
    assert read(pickle.dumps(value, protocol)) == value
    assert read(pickle.dumps(OrderedDict(value), protocol)) == value


def test_a_list_that_holds_itself_is_no_danger():
    value = []
    value.append(value)
    again = read(pickle.dumps(value, 2))
    assert again[0] is again


def test_the_file_is_left_after_the_pickle():
    file = io.BytesIO(dump(1) + dump("two") + b"rest")
    assert (read_pickle(file), read_pickle(file), file.read()) == (1, "two", b"rest")


def test_tensors_are_records():
    parameter = Call(Global("torch._utils", "_rebuild_parameter"), (tensor(FLOATS, (2, 3), (3, 1)), True, {}))
    older = Call(Global("torch._utils", "_rebuild_tensor"), (FLOATS, 0, (2, 3), (3, 1)))
    content = {"a": tensor(FLOATS, (2, 3), (3, 1)), "b": parameter, "c": older}
    assert read(dump(content)) == {"a": MATRIX, "b": MATRIX, "c": MATRIX}
    viewed = tensor(storage("FloatStorage", "0", 6, ("1", 2, 4)), (4,), (1,))
    assert read(dump(viewed)).storage.view == (2, 4)
    assert read(dump(tensor(storage("FloatStorage", "0", 6, None), (2, 3), (3, 1)))) == MATRIX


def test_a_state_dict_s_attributes_are_dropped():
    state = Raw(dump(Call(ORDERED_DICT, ()))[2:-1] + dump({"_metadata": {"": {"version": 1}}})[2:-1] + b"b")
    assert read(dump(state)) == {}


class Trap:
    """An object whose pickle calls a function, as malware would."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (os.system, ("touch pwned",)),
        (eval, ("open('pwned', 'w')",)),
        (getattr, ("os", "system")),
        (print, ()),
    ],
)
def test_pickled_malware_is_refused(tmp_path, monkeypatch, protocol, function, arguments):
    monkeypatch.chdir(tmp_path)
    code = pickle.dumps(Trap(function, *arguments), protocol)
    with pytest.raises(NpformerError, match=rf"refers to '\w+.{function.__name__}', which .* nothing was executed"):
        read(code)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("os", "system"),
        ("posix", "system"),
        ("builtins", "exec"),
        ("builtins", "getattr"),
        ("__builtin__", "eval"),
        ("subprocess", "Popen"),
        ("torch", "load"),
        ("torch.hub", "load"),
        ("torch._utils", "_rebuild_tensor_v2.__globals__"),
        ("torch._utils", "_rebuild_wrapper_subclass"),
        ("torch", "FloatStorage.__init__"),
        ("torch", "ComplexFloatStorage"),
        ("collections", "OrderedDict.__class__"),
        ("collections", "defaultdict"),
        ("npformer.checkpoint.pickled", "read_pickle"),
        ("", ""),
    ],
)
def test_globals_are_refused_by_name_however_they_are_asked_for(module, name):
    by_stack = Raw(dump(module)[2:-1] + dump(name)[2:-1] + b"\x93")
    for wanted in (Global(module, name), by_stack):
        with pytest.raises(NpformerError, match=f"refers to '{module}.{name}'"):
            read(dump({"x": Call(wanted, ("ls",))}))


CLASS = b"ccollections\nOrderedDict\n"


@pytest.mark.parametrize(
    ("code", "instruction"),
    [
        (b"(ios\nsystem\n", "INST"),
        (b"(" + CLASS + b"o", "OBJ"),
        (CLASS + b")\x81", "NEWOBJ"),
        (CLASS + b")}\x92", "NEWOBJ_EX"),
        (b"\x82\x01", "EXT1"),
        (b"\x83\x01\x00", "EXT2"),
        (b"\x84\x01\x00\x00\x00", "EXT4"),
        (b"P0\n", "PERSID"),
        (b"I1\n", "INT"),
        (b"(d", "DICT"),
        (b"N0", "POP"),
        (b"\x8f", "EMPTY_SET"),
        (b"\x96\x01\x00\x00\x00\x00\x00\x00\x00x", "BYTEARRAY8"),
        (b"\x97", "NEXT_BUFFER"),
    ],
)
def test_instructions_that_no_tensor_needs_are_refused_by_name(code, instruction):
    with pytest.raises(NpformerError, match=f"the instruction {instruction}, which is not allowed"):
        read(b"\x80\x04" + code + b".")


@pytest.mark.parametrize(
    "value",
    [
        Call(ORDERED_DICT, ([("a", 1)],)),
        Call(Global("torch", "FloatStorage"), (1,)),
        Call("text", ()),
        Call(ORDERED_DICT, []),
        Call(tensor(FLOATS, (1,), (1,)), ()),
        Call(Global("torch._utils", "_rebuild_tensor_v2"), ()),
        tensor(None, (1,), (1,)),
        tensor(FLOATS, [1], (1,)),
        tensor(FLOATS, ("1",), (1,)),
        tensor(FLOATS, (True,), (1,)),
        tensor(FLOATS, (1,), (1,), "0"),
        Call(Global("torch._utils", "_rebuild_parameter"), ({}, True, {})),
        Persistent("0"),
        Persistent(("module", "os", "x", "y")),
        Persistent(("storage", "FloatStorage", "0", "cpu", 1)),
        Persistent(("storage", ORDERED_DICT, "0", "cpu", 1)),
        Persistent(("storage", Global("torch", "FloatStorage"), 0, "cpu", 1)),
        storage("FloatStorage", "0", 1, ("1", 0)),
        storage("FloatStorage", "0", 1, None, None),
        {(): 1},
        {None: 1},
        {3: 1},
        Raw(b"]N}b"),
        Raw(b"]NNs"),
        Raw(b"}Na"),
        Raw(b"}(Nu"),
        Raw(b"(\x85\x85}b"),
        Raw(b"\x85"),
        Raw(b"h\x07"),
        Raw(b"t"),
        Raw(b""),
        2**100,
        Raw(b"X\x02\x00\x00\x00\xff\xfe"),
        Raw(b"\x8d" + b"\xff" * 8 + b"x"),
        Raw(b"\x8a\xff1"),
        Raw(b"\x8b\xff\xff\xff\x7f1"),
        Raw(b"\xfe"),
    ],
    ids=str,
)
def test_malformed_pickles_raise_npformer_error(value):
    code = b"\x80\x02" + value.code + b"." if isinstance(value, Raw) else dump(value)
    with pytest.raises(NpformerError):
        read(code)


@pytest.mark.parametrize("index", [2**16, 2**32 - 1])
def test_a_memo_bomb_takes_no_memory(index):
    """Python's own unpickler would allocate `index` memo entries."""
    tracemalloc.start()
    place = struct.pack("<I", index)
    assert read(b"\x80\x02Nr" + place + b"j" + place + b"\x86.") == (None, None)
    assert tracemalloc.get_traced_memory()[1] < 10**6
    tracemalloc.stop()


def test_a_billion_laughs_cost_nothing():
    """Each tuple contains the previous tuple twice: 2**500 leaves in all."""
    code = b"\x80\x02Nq\x00" + b"h\x00\x86q\x00" * 500 + b"."
    outer, inner = read(code)
    assert outer is inner
    with pytest.raises(NpformerError, match="key that is not a string"):
        read(b"\x80\x02}" + code[2:-1] + b"Ns.")


def test_a_pickle_without_end_or_too_long():
    with pytest.raises(NpformerError, match="corrupt"):
        read(b"\x80\x02" + b"(" * 1000)
    with pytest.raises(NpformerError, match="instructions of the pickle: 300001 is more than the limit `pickle`"):
        read(b"\x80\x02" + b"(" * 3_000_000 + b".")


@pytest.mark.filterwarnings("ignore:invalid escape sequence")  # damaged text may contain an invalid escape
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_bytes_give_a_value_or_an_error(data):
    """Random instructions and damaged real pickles return a value or raise NpformerError."""
    opcodes = [opcode.code.encode("latin1") for opcode in pickletools.opcodes]
    if data.draw(st.booleans()):
        parts = st.one_of(st.sampled_from(opcodes), st.binary(max_size=6), st.just(CLASS), st.just(b"(}]N)"))
        code = b"\x80\x04" + b"".join(data.draw(st.lists(parts, max_size=40))) + b"."
    else:
        code = bytearray(dump({"a": tensor(FLOATS, (2, 3), (3, 1)), "b": Call(ORDERED_DICT, ())}))
        for _ in range(data.draw(st.integers(1, 3))):
            code[data.draw(st.integers(0, len(code) - 1))] = data.draw(st.integers(0, 255))
    with suppress(NpformerError):
        read(bytes(code))
