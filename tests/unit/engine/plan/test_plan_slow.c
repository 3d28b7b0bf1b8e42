/* Claim: the plan predicts peak resident memory within max(2 %, 32 MiB), for GPT-2 124M. */
#include "tests/support/peak.h"

#define PEAK(name, model, T, config)                                                               \
    START_TEST(name)                                                                               \
    {                                                                                              \
        peak_check(model, "{" config ", \"optimizer\": {\"type\": \"AdamW\"}}", T, 1);             \
    }                                                                                              \
    END_TEST

PEAK(fp32, "gpt2", 256, "\"train_micro_batch_size_per_gpu\": 4")
PEAK(fp32_accumulating, "gpt2", 128,
     "\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": 2")
PEAK(bf16, "gpt2", 256, "\"train_micro_batch_size_per_gpu\": 4, \"bf16\": {\"enabled\": true}")
PEAK(fp16_checkpointed, "gpt2", 256,
     "\"train_micro_batch_size_per_gpu\": 2, \"fp16\": {\"enabled\": true}, "
     "\"czero\": {\"activation_checkpointing\": {\"every\": 2}}")

TEST_MAIN("engine/plan_slow", fp32, fp32_accumulating, bf16, fp16_checkpointed)
