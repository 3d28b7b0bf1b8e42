/* A claim about a kernel, in every order in which the simulated device can run its threads and
 * blocks: results that differ are races. A GPU has its own order: there the first of the three
 * runs, and the others end at once. */
#ifndef CZ_TESTS_CUDA_ORDERS_H
#define CZ_TESTS_CUDA_ORDERS_H

#include "tests/support/gpu/cuda_rig.h"

#include <stdlib.h>
#include <string.h>

/* The simulated device is a plug-in that tests name (cmake/CzeroTargets.cmake). */
static inline bool cuda_orders_differ(void)
{
    const char *plugin = getenv("CZERO_CUDA_PLUGIN");
    return plugin && strstr(plugin, "cuda_sim");
}

#define CUDA_ORDER_IF(is_wanted, name, order_name, order, call)                                    \
    START_TEST(name##_##order_name)                                                                \
    {                                                                                              \
        if (!(is_wanted)) return;                                                                  \
        ck_assert_int_eq(setenv("CZERO_CUDA_SIM_ORDER", order, 1), 0);                             \
        struct cuda_rig rig = cuda_rig_open();                                                     \
        call;                                                                                      \
        cuda_rig_close(&rig);                                                                      \
    }                                                                                              \
    END_TEST
#define CUDA_ORDER(name, order_name, order, call) CUDA_ORDER_IF(true, name, order_name, order, call)

/* Defines the cases name_forward, name_reverse and name_random, which run `call` with `rig`. */
#define CUDA_ORDERS(name, call)                                                                    \
    CUDA_ORDER(name, forward, "forward", call)                                                     \
    CUDA_ORDER_IF(cuda_orders_differ(), name, reverse, "reverse", call)                            \
    CUDA_ORDER_IF(cuda_orders_differ(), name, random, "random:1", call)

/* Their names, for TEST_MAIN. */
#define CUDA_ORDERED(name) name##_forward, name##_reverse, name##_random

#endif
