/* The claims of vecmath_cases.h, on the vectors of avx2. */
#include "ops/vec_avx2_impl.h"

#include "tests/unit/ops/vecmath_cases.h"

int main(void)
{
    return vecmath_main("ops/vecmath_avx2", CPU_AVX2);
}
