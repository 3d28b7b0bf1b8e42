/* The schedules of torch.optim, for schedule.c. last_epoch e counts from 0: e = i + 1. */
#ifndef CZ_OPTIM_SCHEDULE_IMPL_H
#define CZ_OPTIM_SCHEDULE_IMPL_H

#include "optim/schedule.h"

CZ_EXTERN_C_BEGIN

struct schedule_torch_kind {
    const char *name;
    struct setting_table table;
    const struct schedule_entry *entries;
    size_t n_entries;
};

#define SCHEDULE_TORCH_FIRST SCHEDULE_TORCH_STEP
#define SCHEDULE_N_TORCH     (SCHEDULE_TORCH_ONE_CYCLE - SCHEDULE_TORCH_FIRST + 1)
extern const struct schedule_torch_kind schedule_torch_kinds[SCHEDULE_N_TORCH];

/* Why a class of torch cannot be a config's; NULL: it can, or torch has no such class. */
const char *schedule_torch_refusal(const char *type);

/* What has to be known of a value before its number is: CZ_INVALID. */
cz_status schedule_torch_set(const char *name, const struct setting_value *value);

/* After settings_fill(): what torch's constructors check and compute. CZ_INVALID. */
cz_status schedule_torch_finish(struct schedule_torch *t, enum schedule_kind kind);

/* Whether the schedule moves a momentum, and its value for group `group`. */
bool schedule_torch_cycles(const struct schedule_params *p);
double schedule_torch_momentum(const struct schedule_params *p, int64_t e, size_t group);

/* lr at e = 0 and, from the group's lr of now, at e ≥ 1. */
double schedule_torch_next(const struct schedule *s, int64_t e, size_t group, double lr);

/* The same from e alone. */
double schedule_torch_at(const struct schedule *s, int64_t e, size_t group);

/* T_cur and T_i of CosineAnnealingWarmRestarts. */
void schedule_torch_place(struct schedule_torch *t, int64_t e);

double schedule_list_at(const struct setting_list *list, size_t group);

CZ_EXTERN_C_END
#endif
