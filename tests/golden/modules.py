"""The modules of transformers' models that compute each stage, by family, for `record.py`."""

from __future__ import annotations

# A module's name without the encoder's prefix -> the stages that are its input and output; `*` is a layer's number.
DISTILBERT = {
    "embeddings.word_embeddings": ("", "embeddings.token"),
    "embeddings.position_embeddings": ("", "embeddings.position"),
    "embeddings.LayerNorm": ("embeddings.sum", "embeddings.norm"),
    "transformer.layer.*.attention.q_lin": ("", "layers.*.attention.query"),
    "transformer.layer.*.attention.k_lin": ("", "layers.*.attention.key"),
    "transformer.layer.*.attention.v_lin": ("", "layers.*.attention.value"),
    "transformer.layer.*.attention.out_lin": ("layers.*.attention.combined", "layers.*.attention.output"),
    "transformer.layer.*.sa_layer_norm": ("layers.*.attention_residual", "layers.*.attention_norm"),
    "transformer.layer.*.ffn.lin1": ("", "layers.*.ffn.hidden"),
    "transformer.layer.*.ffn.lin2": ("layers.*.ffn.activation", "layers.*.ffn.output"),
    "transformer.layer.*.output_layer_norm": ("layers.*.ffn_residual", "layers.*.ffn_norm"),
    "pre_classifier": ("", "pooler"),
    "classifier": ("pooled", "logits"),
    "vocab_transform": ("", "head.hidden"),
    "vocab_layer_norm": ("head.activation", "head.norm"),
    "vocab_projector": ("", "logits"),
    "qa_outputs": ("", "spans"),
}
BERT = {
    "embeddings.word_embeddings": ("", "embeddings.token"),
    "embeddings.position_embeddings": ("", "embeddings.position"),
    "embeddings.token_type_embeddings": ("", "embeddings.segment"),
    "embeddings.LayerNorm": ("embeddings.sum", "embeddings.norm"),
    "encoder.layer.*.attention.self.query": ("", "layers.*.attention.query"),
    "encoder.layer.*.attention.self.key": ("", "layers.*.attention.key"),
    "encoder.layer.*.attention.self.value": ("", "layers.*.attention.value"),
    "encoder.layer.*.attention.output.dense": ("layers.*.attention.combined", "layers.*.attention.output"),
    "encoder.layer.*.attention.output.LayerNorm": ("layers.*.attention_residual", "layers.*.attention_norm"),
    "encoder.layer.*.intermediate.dense": ("", "layers.*.ffn.hidden"),
    "encoder.layer.*.output.dense": ("layers.*.ffn.activation", "layers.*.ffn.output"),
    "encoder.layer.*.output.LayerNorm": ("layers.*.ffn_residual", "layers.*.ffn_norm"),
    "pooler.dense": ("", "pooler"),
    "pooler.activation": ("", "pooled"),
    "classifier": ("", "logits"),
    "cls.seq_relationship": ("", "logits"),
    "cls.predictions.transform.dense": ("", "head.hidden"),
    "cls.predictions.transform.LayerNorm": ("head.activation", "head.norm"),
    "cls.predictions.decoder": ("", "logits"),
    "qa_outputs": ("", "spans"),
}
ELECTRA = {
    **{path: stages for path, stages in BERT.items() if path.startswith(("embeddings.", "encoder."))},
    "embeddings_project": ("", "embeddings.project"),
    "classifier": ("", "logits"),
    "classifier.dense": ("", "pooler"),
    "classifier.activation": ("", "pooled"),
    "sequence_summary.summary": ("", "pooler"),
    "sequence_summary.activation": ("", "pooled"),
    "generator_predictions.dense": ("", "head.hidden"),
    "generator_predictions.LayerNorm": ("head.activation", "head.norm"),
    "generator_lm_head": ("", "logits"),
    "discriminator_predictions.dense": ("", "head.hidden"),
    "discriminator_predictions.dense_prediction": ("head.activation", "logits"),
    "qa_outputs": ("", "spans"),
}
ROBERTA = {
    **{path: stages for path, stages in BERT.items() if not path.startswith(("cls.", "classifier"))},
    "classifier.dense": ("", "pooler"),
    "classifier.out_proj": ("pooled", "logits"),
    "classifier": ("", "logits"),
    "lm_head.dense": ("", "head.hidden"),
    "lm_head.layer_norm": ("head.activation", "head.norm"),
    "lm_head.decoder": ("", "logits"),
}
LAYER = "encoder.albert_layer_groups.0.albert_layers.0"  # all layers share this module
ALBERT = {
    **{path: stages for path, stages in BERT.items() if path.startswith("embeddings.")},
    "encoder.embedding_hidden_mapping_in": ("", "embeddings.project"),
    f"{LAYER}.attention.query": ("", "layers.*.attention.query"),
    f"{LAYER}.attention.key": ("", "layers.*.attention.key"),
    f"{LAYER}.attention.value": ("", "layers.*.attention.value"),
    f"{LAYER}.attention.dense": ("layers.*.attention.combined", "layers.*.attention.output"),
    f"{LAYER}.attention.LayerNorm": ("layers.*.attention_residual", "layers.*.attention_norm"),
    f"{LAYER}.ffn": ("", "layers.*.ffn.hidden"),
    f"{LAYER}.ffn_output": ("layers.*.ffn.activation", "layers.*.ffn.output"),
    f"{LAYER}.full_layer_layer_norm": ("layers.*.ffn_residual", "layers.*.ffn_norm"),
    "pooler": ("", "pooler"),
    "pooler_activation": ("", "pooled"),
    "classifier": ("", "logits"),
    "predictions.dense": ("", "head.hidden"),
    "predictions.LayerNorm": ("head.activation", "head.norm"),
    "predictions.decoder": ("", "logits"),
    "qa_outputs": ("", "spans"),
}
MPNET = {
    **{path: stages for path, stages in ROBERTA.items() if ".attention." not in path},
    "encoder.layer.*.attention.attn.q": ("", "layers.*.attention.query"),
    "encoder.layer.*.attention.attn.k": ("", "layers.*.attention.key"),
    "encoder.layer.*.attention.attn.v": ("", "layers.*.attention.value"),
    "encoder.layer.*.attention.attn.o": ("layers.*.attention.combined", "layers.*.attention.output"),
    "encoder.layer.*.attention.LayerNorm": ("layers.*.attention_residual", "layers.*.attention_norm"),
}
MODERNBERT = {
    "embeddings.tok_embeddings": ("", "embeddings.token"),
    "embeddings.norm": ("embeddings.sum", "embeddings.norm"),
    "layers.*.attn_norm": ("", "layers.*.attention_norm"),
    "layers.*.attn.Wqkv": ("", "layers.*.attention.query layers.*.attention.key layers.*.attention.value"),
    "layers.*.attn.Wo": ("layers.*.attention.combined", "layers.*.attention.output"),
    "layers.*.mlp_norm": ("layers.*.attention_residual", "layers.*.ffn_norm"),
    "layers.*.mlp.Wi": ("", "layers.*.ffn.gate layers.*.ffn.up"),
    "layers.*.mlp.act": ("", "layers.*.ffn.activation"),
    "layers.*.mlp.Wo": ("layers.*.ffn.gated", "layers.*.ffn.output"),
    "layers.*": ("", "layers.*.ffn_residual"),
    "final_norm": ("", "norm"),
    "head": ("pooled", ""),
    "head.dense": ("", "head.hidden"),
    "head.norm": ("head.activation", "head.norm"),
    "classifier": ("", "logits"),
    "decoder": ("", "logits"),
}
DEBERTA = {
    **{path: stages for path, stages in BERT.items() if ".self." not in path},
    "encoder.layer.*.attention.self.query_proj": ("", "layers.*.attention.query"),
    "encoder.layer.*.attention.self.key_proj": ("", "layers.*.attention.key"),
    "encoder.layer.*.attention.self.value_proj": ("", "layers.*.attention.value"),
    "pooler": ("", "pooled"),
    # its rows are tokens, unlike those of the convolution's own output
    "encoder.conv.dropout": ("", "convolution.hidden"),
    "encoder.conv.LayerNorm": ("convolution_residual", "convolution_norm"),
}
NOMIC_BERT = {
    "embeddings.word_embeddings": ("", "embeddings.token"),
    "embeddings.token_type_embeddings": ("", "embeddings.segment"),
    "embeddings.LayerNorm": ("embeddings.sum", "embeddings.norm"),
    "layers.*.self_attn.q_proj": ("", "layers.*.attention.query"),
    "layers.*.self_attn.k_proj": ("", "layers.*.attention.key"),
    "layers.*.self_attn.v_proj": ("", "layers.*.attention.value"),
    "layers.*.self_attn.o_proj": ("layers.*.attention.combined", "layers.*.attention.output"),
    "layers.*.post_attention_layernorm": ("layers.*.attention_residual", "layers.*.attention_norm"),
    "layers.*.mlp.gate_proj": ("", "layers.*.ffn.gate"),
    "layers.*.mlp.up_proj": ("", "layers.*.ffn.up"),
    "layers.*.mlp.act_fn": ("", "layers.*.ffn.activation"),
    "layers.*.mlp.down_proj": ("layers.*.ffn.gated", "layers.*.ffn.output"),
    "layers.*.post_mlp_layernorm": ("layers.*.ffn_residual", "layers.*.ffn_norm"),
    "cls.predictions.transform.dense": ("", "head.hidden"),
    "cls.predictions.transform.layer_norm": ("head.activation", "head.norm"),
    "cls.predictions.decoder": ("", "logits"),
}
GPT2 = {
    "wte": ("", "embeddings.token"),
    "wpe": ("", "embeddings.position"),
    "drop": ("", "embeddings.sum"),
    "h.*.ln_1": ("", "layers.*.attention_norm"),
    "h.*.attn.c_attn": ("", "layers.*.attention.query layers.*.attention.key layers.*.attention.value"),
    "h.*.attn.c_proj": ("layers.*.attention.combined", "layers.*.attention.output"),
    "h.*.ln_2": ("layers.*.attention_residual", "layers.*.ffn_norm"),
    "h.*.mlp.c_fc": ("", "layers.*.ffn.hidden"),
    "h.*.mlp.act": ("", "layers.*.ffn.activation"),
    "h.*.mlp.c_proj": ("", "layers.*.ffn.output"),
    "h.*": ("", "layers.*.ffn_residual"),
    "ln_f": ("", "norm"),
    "lm_head": ("", "logits"),
    "classifier": ("", "logits"),
    "qa_outputs": ("", "spans"),
}
LLAMA = {
    "embed_tokens": ("", "embeddings.token"),
    "layers.*.input_layernorm": ("", "layers.*.attention_norm"),
    "layers.*.self_attn.q_proj": ("", "layers.*.attention.query"),
    "layers.*.self_attn.k_proj": ("", "layers.*.attention.key"),
    "layers.*.self_attn.v_proj": ("", "layers.*.attention.value"),
    "layers.*.self_attn.q_norm": ("", "layers.*.attention.query_normed"),
    "layers.*.self_attn.k_norm": ("", "layers.*.attention.key_normed"),
    "layers.*.self_attn.o_proj": ("layers.*.attention.combined", "layers.*.attention.output"),
    "layers.*.post_attention_layernorm": ("layers.*.attention_residual", "layers.*.ffn_norm"),
    "layers.*.mlp.gate_proj": ("", "layers.*.ffn.gate"),
    "layers.*.mlp.up_proj": ("", "layers.*.ffn.up"),
    "layers.*.mlp.act_fn": ("", "layers.*.ffn.activation"),
    "layers.*.mlp.down_proj": ("layers.*.ffn.gated", "layers.*.ffn.output"),
    "layers.*": ("embeddings.sum", "layers.*.ffn_residual"),  # the first layer reads the embeddings
    "norm": ("", "norm"),
    "lm_head": ("", "logits"),
    "qa_outputs": ("", "spans"),
}
GEMMA = LLAMA | {
    "layers.*.post_attention_layernorm": ("", "layers.*.attention.output_norm"),
    "layers.*.pre_feedforward_layernorm": ("layers.*.attention_residual", "layers.*.ffn_norm"),
    "layers.*.post_feedforward_layernorm": ("", "layers.*.ffn.output_norm"),
    "lm_head": ("", "head.output"),
}
OLMO2 = LLAMA | {
    "layers.*.post_attention_layernorm": ("", "layers.*.attention.output_norm"),
    "layers.*.mlp.gate_proj": ("layers.*.attention_residual", "layers.*.ffn.gate"),
    "layers.*.post_feedforward_layernorm": ("", "layers.*.ffn.output_norm"),
}
PHI3 = LLAMA | {
    "layers.*.self_attn.qkv_proj": ("", "by_width layers.*.attention"),
    "layers.*.mlp.gate_up_proj": ("", "layers.*.ffn.gate layers.*.ffn.up"),
    "layers.*.mlp.activation_fn": ("", "layers.*.ffn.activation"),
}
GPT_NEOX = {
    "embed_in": ("", "embeddings.token"),
    "emb_dropout": ("", "embeddings.sum"),
    "layers.*.input_layernorm": ("", "layers.*.attention_norm"),
    "layers.*.attention.query_key_value": ("", "by_head layers.*.attention"),
    "layers.*.attention.dense": ("layers.*.attention.combined", "layers.*.attention.output"),
    "layers.*.post_attention_layernorm": ("", "layers.*.ffn_norm"),
    "layers.*.mlp.dense_h_to_4h": ("", "layers.*.ffn.hidden"),
    "layers.*.mlp.act": ("", "layers.*.ffn.activation"),
    "layers.*.mlp.dense_4h_to_h": ("", "layers.*.ffn.output"),
    "layers.*": ("", "layers.*.ffn_residual"),
    "final_layer_norm": ("", "norm"),
    "lm_head": ("", "logits"),
}
BLOOM = {
    "word_embeddings": ("", "embeddings.token"),
    "word_embeddings_layernorm": ("embeddings.sum", "embeddings.norm"),
    "h.*.input_layernorm": ("", "layers.*.attention_norm"),
    "h.*.self_attention.query_key_value": ("", "by_head layers.*.attention"),
    "h.*.self_attention.dense": ("layers.*.attention.combined", "layers.*.attention.output"),
    "h.*.post_attention_layernorm": ("layers.*.attention_residual", "layers.*.ffn_norm"),
    "h.*.mlp.dense_h_to_4h": ("", "layers.*.ffn.hidden"),
    "h.*.mlp.gelu_impl": ("", "layers.*.ffn.activation"),
    "h.*.mlp.dense_4h_to_h": ("", "layers.*.ffn.output"),
    "h.*": ("", "layers.*.ffn_residual"),
    "ln_f": ("", "norm"),
    "lm_head": ("", "logits"),
}
STACK = {
    "embed_tokens": ("", "embeddings.token"),
    "embed_positions": ("", "embeddings.position"),
    "layernorm_embedding": ("embeddings.sum", "embeddings.norm"),
    "layers.*.fc1": ("", "layers.*.ffn.hidden"),
    "layers.*.fc2": ("layers.*.ffn.activation", "layers.*.ffn.output"),
    "layers.*.final_layer_norm": ("layers.*.ffn_residual", "layers.*.ffn_norm"),
}
for theirs, ours in (("self_attn", "attention"), ("encoder_attn", "cross_attention")):
    for part in ("query", "key", "value"):
        STACK[f"layers.*.{theirs}.{part[0]}_proj"] = ("", f"layers.*.{ours}.{part}")
    STACK[f"layers.*.{theirs}.out_proj"] = (f"layers.*.{ours}.combined", f"layers.*.{ours}.output")
    STACK[f"layers.*.{theirs}_layer_norm"] = (f"layers.*.{ours}_residual", f"layers.*.{ours}_norm")
OPT = {
    "embed_tokens": ("", "embeddings.token"),
    "project_in": ("", "embeddings.project"),
    "embed_positions": ("", "embeddings.position"),
    "layers.*": ("embeddings.sum", "layers.*.ffn_norm"),  # the first layer reads the embeddings
    "project_out": ("", "project"),
    "lm_head": ("", "logits"),
}
for name, stages in STACK.items():
    if name.startswith("layers.") and "encoder_attn" not in name and "final" not in name:
        OPT[name] = stages
OPT["layers.*.final_layer_norm"] = ("layers.*.ffn_residual", "")
BART = {
    "classification_head.dense": ("", "pooler"),
    "classification_head.out_proj": ("pooled", "logits"),
    "qa_outputs": ("", "spans"),
}
for side in ("encoder", "decoder"):
    BART |= {f"{side}.{path}": tuple(each and f"{side}.{each}" for each in pair) for path, pair in STACK.items()}
#: layer.0, layer.1 and layer.2 of a T5 block are called part0, part1 and part2 here; `record.py` renames them.
T5_FFN = {"wi_0": ("", "gate"), "wi_1": ("", "up"), "act": ("", "activation"), "wo": ("gated", "output")}
T5 = {"qa_outputs": ("", "spans")}
for side, blocks in (("encoder", ("attention", "ffn")), ("decoder", ("attention", "cross_attention", "ffn"))):
    T5 |= {f"{side}.embed_tokens": ("", f"{side}.embeddings.token"), f"{side}.final_layer_norm": ("", f"{side}.norm")}
    T5[f"{side}.layers.*"] = (f"{side}.embeddings.sum", "")  # the first layer reads the embeddings
    for number, block in enumerate(blocks):
        at, ours = f"{side}.layers.*.part{number}", f"{side}.layers.*"
        before = f"{ours}.{blocks[number - 1]}_residual" if number else ""
        T5[f"{at}.layer_norm"] = (before, f"{ours}.{block}_norm")
        inner = "EncDecAttention" if block == "cross_attention" else "SelfAttention"
        for part in ("query", "key", "value"):
            T5[f"{at}.{inner}.{part[0]}"] = ("", f"{ours}.{block}.{part}")
        T5[f"{at}.{inner}.o"] = (f"{ours}.{block}.combined", f"{ours}.{block}.output")
    T5[at] = ("", f"{ours}.ffn_residual")  # the last part of a block is the FFN
    for name, pair in T5_FFN.items():
        T5[f"{at}.DenseReluDense.{name}"] = tuple(each and f"{ours}.ffn.{each}" for each in pair)
