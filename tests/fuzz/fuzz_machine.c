/* Promises: any machine profile is read or refused with a sentence; what is read has figures of 0
 * or more and texts that end, and written again it reads as the same. */
#include "engine/machine/machine.h"
#include "tests/fuzz/fuzz.h"

#include <math.h>

static bool is_rate(double rate)
{
    return rate == 0 || (rate >= 1e-3 && rate <= 1e18);
}

static void check(const struct machine_profile *p)
{
    FUZZ_CHECK(p->n_threads >= 1 && p->nvme_depth >= 0);
    FUZZ_CHECK(is_rate(p->gemm_f32) && is_rate(p->gemm_bf16) && is_rate(p->gemm_f16));
    FUZZ_CHECK(is_rate(p->triad) && is_rate(p->adam_f32) && is_rate(p->adam_bf16));
    FUZZ_CHECK(is_rate(p->comm) && is_rate(p->host_to_device) && is_rate(p->device_to_host));
    FUZZ_CHECK(is_rate(p->nvme_read) && is_rate(p->nvme_write) && is_rate(p->nvme_both));
    FUZZ_CHECK(strlen(p->cpu) < sizeof p->cpu && strlen(p->nvme_path) < sizeof p->nvme_path);
    FUZZ_CHECK(strlen(p->nvme_how) < sizeof p->nvme_how);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t nbytes)
{
    struct machine_profile p, again;
    char path[128];
    cz_status st = machine_read(fuzz_file(data, nbytes), &p);
    if (st != CZ_OK) {
        fuzz_refused(st);
        return 0;
    }
    check(&p);
    fuzz_folder();
    snprintf(path, sizeof path, "%s/machine.json", fuzz_folder_path());
    FUZZ_CHECK(machine_write(&p, path) == CZ_OK);
    FUZZ_CHECK(machine_read(path, &again) == CZ_OK);
    FUZZ_CHECK(memcmp(&p, &again, sizeof p) == 0);
    return 0;
}
