/* An offer as a ds_config: what DeepSpeed knows under its own keys, the rest under "czero". */
#include "engine/tune/tune_impl.h"
#include "formats/file_io.h"
#include "formats/json/json_write.h"

#include <stdlib.h>
#include <string.h>

static const char *const devices[] = {"none", "cpu", "nvme"};

static void begin(struct json_writer *w, const char *key)
{
    json_write_key(w, key);
    json_begin_object(w);
}

/* Labels that a head of classes was trained with, or will be. */
static bool classifies(const struct cz_model *model)
{
    switch (cz_model_labels(model)) {
    case CZ_LABELS_CLASS:
    case CZ_LABELS_TOKEN_CLASS:
    case CZ_LABELS_VALUES:
    case CZ_LABELS_MULTI: return true;
    case CZ_LABELS_NEXT:
    case CZ_LABELS_SAME:
    case CZ_LABELS_REPLACED: break;
    }
    return false;
}

/* Recipes that train most models, not tuned ones: users change the rate first. Smaller models take
 * larger steps: 3e-4 is what the presets of configs/ have. Runs whose rate falls may be short. */
struct tune_recipe tune_recipe_of(const struct cz_model *model, bool adapts)
{
    const size_t numel = param_table_numel(model_params(model), false);
    const bool has_weights = cz_model_has_weights(model), has_classes = classifies(model);
    struct tune_recipe r = {.name = "pretraining",
                            .lr = numel < 20000000      ? 1e-3
                                  : numel < 1000000000  ? 3e-4
                                  : numel < 10000000000 ? 1.2e-4
                                                        : 6e-5,
                            .beta2 = 0.95,
                            .weight_decay = 0.1,
                            .warmup_steps = 100};
    if (has_weights) r.name = "fine-tuning";
    if (has_weights) r.lr = has_classes ? 5e-5 : 2e-5;
    if (has_weights || has_classes) {
        r.beta2 = 0.999;
        r.weight_decay = 0.01;
        r.warmup_steps = 10;
        r.total_steps = TUNE_AUTO;
    }
    if (adapts) {
        r = (struct tune_recipe){.name = "an adapter",
                                 .lr = 2e-4,
                                 .beta2 = 0.999,
                                 .warmup_steps = 10,
                                 .total_steps = TUNE_AUTO};
    }
    return r;
}

void tune_keep_recipe(struct tune *t, const struct cz_model *model)
{
    const struct tune_recipe *given = &t->options.recipe;
    struct tune_recipe r = tune_recipe_of(model, t->options.lora != NULL);
    if (given->lr > 0) r.lr = given->lr;
    if (given->beta2 > 0) r.beta2 = given->beta2;
    if (given->weight_decay > 0) r.weight_decay = given->weight_decay;
    if (t->options.fall == TUNE_FALL_AT_THE_END) r.warmup_steps = r.total_steps = TUNE_AUTO;
    if (given->warmup_steps > 0) r.warmup_steps = given->warmup_steps;
    if (t->options.fall == TUNE_FALL_WHEN_GIVEN) r.total_steps = given->total_steps;
    t->recipe = r;
}

static void put_steps(struct json_writer *w, const char *key, int64_t steps)
{
    if (steps == TUNE_AUTO)
        json_put_string(w, key, "auto");
    else
        json_put_int(w, key, steps);
}

static void write_optimizer(struct json_writer *w, const struct tune_recipe *r)
{
    begin(w, "optimizer");
    json_put_string(w, "type", optim_type_default()->name);
    begin(w, "params");
    /* Where the run fills in the warm-up, the command line has the rate: a later --lr replaces it.
     */
    if (r->warmup_steps == TUNE_AUTO)
        json_put_string(w, "lr", "auto");
    else
        json_put_double(w, "lr", r->lr);
    json_write_key(w, "betas");
    json_begin_array(w);
    json_write_double(w, 0.9);
    json_write_double(w, r->beta2);
    json_end_array(w);
    json_put_double(w, "eps", 1e-8);
    json_put_double(w, "weight_decay", r->weight_decay);
    json_end_object(w);
    json_end_object(w);
    /* Where the run fills in total_num_steps, it also fills in the rate from the optimizer, so that
     * users change the rate in one place. */
    begin(w, "scheduler");
    json_put_string(w, "type", r->total_steps != 0 ? "WarmupDecayLR" : "WarmupLR");
    begin(w, "params");
    if (r->total_steps != 0) put_steps(w, "total_num_steps", r->total_steps);
    json_put_double(w, "warmup_min_lr", 0);
    if (r->total_steps == TUNE_AUTO)
        json_put_string(w, "warmup_max_lr", "auto");
    else
        json_put_double(w, "warmup_max_lr", r->lr);
    put_steps(w, "warmup_num_steps", r->warmup_steps);
    json_put_string(w, "warmup_type", "linear");
    json_end_object(w);
    json_end_object(w);
}

#define DEEPSPEED_BUFFER_NUMEL ((size_t)100000000) /* its default */

/* Stage 0 needs no sizes; keys of stage 3 mean nothing below it. */
static void write_zero(struct json_writer *w, const struct tune *t, const struct tune_offer *o)
{
    begin(w, "zero_optimization");
    json_put_int(w, "stage", o->stage);
    if (o->stage > 0) {
        json_put_bool(w, "overlap_comm", true);
        json_put_int(w, "reduce_bucket_size", o->bucket_numel);
    }
    if (o->stage == 3) {
        json_put_int(w, "sub_group_size", 100000000);
        json_put_int(w, "stage3_prefetch_bucket_size", o->prefetch_numel);
        json_put_int(w, "stage3_max_live_parameters", o->live_numel);
        json_put_int(w, "stage3_max_reuse_distance", o->live_numel);
        json_put_bool(w, "stage3_gather_16bit_weights_on_model_save", true);
    }
    /* Pipelining hides the swap file behind the kernels; it costs only the ring's memory. */
    if (o->optimizer != CONFIG_OFFLOAD_NONE) {
        begin(w, "offload_optimizer");
        json_put_string(w, "device", devices[o->optimizer]);
        if (o->optimizer == CONFIG_OFFLOAD_NVME) {
            json_put_string(w, "nvme_path", t->nvme_path);
            json_put_bool(w, "pipeline_read", true);
            json_put_bool(w, "pipeline_write", true);
        }
        json_put_bool(w, "pin_memory", t->options.gpu_nbytes > 0);
        if (o->ratio < 1) json_put_double(w, "ratio", o->ratio);
        json_end_object(w);
    }
    /* DeepSpeed wants buffers that hold the largest parameter; here they come from the model. */
    if (o->params != CONFIG_OFFLOAD_NONE) {
        begin(w, "offload_param");
        json_put_string(w, "device", devices[o->params]);
        if (o->params == CONFIG_OFFLOAD_NVME) {
            json_put_string(w, "nvme_path", t->nvme_path);
            if (t->largest_numel > DEEPSPEED_BUFFER_NUMEL)
                json_put_int(w, "buffer_size", (int64_t)t->largest_numel);
            json_put_int(w, "max_in_cpu", o->max_in_cpu);
        }
        json_put_bool(w, "pin_memory", t->options.gpu_nbytes > 0);
        json_end_object(w);
    }
    json_end_object(w);
}

static void write_disks(struct json_writer *w, const struct tune *t)
{
    const struct tune_options *o = &t->options;
    json_write_key(w, "nvme_paths");
    json_begin_array(w);
    for (size_t i = 0; i < o->n_nvme_paths; i++) json_write_string(w, t->nvme_paths[i]);
    json_end_array(w);
    if (o->nvme_rates[0] == 0) return;
    json_write_key(w, "nvme_rates");
    json_begin_array(w);
    for (size_t i = 0; i < o->n_nvme_paths; i++) json_write_double(w, o->nvme_rates[i]);
    json_end_array(w);
}

/* As the option --lora has them: names in one text. */
static void write_lora(struct json_writer *w, const struct config_lora *lora)
{
    begin(w, "lora");
    json_put_int(w, "rank", lora->rank);
    if (lora->alpha > 0) json_put_double(w, "alpha", lora->alpha);
    if (lora->targets) json_put_string(w, "targets", lora->targets);
    if (lora->layers) json_put_string(w, "layers", lora->layers);
    if (lora->dropout > 0) json_put_double(w, "dropout", lora->dropout);
    if (lora->rslora) json_put_bool(w, "rslora", true);
    if (lora->dora) json_put_bool(w, "dora", true);
    if (lora->modules_to_save) json_put_string(w, "modules_to_save", lora->modules_to_save);
    json_end_object(w);
}

/* Keys in the order of DeepSpeed's documentation; what equals a default is left out. */
cz_status tune_config(const struct tune *t, const struct tune_offer *o, char **out)
{
    struct json_writer w;
    json_writer_init(&w, 2);
    json_begin_object(&w);
    json_put_int(&w, "train_micro_batch_size_per_gpu", o->micro_batch);
    json_put_int(&w, "gradient_accumulation_steps", o->accumulation);
    json_put_double(&w, "gradient_clipping", 1);
    write_optimizer(&w, &t->recipe);
    /* fp32 is DeepSpeed's default and needs no section. */
    if (t->options.dtype != DTYPE_F32) {
        begin(&w, t->options.dtype == DTYPE_BF16 ? "bf16" : "fp16");
        json_put_bool(&w, "enabled", true);
        json_end_object(&w);
    }
    write_zero(&w, t, o);
    /* The measured block size and depth, or values that suit most NVMe drives. */
    const struct machine_profile *m = t->options.profile;
    const bool on_nvme = o->optimizer == CONFIG_OFFLOAD_NVME || o->params == CONFIG_OFFLOAD_NVME;
    if (on_nvme) {
        bool is_measured = m && m->nvme_block_nbytes > 0 && m->nvme_depth > 0;
        begin(&w, "aio");
        json_put_int(&w, "block_size", is_measured ? (int64_t)m->nvme_block_nbytes : 1 << 20);
        json_put_int(&w, "queue_depth", is_measured ? m->nvme_depth : 16);
        json_end_object(&w);
    }
    /* DeepSpeed's section has no interval: czero's own section carries it. */
    if (o->checkpoint_every != 0) {
        begin(&w, "activation_checkpointing");
        json_put_bool(&w, "cpu_checkpointing", o->cpu_checkpointing);
        json_end_object(&w);
    }
    /* What DeepSpeed does not know. */
    const bool is_striped = on_nvme && t->options.n_nvme_paths > 1;
    const bool has_profile = on_nvme && *t->profile_path;
    const struct config_lora *lora = t->options.lora;
    if (o->checkpoint_every != 0 || o->gradients || is_striped || has_profile || lora) {
        begin(&w, "czero");
        if (lora) write_lora(&w, lora);
        if (o->checkpoint_every > 0) {
            begin(&w, "activation_checkpointing");
            json_put_int(&w, "every", o->checkpoint_every);
            json_end_object(&w);
        }
        if (o->gradients) json_put_bool(&w, "offload_gradients", true);
        if (is_striped) write_disks(&w, t);
        if (has_profile) json_put_string(&w, "machine_profile", t->profile_path);
        json_end_object(&w);
    }
    json_end_object(&w);
    json_write_text(&w, "\n");
    *out = NULL;
    return json_writer_take(&w, out, NULL);
}

cz_status tune_config_save(const struct tune *t, const struct tune_offer *offer, const char *path)
{
    char *text;
    TRY(tune_config(t, offer, &text));
    cz_status st = file_save(path, text, strlen(text));
    free(text);
    return st;
}
