/* The claims of vecmath_cases.h, on the vectors of avx512. */
#include "ops/vec_avx512_impl.h"

#include "tests/unit/ops/vecmath_cases.h"

int main(void)
{
    return vecmath_main("ops/vecmath_avx512", CPU_AVX512);
}
