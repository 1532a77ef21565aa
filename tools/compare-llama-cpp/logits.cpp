// Writes the logits of a GGUF file at every position of some prompts, as llama.cpp computes them on the CPU.
//
//     logits MODEL PROMPTS OUT [KEY=INTEGER]
//
// PROMPTS and OUT as in crates/model/examples/logits.rs. KEY=INTEGER overrides one number of the file's metadata. Keys and values are
// cached in F32, and attention is computed without flash attention, so that only float32 rounding is left.
#include "llama.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

static const int CONTEXT = 256;

static std::vector<int32_t> read_words(const char * path) {
    std::vector<int32_t> words;
    FILE * file = fopen(path, "rb");
    if (!file) { perror(path); exit(1); }
    for (int32_t word; fread(&word, sizeof word, 1, file) == 1;) { words.push_back(word); }
    fclose(file);
    return words;
}

static llama_context * new_context(llama_model * model) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = params.n_batch = params.n_ubatch = CONTEXT;
    params.n_threads = params.n_threads_batch = 1;
    params.type_k = params.type_v = GGML_TYPE_F32;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.swa_full = true;
    return llama_init_from_model(model, params);
}

int main(int argc, char ** argv) {
    if (argc < 4) { fprintf(stderr, "expected MODEL PROMPTS OUT [KEY=INTEGER]\n"); return 2; }
    llama_log_set([](ggml_log_level level, const char * text, void *) {
        if (level == GGML_LOG_LEVEL_ERROR) { fputs(text, stderr); }
    }, nullptr);
    llama_backend_init();

    llama_model_params model_params = llama_model_default_params();
    static llama_model_kv_override overrides[2] = {};
    if (argc > 4) {
        const char * equals = strchr(argv[4], '=');
        if (!equals) { fprintf(stderr, "expected KEY=INTEGER\n"); return 2; }
        snprintf(overrides[0].key, sizeof overrides[0].key, "%.*s", (int) (equals - argv[4]), argv[4]);
        overrides[0].tag = LLAMA_KV_OVERRIDE_TYPE_INT;
        overrides[0].val_i64 = atoll(equals + 1);
        model_params.kv_overrides = overrides;
    }
    llama_model * model = llama_model_load_from_file(argv[1], model_params);
    if (!model) { return 1; }
    const int vocab_size = llama_vocab_n_tokens(llama_model_get_vocab(model));

    const std::vector<int32_t> words = read_words(argv[2]);
    FILE * out = fopen(argv[3], "wb");
    if (!out) { perror(argv[3]); return 1; }
    size_t at = 1;
    for (int prompt = 0; prompt < words[0]; ++prompt) {
        const int n_tokens = words[at++];
        llama_context * context = new_context(model);
        if (!context) { return 1; }
        llama_batch batch = llama_batch_init(n_tokens, 0, 1);
        batch.n_tokens = n_tokens;
        for (int i = 0; i < n_tokens; ++i) {
            batch.token[i] = words[at++];
            batch.pos[i] = i;
            batch.n_seq_id[i] = 1;
            batch.seq_id[i][0] = 0;
            batch.logits[i] = 1;
        }
        if (llama_decode(context, batch)) { return 1; }
        for (int i = 0; i < n_tokens; ++i) { fwrite(llama_get_logits_ith(context, i), sizeof(float), vocab_size, out); }
        llama_batch_free(batch);
        llama_free(context);
    }
    fclose(out);
    llama_model_free(model);
    return 0;
}
