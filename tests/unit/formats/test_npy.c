/* Claims: an array has numpy's header, its elements where they were put and zeros elsewhere; the
 * file appears whole or not at all; shapes and places outside are refused. */
#include "formats/npy/npy.h"
#include "tests/support/check_main.h"

#include <string.h>
#include <sys/stat.h>

static char path[512];

static const char *begin(void)
{
    const char *dir = test_tmp_make();
    snprintf(path, sizeof path, "%s/x.npy", dir);
    return dir;
}

/* The file has this dictionary in its header, which ends at a multiple of 64. */
static char *load(const char *dictionary, size_t *begin_at, size_t *nbytes)
{
    char *bytes;
    ck_ok(file_load(path, 1 << 20, &bytes, nbytes));
    ck_assert_mem_eq(bytes, "\x93NUMPY\x01\x00", 8);
    *begin_at = 10 + (size_t)(unsigned char)bytes[8] + 256 * (size_t)(unsigned char)bytes[9];
    ck_assert_uint_eq(*begin_at % 64, 0);
    ck_assert_int_eq(bytes[*begin_at - 1], '\n');
    ck_assert_mem_eq(bytes + 10, dictionary, strlen(dictionary));
    for (size_t i = 10 + strlen(dictionary); i + 1 < *begin_at; i++)
        ck_assert_int_eq(bytes[i], ' ');
    return bytes;
}

START_TEST(elements_are_where_they_were_put)
{
    const char *dir = begin();
    const int64_t shape[] = {3, 2};
    const float last[] = {5, 6}, middle[] = {2};
    struct npy_writer w;
    size_t at, nbytes;
    ck_ok(npy_create(&w, path, NPY_F32, 2, shape));
    ck_ok(npy_write(&w, 4, last, 2));
    ck_ok(npy_write(&w, 1, middle, 1));
    ck_ok(npy_write(&w, 6, last, 0));
    ck_fails(npy_write(&w, 5, last, 2), CZ_INVALID);
    ck_fails(npy_write(&w, 7, last, 0), CZ_INVALID);
    ck_assert(!file_exists(path)); /* not before it is whole */
    ck_ok(npy_commit(&w));
    npy_abort(&w);
    char *bytes = load("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }", &at, &nbytes);
    const float want[] = {0, 2, 0, 0, 5, 6};
    ck_assert_uint_eq(nbytes, at + sizeof want);
    ck_assert_mem_eq(bytes + at, want, sizeof want);
    free(bytes);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(other_types_and_dimensions)
{
    const char *dir = begin();
    const int64_t one[] = {2}, three[] = {1, 2, 1}, none[] = {0, 4};
    const int64_t numbers[] = {7, -1};
    const float floats[] = {1, 2};
    struct npy_writer w;
    size_t at, nbytes;
    ck_ok(npy_create(&w, path, NPY_I64, 1, one));
    ck_ok(npy_write(&w, 0, numbers, 2));
    ck_ok(npy_commit(&w));
    char *bytes = load("{'descr': '<i8', 'fortran_order': False, 'shape': (2,), }", &at, &nbytes);
    ck_assert_uint_eq(nbytes, at + sizeof numbers);
    ck_assert_mem_eq(bytes + at, numbers, sizeof numbers);
    free(bytes);
    ck_ok(npy_create(&w, path, NPY_F32, 3, three)); /* in the place of the last one */
    ck_ok(npy_write(&w, 0, floats, 2));
    ck_ok(npy_commit(&w));
    bytes = load("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2, 1), }", &at, &nbytes);
    ck_assert_mem_eq(bytes + at, floats, sizeof floats);
    free(bytes);
    ck_ok(npy_create(&w, path, NPY_F32, 2, none));
    ck_ok(npy_commit(&w));
    free(load("{'descr': '<f4', 'fortran_order': False, 'shape': (0, 4), }", &at, &nbytes));
    ck_assert_uint_eq(nbytes, at);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(what_cannot_be_written_is_refused)
{
    const char *dir = begin();
    static const int64_t negative[] = {2, -1}, large[] = {INT64_C(1) << 40, INT64_C(1) << 40},
                         one[] = {1};
    struct npy_writer w;
    ck_fails(npy_create(&w, path, NPY_F32, 0, one), CZ_INVALID);
    ck_fails(npy_create(&w, path, NPY_F32, NPY_NDIM_MAX + 1, one), CZ_INVALID);
    ck_fails(npy_create(&w, path, NPY_F32, 2, negative), CZ_INVALID);
    ck_fails(npy_create(&w, path, NPY_F32, 2, large), CZ_INVALID);
    ck_fails(npy_create(&w, "/nowhere/x.npy", NPY_F32, 1, one), CZ_IO);
    npy_abort(&w);
    ck_ok(npy_create(&w, path, NPY_F32, 1, one));
    npy_abort(&w);
    npy_abort(&w);
    ck_assert(!file_exists(path));
    test_tmp_remove(dir);
}
END_TEST

TEST_MAIN("formats/npy", elements_are_where_they_were_put, other_types_and_dimensions,
          what_cannot_be_written_is_refused)
