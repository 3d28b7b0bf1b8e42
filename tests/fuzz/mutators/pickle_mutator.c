/* Mutations for fuzz_pickle.c: opcodes (pickle_mutator.h), and every third time bytes. */
#include "tests/fuzz/mutators/pickle_mutator.h"
#include "tests/fuzz/fuzz.h"

size_t LLVMFuzzerMutate(unsigned char *data, size_t nbytes, size_t nbytes_max);
size_t LLVMFuzzerCustomMutator(unsigned char *data, size_t nbytes, size_t nbytes_max,
                               unsigned seed);

size_t LLVMFuzzerCustomMutator(unsigned char *data, size_t nbytes, size_t nbytes_max, unsigned seed)
{
    size_t n = seed % 3 ? pickle_mutate(data, nbytes, nbytes_max, seed) : 0;
    return n > 0 ? n : LLVMFuzzerMutate(data, nbytes, nbytes_max);
}
