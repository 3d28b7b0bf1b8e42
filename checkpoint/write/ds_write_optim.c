/* optim_states.pt of every stage, and what stage 0 keeps in the model file instead
 * (docs/deepspeed-behaviour.md, "Optimizer files"). Keys, their order and the types of their values
 * are DeepSpeed's, including the quirks: its loader asks for them by type. */
#include "checkpoint/write/ds_write_impl.h"

#include <math.h>
#include <stdio.h>

/* ---- loss scale ------------------------------------------------------------------------------ */

#define SCALER_MODULE "deepspeed.runtime.fp16.loss_scaler"

static void put_dynamic_scaler(struct pickle_writer *p, const struct ckpt_scaler *s)
{
    pickle_put_new(p, SCALER_MODULE, "DynamicLossScaler");
    pickle_state_begin(p);
    ds_pair_double(p, "cur_scale", s->scale);
    ds_pair_bool(p, "dynamic", true);
    ds_pair_int(p, "cur_iter", s->iter);
    ds_pair_int(p, "last_overflow_iter", s->last_overflow_iter);
    ds_pair_double(p, "scale_factor", s->factor);
    ds_pair_int(p, "scale_window", s->window);
    /* A whole number is written as an integer, as the config has it. */
    if (s->min_scale == floor(s->min_scale) && fabs(s->min_scale) < 9e15)
        ds_pair_int(p, "min_scale", (int64_t)s->min_scale);
    else
        ds_pair_double(p, "min_scale", s->min_scale);
    ds_pair_int(p, "delayed_shift", s->delayed_shift);
    ds_pair_int(p, "cur_hysteresis", s->hysteresis);
    ds_pair_bool(p, "consecutive_hysteresis", s->consecutive_hysteresis);
    ds_pair_bool(p, "raise_error_at_min_scale", true);
    pickle_put_string(p, "dtype");
    pickle_put_global(p, "torch", "float16");
    pickle_state_end(p);
}

/* Without fp16 DeepSpeed still saves a LossScaler, of scale 1. */
static void put_scaler(struct ckpt_writer *w, struct pickle_writer *p)
{
    const struct ckpt_scaler *s = &w->options->scaler;
    bool dynamic = w->options->fp16 && s->dynamic;
    pickle_put_string(p, "loss_scaler");
    if (dynamic) {
        put_dynamic_scaler(p, s);
    } else {
        pickle_put_new(p, SCALER_MODULE, "LossScaler");
        pickle_state_begin(p);
        ds_pair_double(p, "cur_scale", w->options->fp16 ? s->scale : 1.0);
        ds_pair_bool(p, "dynamic", false);
        pickle_state_end(p);
    }
    ds_pair_bool(p, "dynamic_loss_scale", dynamic);
    ds_pair_bool(p, "overflow", w->options->overflow);
}

/* An enum is pickled as a call of its class. */
static void put_zero_stage(struct ckpt_writer *w, struct pickle_writer *p)
{
    pickle_put_string(p, "zero_stage");
    pickle_call_begin(p, "deepspeed.runtime.zero.config", "ZeroStageEnum");
    pickle_put_int(p, w->options->stage);
    pickle_call_end(p);
}

/* ---- stages 1 and 2 -------------------------------------------------------------------------- */

/* group_paddings are of this rank's partition; param_alignment_paddings are the gaps after each
 * parameter, 0 unless parameter_alignment is on. */
static void put_paddings(struct ckpt_writer *w, struct pickle_writer *p)
{
    const struct ckpt_write_options *o = w->options;
    pickle_put_string(p, "group_paddings");
    pickle_list_begin(p);
    for (size_t g = 0; g < o->n_groups; g++)
        pickle_put_int(p, (int64_t)flat_group_padding(o->groups[g].flat, o->rank));
    pickle_list_end(p);
    pickle_put_string(p, "param_alignment_paddings");
    pickle_list_begin(p);
    for (size_t g = 0; g < o->n_groups; g++) {
        const struct flat_group *flat = o->groups[g].flat;
        pickle_list_begin(p);
        for (size_t i = 0; i < flat->n_params; i++) {
            size_t end = flat->params[i].off + flat->params[i].numel;
            size_t next = i + 1 < flat->n_params ? flat->params[i + 1].off : end;
            pickle_put_int(p, (int64_t)(next - end));
        }
        pickle_list_end(p);
    }
    pickle_list_end(p);
    pickle_put_string(p, "partition_count");
    pickle_list_begin(p);
    for (size_t g = 0; g < o->n_groups; g++) pickle_put_int(p, o->world_size);
    pickle_list_end(p);
}

/* Which part of each parameter this rank's partition holds, and where. DeepSpeed's own are wrong
 * under round_robin_gradients (docs/deepspeed-behaviour.md, "Universal folders"); these name the
 * places where the elements are. */
static void put_slice_mappings(struct ckpt_writer *w, struct pickle_writer *p)
{
    const struct ckpt_write_options *o = w->options;
    pickle_put_string(p, "param_slice_mappings");
    pickle_list_begin(p);
    for (size_t g = 0; g < o->n_groups; g++) {
        const struct flat_group *flat = o->groups[g].flat;
        size_t begin = (size_t)o->rank * flat->partition, pos = 0;
        struct flat_piece piece;
        pickle_ordered_dict_begin(p);
        while (flat_group_next(flat, begin, begin + flat->partition, &pos, &piece)) {
            pickle_put_string(p, o->table->params[flat->params[piece.pos].param_idx].name);
            pickle_put_new(p, "deepspeed.utils.tensor_fragment", "fragment_address");
            pickle_state_begin(p);
            ds_pair_int(p, "numel", (int64_t)piece.numel);
            ds_pair_int(p, "start", (int64_t)piece.range_off);
            pickle_state_end(p);
        }
        pickle_dict_end(p);
    }
    pickle_list_end(p);
}

/* ---- stage 3 --------------------------------------------------------------------------------- */

/* ds_id is the first and last parameter's number, by which DeepSpeed names swap files. */
static void put_sub_groups(struct ckpt_writer *w, struct pickle_writer *p)
{
    const struct ckpt_write_options *o = w->options;
    pickle_put_string(p, "fp32_flat_groups");
    pickle_list_begin(p);
    for (size_t g = 0; g < o->n_groups; g++) {
        const struct shard_group *shard = o->groups[g].shard;
        for (size_t s = 0; s < shard->n_sub_groups; s++) {
            const struct shard_sub_group *sub = &shard->sub_groups[s];
            char ds_id[48];
            snprintf(ds_id, sizeof ds_id, "%zu_%zu", shard->params[sub->first].param_idx,
                     shard->params[sub->first + sub->n_params - 1].param_idx);
            const struct ds_optim_tensor a = {.file = DS_OPTIM,
                                              .stream = ds_stream_of(w, CKPT_FROM_MASTER, g, 0),
                                              .group = g,
                                              .idx = s,
                                              .dtype = o->master_dtype,
                                              .requires_grad = true,
                                              .ds_id = ds_id};
            ds_put_optim_tensor(w, &a);
        }
    }
    pickle_list_end(p);
}

void ds_put_optim(struct ckpt_writer *w)
{
    struct pickle_writer *p = w->files[DS_OPTIM].pickle;
    pickle_dict_begin(p);
    pickle_put_string(p, "optimizer_state_dict");
    pickle_dict_begin(p);
    if (w->options->stage == 3) {
        put_zero_stage(w, p);
        put_scaler(w, p);
        ds_pair_int(p, "partition_count", w->options->world_size);
        pickle_put_string(p, "optimizer_state_dict");
        ds_put_torch(w, DS_OPTIM);
        put_sub_groups(w, p);
    } else {
        put_scaler(w, p);
        ds_pair_double(p, "clip_grad", w->options->clip_grad);
        pickle_put_string(p, "base_optimizer_state");
        ds_put_torch(w, DS_OPTIM);
        const struct ckpt_write_options *o = w->options;
        /* Masters are views without the padding, whose elements the storage still holds. */
        pickle_put_string(p, "single_partition_of_fp32_groups");
        pickle_list_begin(p);
        for (size_t g = 0; g < o->n_groups; g++) {
            const struct ds_optim_tensor a = {.file = DS_OPTIM,
                                              .stream = ds_stream_of(w, CKPT_FROM_MASTER, g, 0),
                                              .group = g,
                                              .n_hidden =
                                                  flat_group_padding(o->groups[g].flat, o->rank),
                                              .dtype = o->master_dtype,
                                              .requires_grad = true};
            ds_put_optim_tensor(w, &a);
        }
        pickle_list_end(p);
        put_zero_stage(w, p);
        put_paddings(w, p);
        ds_pair_string(p, "ds_version", CKPT_DS_VERSION);
        put_slice_mappings(w, p);
    }
    pickle_dict_end(p);
    pickle_put_string(p, "ds_config");
    ds_put_json(p, json_root(w->config));
    ds_pair_string(p, "ds_version", CKPT_DS_VERSION);
    pickle_dict_end(p);
}

/* ---- stage 0 --------------------------------------------------------------------------------- */

/* The fused wrapper has one flat tensor per group, the unfused one a list of tensors. */
static void put_plain_masters(struct ckpt_writer *w, struct pickle_writer *p, size_t group)
{
    const struct ckpt_write_options *o = w->options;
    struct ds_optim_tensor a = {.file = DS_MODEL,
                                .stream = ds_stream_of(w, CKPT_FROM_MASTER, group, 0),
                                .group = group,
                                .dtype = o->master_dtype,
                                .requires_grad = true};
    bool is_plain = ds_is_plain(w);
    if (is_plain) pickle_list_begin(p);
    for (size_t i = 0; i < ds_n_optim_params(w, group); i++) {
        a.idx = is_plain ? ds_flat_position(o->groups[group].flat, i) : i;
        ds_put_optim_tensor(w, &a);
    }
    if (is_plain) pickle_list_end(p);
}

/* Keys of a wrapper that scales the loss. Without fp16 cur_iter counts all steps, since none
 * overflows. */
static void put_plain_scaler(struct ckpt_writer *w, struct pickle_writer *p)
{
    const struct ckpt_write_options *o = w->options;
    const struct ckpt_scaler *s = &o->scaler;
    bool dynamic = o->fp16 && s->dynamic;
    ds_pair_bool(p, "dynamic_loss_scale", dynamic);
    ds_pair_double(p, "cur_scale", o->fp16 ? s->scale : 1.0);
    ds_pair_int(p, "cur_iter", o->fp16 ? s->iter : o->global_steps);
    if (!dynamic) return;
    ds_pair_int(p, "last_overflow_iter", s->last_overflow_iter);
    ds_pair_double(p, "scale_factor", s->factor);
    ds_pair_int(p, "scale_window", s->window);
}

/* In fp32 there is no wrapper, and the file holds torch's dictionary alone. FusedAdam's wrapper
 * saves no scaler keys in bf16. */
void ds_put_plain_optimizer(struct ckpt_writer *w)
{
    const struct ckpt_write_options *o = w->options;
    struct pickle_writer *p = w->files[DS_MODEL].pickle;
    if (o->dtype == DTYPE_F32) { /* no wrapper */
        ds_put_torch(w, DS_MODEL);
        return;
    }
    pickle_dict_begin(p);
    if (!o->fused || o->fp16) put_plain_scaler(w, p);
    pickle_put_string(p, "optimizer_state_dict");
    ds_put_torch(w, DS_MODEL);
    pickle_put_string(p, o->fused ? "fp32_groups_flat" : "fp32_groups");
    pickle_list_begin(p);
    for (size_t g = 0; g < o->n_groups; g++) put_plain_masters(w, p, g);
    pickle_list_end(p);
    if (o->fused) ds_pair_double(p, "clip_grad", o->clip_grad);
    pickle_dict_end(p);
}
