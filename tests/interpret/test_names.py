"""Other libraries' names for stages work in traces, edits and patches. Unknown names get hints."""

from __future__ import annotations

import numpy as np
import pytest

from npformer.common.errors import NpformerError
from npformer.engine.activations import silu
from npformer.interpret import stages
from npformer.interpret.edits import edit, from_trace, zero
from npformer.interpret.logit_lens import streams
from npformer.interpret.patching import patch
from npformer.interpret.study_inputs import read_inputs
from npformer.interpret.traces import trace
from npformer.model import Model
from tests.support import tiny

pytestmark = pytest.mark.numbers

TEXT = "I love ice cream"
FAMILIES = ("distilbert", "bert", "electra", "roberta", "gpt2", "mpnet")


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest) -> Model:
    return tiny.model(request.param)


def test_every_hook_and_module_that_the_table_names_is_found(model: Model) -> None:
    t = trace(model, TEXT)
    found = 0
    for row in t.table().rows:
        for theirs in (row.transformerlens, row.huggingface):
            # for BERT's pooler, other libraries name the enclosing module
            if theirs and theirs != row.name and row.name != "pooler":
                assert theirs in t
                np.testing.assert_array_equal(t[theirs], t[row.name], err_msg=theirs)
                found += 1
    assert found >= 40


@pytest.mark.parametrize("family", FAMILIES)
def test_every_module_of_every_head_is_found(family: str) -> None:
    from npformer.families import encoders, family_of

    for head in encoders()[family].heads:
        config = tiny.config(family, head)
        for path, stage in stages.modules(config).items():
            if path in ("pooler", "embeddings"):
                continue
            assert stages.resolve(path) == (stage,), path
            inner = path.removeprefix(family_of(config).prefix)
            assert stages.find(inner) or stages.resolve(inner) == (stage,), inner


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("blocks.1.attn.hook_z", "layers.1.attention.context"),
        ("blocks.[01].attn.hook_pattern", "layers.[01].attention.weights"),
        ("blocks.*.hook_mlp_out", "layers.*.ffn.output"),
        ("blocks.1.ln2.hook_normalized", "layers.1.ffn_norm"),
        ("hook_embed", "embeddings.token"),
        ("ln_final.hook_normalized", "norm"),
        ("bert.encoder.layer.0.attention.self.query", "layers.0.attention.query"),
        ("encoder.layer.0.attention.self.query", "layers.0.attention.query"),
        ("distilbert.transformer.layer.*.ffn.lin1", "layers.*.ffn.hidden"),
        ("classifier", "logits"),
        ("cls.predictions.transform.LayerNorm", "head.norm"),
        ("model.decoder.layers.2.encoder_attn.k_proj", "decoder.layers.2.cross_attention.key"),
    ],
)
def test_names_of_other_libraries(theirs: str, ours: str) -> None:
    assert stages.resolve(theirs) == (ours,)


def test_a_hook_before_the_activation_means_hidden_or_in_a_gated_network_gate() -> None:
    """TransformerLens has `mlp.hook_pre` in both kinds of network, and in a gated one also `mlp.hook_pre_linear`."""
    plain, gated = (trace(tiny.model(family), TEXT) for family in ("bert", "llama"))
    hooks = "blocks.1.mlp.hook_pre", "blocks.1.mlp.hook_pre_linear"
    assert list(plain.select("blocks.*.mlp.hook_pre")) == ["layers.0.ffn.hidden", "layers.1.ffn.hidden"]
    assert plain[hooks[0]] is plain["layers.1.ffn.hidden"]
    assert gated[hooks[0]] is gated["layers.1.ffn.gate"]
    assert gated[hooks[1]] is gated["layers.1.ffn.up"]
    np.testing.assert_array_equal(gated["layers.1.ffn.activation"], silu(gated["layers.1.ffn.gate"]))
    assert list(gated.select("blocks.1.mlp.hook_pre*")) == ["layers.1.ffn.gate", "layers.1.ffn.up"]


def test_our_own_names_and_any_others_stay() -> None:
    for name in ("layers.1.attention.context", "pooler", "logits", "*.weights", "*output*", "my.own.stage", ""):
        assert stages.resolve(name) == ()
    assert stages.selected("*output*", ["layers.0.attention_norm", "layers.0.ffn.output"]) == ["layers.0.ffn.output"]


@pytest.mark.parametrize("family", [*FAMILIES, "albert", "llama"])
def test_the_input_of_a_layer_is_the_stage_that_it_reads(family: str) -> None:
    model = tiny.model(family)
    for layer, stage in enumerate(streams(model)[:-1]):
        hook = f"blocks.{layer}.hook_resid_pre"
        t = trace(model, TEXT)
        np.testing.assert_array_equal(t[hook], t[stage])
        assert list(trace(model, TEXT, hook)) == list(t.select(hook)) == list(from_trace(t, hook)) == [stage]
        with trace(stages="*ffn*") as recorded:  # without a config
            model.run(read_inputs(model, TEXT).inputs)
        if layer:
            np.testing.assert_array_equal(recorded[hook], t[stage])
            with edit({hook: lambda x: -x}):
                np.testing.assert_array_equal(trace(model, TEXT)[stage], -t[stage])


def test_an_edit_of_the_first_layer_s_input_is_never_left_out_silently() -> None:
    zeros = zero("blocks.0.hook_resid_pre")
    with edit(zeros):
        assert not trace(tiny.model("bert"), TEXT)["embeddings.norm"].any()
    with pytest.raises(NpformerError, match=r"use npformer's name, embeddings\.sum"), edit(zeros):
        trace(tiny.model("gpt2"), TEXT)


def test_a_trace_an_edit_and_a_patch_take_them() -> None:
    model = tiny.model("bert")
    hooks = trace(model, TEXT, "blocks.*.attn.hook_pattern")
    assert list(hooks) == ["layers.0.attention.weights", "layers.1.attention.weights"]
    assert list(trace(model, TEXT, "*.hook_pattern")) == list(hooks)
    assert list(hooks.select("blocks.1.*.hook_pattern")) == ["layers.1.attention.weights"]
    assert hooks.get("blocks.0.attn.hook_z") is None
    with edit(zero("bert.encoder.layer.1.output.dense")):
        t = trace(model, TEXT)
    assert not t["layers.1.ffn.output"].any()
    assert t["blocks.0.hook_mlp_out"].any()
    with edit(from_trace(hooks, "blocks.0.attn.hook_pattern")):
        again = trace(model, "you love ice cream")
    np.testing.assert_array_equal(again["layers.0.attention.weights"], hooks["layers.0.attention.weights"])
    effects = patch(model, TEXT, "you love ice cream", "blocks.*.hook_mlp_out")
    assert effects.rows == ("layers.0.ffn.output", "layers.1.ffn.output")
    grads = trace(model, TEXT, grads="POSITIVE").grads
    np.testing.assert_array_equal(grads["blocks.1.attn.hook_z"], grads["layers.1.attention.context"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("blocks.0.attn.hook_patern", r"did you mean blocks\.0\.attn\.hook_pattern \(layers\.0\.attention\.weights\)"),
        ("bert.encoder.layer.1.attention.self.querry", r"bert\.encoder\.layer\.1\.attention\.self\.query \(layers\.1"),
        ("blocks.0.attn.hook_result", r"for each head's output use .*head_results\(model, trace\)"),
        ("blocks.1.ln1.hook_scale", r"deviation from the stage before it"),
        ("blocks.0.hook_mlp_in", "a block reads the stage before it"),
        ("blocks.7.attn.hook_z", r"which is layers\.7\.attention\.context here: no such stage; did you mean layers\.1"),
        ("layers.0.atention.weights", r"did you mean layers\.0\.attention\.weights"),
    ],
)
def test_a_name_that_does_not_fit_has_a_hint(name: str, message: str) -> None:
    t = trace(tiny.model("bert"), TEXT)
    with pytest.raises(NpformerError, match=message):
        t[name]
    with pytest.raises(NpformerError, match=message), edit(zero(name)):
        trace(tiny.model("bert"), TEXT)


def test_a_pattern_points_to_select() -> None:
    t = trace(tiny.model("bert"), TEXT)
    with pytest.raises(
        NpformerError, match=r"a pattern, not a stage; use trace\.select\('layers\.\*\.attention\.weights'\)"
    ):
        t["layers.*.attention.weights"]
    assert list(t.select("layers.*.attention.weights")) == ["layers.0.attention.weights", "layers.1.attention.weights"]


# --- functions that get the name -------------------------------------------------------------------------------------


def test_a_function_of_two_arguments_gets_the_stage_s_name() -> None:
    seen = []

    def note(array: np.ndarray, name: str) -> np.ndarray:
        seen.append(name)
        return array * 0 if name.startswith("layers.1") else array

    with edit({"layers.*.ffn.output": note, "blocks.0.hook_attn_out": note}):
        t = trace(tiny.model(), TEXT)
    assert seen == ["layers.0.attention.output", "layers.0.ffn.output", "layers.1.ffn.output"]
    assert t["layers.0.ffn.output"].any()
    assert not t["layers.1.ffn.output"].any()


def test_a_second_argument_with_a_default_is_the_functions_own() -> None:
    for function in (lambda array, factor=2.0: array * factor, np.zeros_like, np.tanh):
        with edit({"pooled": function}):
            assert trace(tiny.model(), TEXT)["pooled"].shape == (32,)
