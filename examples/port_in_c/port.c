/* DistilBERT in plain C, with every stage: ./port MODEL IDS OUTPUT
 *
 * MODEL is a folder with config.json and model.safetensors, IDS a safetensors file with the token ids of text i as
 * `i/ids`, OUTPUT the safetensors file of stages to write, text i's as `i/STAGE`. It takes any head of the family,
 * weights in float32, float16 or bfloat16, and needs nothing but libm and a little-endian machine.
 *
 *     cc -O2 -o port port.c -lm && npformer golden run suite --case 'distilbert-*' -- ./port
 *
 * -DQUICK_GELU, -DUNBIASED_VARIANCE and -DINTERLEAVED_HEADS plant a mistake for the doctor to find.
 */
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fail(const char *what, const char *which) { fprintf(stderr, "port: %s: %s\n", which, what), exit(1); }

static void *need(size_t size) { /* zeroed memory */
    void *memory = calloc(size ? size : 1, 1);
    if (!memory) fail("out of memory", "calloc");
    return memory;
}

static float *room(size_t count) { return need(count * sizeof(float)); }

/* --- files ------------------------------------------------------------------------------------------------------- */

static char *read_file(const char *folder, const char *name, size_t *size) {
    char path[4096];
    snprintf(path, sizeof path, "%s%s%s", folder, *name ? "/" : "", name);
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END)) fail("cannot be read", path);
    *size = (size_t)ftell(file), rewind(file);
    char *bytes = need(*size + 1);
    if (fread(bytes, 1, *size, file) != *size) fail("cannot be read", path);
    return fclose(file), bytes;
}

typedef struct { char *header, *data; size_t size; } Tensors; /* a safetensors file */

static Tensors open_tensors(const char *folder, const char *name) {
    size_t size;
    uint64_t length;
    char *bytes = read_file(folder, name, &size);
    if (size < 8 || (memcpy(&length, bytes, 8), length > size - 8)) fail("no safetensors file", folder);
    char *header = need(length + 1);
    memcpy(header, bytes + 8, length);
    return (Tensors){header, bytes + 8 + length, size - 8 - length};
}

/* The numbers of a tensor as they are stored; NULL if no tensor has this name. */
static char *raw(Tensors file, const char *name, char *dtype, size_t *bytes) {
    char key[512];
    unsigned long long begin, end;
    snprintf(key, sizeof key, "\"%s\":{", name);
    char *entry = strstr(file.header, key);
    if (!entry) return NULL;
    if (sscanf(entry + strlen(key), "\"dtype\":\"%7[^\"]\"", dtype) != 1) fail("no dtype", name);
    char *offsets = strstr(entry, "\"data_offsets\":[");
    if (!offsets || sscanf(offsets + 16, "%llu,%llu", &begin, &end) != 2) fail("no offsets", name);
    if (begin > end || end > file.size) fail("lies outside of its file", name);
    return *bytes = end - begin, file.data + begin;
}

static float from_half(uint16_t bits) {
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    float size = exponent ? ldexpf((float)(1024 + fraction), exponent - 25) : ldexpf((float)fraction, -24);
    return bits >> 15 ? -size : size;
}

/* A tensor in float32; NULL if no tensor has this name. */
static float *tensor(Tensors file, const char *name) {
    char dtype[8], *from;
    size_t bytes;
    if (!(from = raw(file, name, dtype, &bytes))) return NULL;
    size_t count = bytes / (strcmp(dtype, "F32") ? 2 : 4);
    float *to = room(count);
    if (!strcmp(dtype, "F32")) return memcpy(to, from, bytes);
    for (size_t i = 0; i < count; i++) {
        uint16_t half;
        memcpy(&half, from + 2 * i, 2);
        uint32_t brain = (uint32_t)half << 16;
        if (!strcmp(dtype, "F16")) to[i] = from_half(half);
        else if (!strcmp(dtype, "BF16")) memcpy(to + i, &brain, 4);
        else fail("expected F32, F16 or BF16", name);
    }
    return to;
}

static char *config; /* config.json */

static char *setting(const char *name) { /* returns the text after "name": */
    char key[64];
    snprintf(key, sizeof key, "\"%s\":", name);
    char *found = strstr(config, key);
    return found ? found + strlen(key) : NULL;
}

static int whole(const char *name) {
    char *found = setting(name);
    if (!found || atoi(found) < 1) fail("expected a whole number in config.json", name);
    return atoi(found);
}

/* --- stages ------------------------------------------------------------------------------------------------------ */

typedef struct { char name[96], shape[64]; float *data; size_t bytes; } Stage;
static Stage *stages;
static size_t n_stages;
static int text; /* the number of the current text */
static char layer[32]; /* "layers.0." in the first layer, "" outside of them */

/* Keeps a copy of a stage of this text, and returns the array. */
static float *note(const char *name, float *x, int dims, ...) {
    stages = realloc(stages, (n_stages + 1) * sizeof *stages);
    if (!stages) fail("out of memory", name);
    Stage *stage = &stages[n_stages++];
    size_t count = 1, used = 0;
    va_list sizes;
    va_start(sizes, dims);
    for (int i = 0; i < dims; i++) {
        int size = va_arg(sizes, int);
        used += (size_t)snprintf(stage->shape + used, sizeof stage->shape - used, i ? ",%d" : "%d", size);
        count *= (size_t)size;
    }
    va_end(sizes);
    snprintf(stage->name, sizeof stage->name, "%d/%s%s", text, layer, name);
    stage->bytes = count * sizeof(float);
    stage->data = memcpy(room(count), x, stage->bytes);
    return x;
}

static void write_stages(const char *path) {
    char *header = need(n_stages * 256 + 16), *end = header;
    size_t offset = 0;
    for (size_t i = 0; i < n_stages; offset += stages[i++].bytes)
        end += sprintf(end, "%c\"%s\":{\"dtype\":\"F32\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}", i ? ',' : '{',
                       stages[i].name, stages[i].shape, offset, offset + stages[i].bytes);
    uint64_t length = (uint64_t)(end - header) + 1;
    *end = '}';
    FILE *file = fopen(path, "wb");
    int wrong = !file || fwrite(&length, 8, 1, file) != 1 || fwrite(header, 1, length, file) != length;
    for (size_t i = 0; !wrong && i < n_stages; i++) wrong = fwrite(stages[i].data, 1, stages[i].bytes, file) != stages[i].bytes;
    if (wrong || fclose(file)) fail("cannot be written", path);
}

/* --- formulas ---------------------------------------------------------------------------------------------------- */

static Tensors weights;
static const char *prefix; /* of the names of the encoder's tensors; "" in a base model */

static float *weight(const char *module, const char *part) {
    char name[256];
    snprintf(name, sizeof name, "%s.%s", module, part);
    float *found = tensor(weights, name);
    if (!found) fail("no such weight", name);
    return found;
}

/* x W^T + b, rows (T, in) -> (T, out); W is stored as (out, in) */
static float *product(const float *x, int T, int in, int out, const float *w, const float *b) {
    float *y = room((size_t)T * out);
    for (int t = 0; t < T; t++)
        for (int o = 0; o < out; o++) {
            float sum = b[o];
            for (int i = 0; i < in; i++) sum += x[t * in + i] * w[o * in + i];
            y[t * out + o] = sum;
        }
    return y;
}

static float *linear(const char *module, const float *x, int T, int in, int out) {
    float *w = weight(module, "weight"), *b = weight(module, "bias"), *y = product(x, T, in, out, w, b);
    return free(w), free(b), y;
}

/* (x - mean) / sqrt(variance + eps) * weight + bias, by rows */
static float *layer_norm(const char *module, const float *x, int T, int D) {
    float *w = weight(module, "weight"), *b = weight(module, "bias"), *y = room((size_t)T * D);
#ifdef UNBIASED_VARIANCE
    const int degrees = D - 1;
#else
    const int degrees = D;
#endif
    for (int t = 0; t < T; t++, x += D) {
        float mean = 0, variance = 0;
        for (int d = 0; d < D; d++) mean += x[d] / D;
        for (int d = 0; d < D; d++) variance += (x[d] - mean) * (x[d] - mean) / degrees;
        for (int d = 0; d < D; d++) y[t * D + d] = (x[d] - mean) / sqrtf(variance + 1e-12f) * w[d] + b[d];
    }
    return free(w), free(b), y;
}

static void softmax(float *x, int n, int step) { /* of n numbers that are `step` elements apart */
    float largest = x[0], sum = 0;
    for (int i = 1; i < n; i++) largest = fmaxf(largest, x[i * step]);
    for (int i = 0; i < n; i++) sum += x[i * step] = expf(x[i * step] - largest);
    for (int i = 0; i < n; i++) x[i * step] /= sum;
}

static float activation(float x, const char *name) {
    if (!strncmp(name, "relu", 4)) return fmaxf(x, 0);
    if (!strncmp(name, "silu", 4)) return x / (1 + expf(-x));
    if (!strncmp(name, "gelu_new", 8)) return 0.5f * x * (1 + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
    if (strncmp(name, "gelu\"", 5)) fail("unknown activation", name);
#ifdef QUICK_GELU
    return x / (1 + expf(-1.702f * x));
#else
    return 0.5f * x * (1 + erff(x * 0.70710678f));
#endif
}

static void activate(float *x, int count, const char *name) {
    for (int i = 0; i < count; i++) x[i] = activation(x[i], name);
}

static float *add(const float *x, const float *y, int count) {
    float *sum = room((size_t)count);
    for (int i = 0; i < count; i++) sum[i] = x[i] + y[i];
    return sum;
}

/* (T, D) -> (H, T, K): head h has K neighbouring columns */
#ifdef INTERLEAVED_HEADS
#define COLUMN(h, k, H, K) ((k) * (H) + (h))
#else
#define COLUMN(h, k, H, K) ((h) * (K) + (k))
#endif

static float *split(const float *x, int T, int H, int K) {
    float *y = room((size_t)T * H * K);
    for (int h = 0; h < H; h++)
        for (int t = 0; t < T; t++)
            for (int k = 0; k < K; k++) y[(h * T + t) * K + k] = x[t * H * K + COLUMN(h, k, H, K)];
    return y;
}

/* --- the model --------------------------------------------------------------------------------------------------- */

static const char *module(const char *name) { /* returns the name of an encoder module in the current layer */
    static char full[256];
    int n = *layer ? snprintf(full, sizeof full, "%stransformer.layer.%d.", prefix, atoi(layer + 7))
                   : snprintf(full, sizeof full, "%sembeddings.", prefix);
    return snprintf(full + n, sizeof full - n, "%s", name), full;
}

static float *attention(const float *x, int T, int D, int H) {
    static const char *names[] = {"q_lin", "attention.query", "k_lin", "attention.key", "v_lin", "attention.value"};
    int K = D / H;
    float *heads[3], *scores = room((size_t)H * T * T), *context = room((size_t)T * D), *combined = room((size_t)T * D);
    for (int i = 0; i < 3; i++) {
        char theirs[32], split_name[48];
        snprintf(theirs, sizeof theirs, "attention.%s", names[2 * i]);
        snprintf(split_name, sizeof split_name, "%s_heads", names[2 * i + 1]);
        float *rows = note(names[2 * i + 1], linear(module(theirs), x, T, D, D), 2, T, D);
        heads[i] = note(split_name, split(rows, T, H, K), 3, H, T, K);
    }
    for (int h = 0; h < H; h++)
        for (int t = 0; t < T; t++)
            for (int s = 0; s < T; s++) {
                float *score = &scores[(h * T + t) * T + s];
                for (int k = 0; k < K; k++) *score += heads[0][(h * T + t) * K + k] * heads[1][(h * T + s) * K + k];
                *score /= sqrtf((float)K);
            }
    note("attention.scores", scores, 3, H, T, T);
    for (int row = 0; row < H * T; row++) softmax(scores + row * T, T, 1);
    note("attention.weights", scores, 3, H, T, T);
    for (int h = 0; h < H; h++)
        for (int t = 0; t < T; t++)
            for (int k = 0; k < K; k++) {
                float *sum = &context[(h * T + t) * K + k];
                for (int s = 0; s < T; s++) *sum += scores[(h * T + t) * T + s] * heads[2][(h * T + s) * K + k];
                combined[t * D + COLUMN(h, k, H, K)] = *sum;
            }
    note("attention.context", context, 3, H, T, K);
    note("attention.combined", combined, 2, T, D);
    return note("attention.output", linear(module("attention.out_lin"), combined, T, D, D), 2, T, D);
}

static float *encode(const int64_t *ids, int T, int D) {
    int F = whole("hidden_dim"), H = whole("n_heads"), V = whole("vocab_size");
    float *words = weight(module("word_embeddings"), "weight"), *rows = room((size_t)T * D);
    float *places = weight(module("position_embeddings"), "weight");
    if (T > whole("max_position_embeddings")) fail("a text is too long", "ids");
    for (int t = 0; t < T; t++) {
        if (ids[t] < 0 || ids[t] >= V) fail("outside of the vocabulary", "ids");
        memcpy(rows + t * D, words + ids[t] * D, D * sizeof(float));
    }
    note("embeddings.token", rows, 2, T, D), note("embeddings.position", places, 2, T, D);
    float *x = note("embeddings.sum", add(rows, places, T * D), 2, T, D);
    x = note("embeddings.norm", layer_norm(module("LayerNorm"), x, T, D), 2, T, D);
    for (int i = 0; i < whole("n_layers"); i++) {
        snprintf(layer, sizeof layer, "layers.%d.", i);
        float *y = note("attention_residual", add(x, attention(x, T, D, H), T * D), 2, T, D);
        y = note("attention_norm", layer_norm(module("sa_layer_norm"), y, T, D), 2, T, D);
        float *hidden = note("ffn.hidden", linear(module("ffn.lin1"), y, T, D, F), 2, T, F);
        activate(hidden, T * F, strchr(setting("activation"), '"') + 1);
        note("ffn.activation", hidden, 2, T, F);
        float *output = note("ffn.output", linear(module("ffn.lin2"), hidden, T, F, D), 2, T, D);
        x = note("ffn_residual", add(y, output, T * D), 2, T, D);
        x = note("ffn_norm", layer_norm(module("output_layer_norm"), x, T, D), 2, T, D);
    }
    return *layer = 0, x;
}

/* Logits of n rows by C labels, and their probabilities */
static void classify(const float *x, int n, int D, int C, int of_text) {
    float *logits = note("logits", linear("classifier", x, n, D, C), of_text ? 1 : 2, of_text ? C : n, C);
    if (strstr(config, "ForMultipleChoice")) return; /* its softmax is over all texts */
    int sigmoid = setting("problem_type") && strstr(setting("problem_type"), "multi_label");
    for (int row = 0; row < n && !sigmoid; row++) softmax(logits + row * C, C, 1);
    for (int i = 0; i < C && sigmoid; i++) logits[i] = 1 / (1 + expf(-logits[i]));
    note("probabilities", logits, of_text ? 1 : 2, of_text ? C : n, C);
}

static void answer(float *x, int T, int D) {
    int C = 0, V = whole("vocab_size");
    for (char *label = setting("id2label"); label && *label != '}'; label++) C += *label == ':';
    if (strstr(config, "ForSequenceClassification") || strstr(config, "ForMultipleChoice")) {
        float *pooled = note("pooler", linear("pre_classifier", x, 1, D, D), 1, D);
        activate(pooled, D, "relu"), note("pooled", pooled, 1, D);
        classify(pooled, 1, D, C ? C : 1, 1);
    } else if (strstr(config, "ForTokenClassification")) {
        classify(x, T, D, C, 0);
    } else if (strstr(config, "ForQuestionAnswering")) {
        float *both = linear("qa_outputs", x, T, D, 2), *column = room((size_t)T);
        for (int end = 0; end < 2; end++) {
            for (int t = 0; t < T; t++) column[t] = both[2 * t + end];
            note(end ? "end_logits" : "start_logits", column, 1, T);
            softmax(column, T, 1);
            note(end ? "end_probabilities" : "start_probabilities", column, 1, T);
        }
    } else if (strstr(config, "ForMaskedLM")) {
        float *hidden = note("head.hidden", linear("vocab_transform", x, T, D, D), 2, T, D);
        activate(hidden, T * D, strchr(setting("activation"), '"') + 1);
        note("head.activation", hidden, 2, T, D);
        hidden = note("head.norm", layer_norm("vocab_layer_norm", hidden, T, D), 2, T, D);
        float *own = tensor(weights, "vocab_projector.weight"); /* NULL: tied to the token table */
        float *w = own ? own : weight(module("word_embeddings"), "weight"), *b = weight("vocab_projector", "bias");
        float *logits = note("logits", product(hidden, T, D, V, w, b), 2, T, V);
        for (int t = 0; t < T; t++) softmax(logits + t * V, V, 1);
        note("probabilities", logits, 2, T, V);
    }
}

int main(int argc, char **argv) {
    if (argc != 4) fail("expected MODEL IDS OUTPUT", "arguments");
    size_t size;
    config = read_file(argv[1], "config.json", &size);
    char *type = setting("model_type");
    if (!type || !strstr(type, "\"distilbert\"")) fail("is not DistilBERT", argv[1]);
    weights = open_tensors(argv[1], "model.safetensors");
    prefix = strstr(config, "\"DistilBertModel\"") ? "" : "distilbert.";
    Tensors inputs = open_tensors(argv[2], "");
    for (;; text++) {
        char name[32], dtype[8], *ids;
        snprintf(name, sizeof name, "%d/ids", text);
        if (!(ids = raw(inputs, name, dtype, &size))) break;
        if (strcmp(dtype, "I64")) fail("expected I64", name);
        int64_t *copy = memcpy(need(size), ids, size);
        int T = (int)(size / 8), D = whole("dim");
        answer(encode(copy, T, D), T, D);
    }
    return write_stages(argv[3]), 0;
}
