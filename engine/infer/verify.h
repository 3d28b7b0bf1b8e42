/* Comparing a model with recorded results of another implementation.
 *
 * DIR/oracle.safetensors holds one batch and what came of it:
 *   in.input_ids (B,T), in.labels as Hugging Face takes them ((B,T), -100 ignored, shifted inside
 *   language models; or (B) classes), in.attention_mask, in.token_type_ids, in.position_ids (B,T);
 *   out.logits, out.loss, grad.<parameter>, and, of encoders, out.last_hidden_state (B,T,C), fp32.
 * The model in DIR is run in fp32, without dropout; with an adapter in it (adapter_config.json),
 * that takes part and its gradients are compared. */
#ifndef CZ_ENGINE_INFER_VERIFY_H
#define CZ_ENGINE_INFER_VERIFY_H

#include "base/status.h"

CZ_EXTERN_C_BEGIN

/* A gradient that is zero in exact arithmetic (a key's bias without rotary positions: softmax does
 * not see it) is rounding noise on both sides, so no relative error of it means anything. A
 * grad.* whose largest element is below this share of the largest recorded gradient, here and
 * there, is taken for zero. */
#define VERIFY_NOISE 0x1p-18

/* One recorded tensor. error: the largest |ours − theirs| over max(largest |theirs|, 1e-6); NaN
 * when a value is not finite on one side only. is_zero: a gradient that is noise on both sides; its
 * error is that of a zero, 0. */
struct verify_row {
    bool is_zero;
    const char *name;
    double error;
    int64_t numel;
    int64_t worst_idx; /* the element where it is reached */
};
typedef void (*verify_report)(void *user, const struct verify_row *row);

/* Report every out.* and grad.* in file order. dump_path: our own values, out.* and the gradient of
 * every trainable parameter, fp32, as a safetensors file; NULL: none.
 * Errors: CZ_NOTFOUND (no oracle, a gradient of an unknown parameter, no in.input_ids), CZ_CORRUPT
 * (shapes), CZ_UNSUPPORTED (an in.* or out.* that is not listed above), CZ_INVALID (a token outside
 * the vocabulary, nothing to compare), and what opening and running a model gives. */
cz_status verify_run(const char *dir, const char *dump_path, verify_report report, void *user);

/* The same on a device: "cpu", "cuda" or "cuda:N". */
cz_status verify_run_on(const char *device, const char *dir, const char *dump_path,
                        verify_report report, void *user);

CZ_EXTERN_C_END
#endif
