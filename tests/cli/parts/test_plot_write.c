/* Claims: without librsvg, or with one that is too old, a PNG is refused and no file is made; each
 * failure of librsvg is reported, and what it made is released; the picture has the figure's size;
 * a name's ending decides, in any case; what cannot be written is reported with its name.
 *
 * librsvg is replaced by functions of this file: no machine has one that fails. */
#include "tests/support/check_main.h"

#include <dlfcn.h>
#include <string.h>

static void *fake_dlopen(const char *name, int flags);
static void *fake_dlsym(void *library, const char *name);
#define dlopen fake_dlopen
#define dlsym  fake_dlsym
#include "tools/czero/plot/plot_write.c" /* the tools are no library */
#undef dlopen
#undef dlsym

static struct {
    bool is_installed, has_handle, renders, writes;
    int surface_status;
    const char *missing;                 /* a function's name, or NULL */
    int n_handles, n_surfaces, n_cairos; /* not yet released */
    int width, height;
    double viewport[4];
} fake;

static int handle_place, surface_place, cairo_place;

static void *handle_new(const unsigned char *data, size_t nbytes, void **error)
{
    (void)error;
    ck_assert_uint_gt(nbytes, 0);
    ck_assert_int_eq(data[0], '<');
    fake.n_handles += fake.has_handle;
    return fake.has_handle ? &handle_place : NULL;
}
static int render(void *handle, void *cairo, const double viewport[4], void **error)
{
    (void)error;
    ck_assert_ptr_eq(handle, &handle_place);
    ck_assert_ptr_eq(cairo, &cairo_place);
    memcpy(fake.viewport, viewport, sizeof fake.viewport);
    return fake.renders;
}
static void *surface_create(int format, int width, int height)
{
    ck_assert_int_eq(format, 0);
    fake.width = width;
    fake.height = height;
    fake.n_surfaces++;
    return &surface_place;
}
static int surface_status(void *surface)
{
    ck_assert_ptr_eq(surface, &surface_place);
    return fake.surface_status;
}
static void *cairo_create(void *surface)
{
    ck_assert_ptr_eq(surface, &surface_place);
    fake.n_cairos++;
    return &cairo_place;
}
static int write_png(void *surface, int (*put)(void *, const unsigned char *, unsigned), void *user)
{
    ck_assert_ptr_eq(surface, &surface_place);
    if (!fake.writes) return 1;
    return put(user, (const unsigned char *)"P\0NG", 4);
}
static void cairo_destroy(void *cairo)
{
    ck_assert_ptr_eq(cairo, &cairo_place);
    fake.n_cairos--;
}
static void surface_destroy(void *surface)
{
    ck_assert_ptr_eq(surface, &surface_place);
    fake.n_surfaces--;
}
static void unref(void *object)
{
    ck_assert_ptr_eq(object, &handle_place);
    fake.n_handles--;
}

static void *fake_dlopen(const char *name, int flags)
{
    ck_assert_str_eq(name, "librsvg-2.so.2");
    ck_assert_int_eq(flags & RTLD_NOW, RTLD_NOW);
    return fake.is_installed ? &fake : NULL;
}

#define FUNCTION(name) (void *)(uintptr_t)(name)
static void *fake_dlsym(void *library, const char *name)
{
    const struct {
        const char *name;
        void *function;
    } all[] = {{"rsvg_handle_new_from_data", FUNCTION(handle_new)},
               {"rsvg_handle_render_document", FUNCTION(render)},
               {"cairo_image_surface_create", FUNCTION(surface_create)},
               {"cairo_surface_status", FUNCTION(surface_status)},
               {"cairo_create", FUNCTION(cairo_create)},
               {"cairo_surface_write_to_png_stream", FUNCTION(write_png)},
               {"cairo_destroy", FUNCTION(cairo_destroy)},
               {"cairo_surface_destroy", FUNCTION(surface_destroy)},
               {"g_object_unref", FUNCTION(unref)}};
    ck_assert_ptr_eq(library, &fake);
    if (fake.missing && strcmp(fake.missing, name) == 0) return NULL;
    for (size_t i = 0; i < CZ_ARRAY_LEN(all); i++)
        if (strcmp(all[i].name, name) == 0) return all[i].function;
    return NULL;
}

static const char svg[] = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"400\" height=\"300\">";

static void reset(void)
{
    memset(&fake, 0, sizeof fake);
    fake.is_installed = fake.has_handle = fake.renders = fake.writes = true;
}

static void refused(const char *path, cz_status want, const char *says)
{
    ck_fails(plot_write(path, svg, sizeof svg - 1), want);
    ck_assert_msg(strstr(cz_last_error(), says) != NULL, "%s", cz_last_error());
    ck_assert_int_ne(access(path, F_OK), 0);
    ck_assert_int_eq(fake.n_handles, 0);
    ck_assert_int_eq(fake.n_surfaces, 0);
    ck_assert_int_eq(fake.n_cairos, 0);
}

static void has_bytes(const char *path, const char *want, size_t nbytes)
{
    char bytes[256];
    FILE *f = fopen(path, "r");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fread(bytes, 1, sizeof bytes, f), nbytes);
    fclose(f);
    ck_assert_int_eq(memcmp(bytes, want, nbytes), 0);
}

START_TEST(each_failure_of_librsvg_is_said)
{
    static const char *const functions[] = {"rsvg_handle_new_from_data",
                                            "rsvg_handle_render_document",
                                            "cairo_image_surface_create",
                                            "cairo_surface_status",
                                            "cairo_create",
                                            "cairo_surface_write_to_png_stream",
                                            "cairo_destroy",
                                            "cairo_surface_destroy",
                                            "g_object_unref"};
    const char *tmp = test_tmp_make();
    char png[128];
    snprintf(png, sizeof png, "%s/x.png", tmp);
    reset();
    fake.is_installed = false;
    refused(png, CZ_UNSUPPORTED, "PNG needs librsvg, which is not installed");
    for (size_t i = 0; i < CZ_ARRAY_LEN(functions); i++) {
        reset();
        fake.missing = functions[i];
        refused(png, CZ_UNSUPPORTED, "PNG needs librsvg 2.46 or later");
    }
    reset();
    fake.has_handle = false;
    refused(png, CZ_UNSUPPORTED, "librsvg cannot read the figure");
    reset();
    fake.surface_status = 1;
    refused(png, CZ_NOMEM, "a picture of 400 x 300 pixels is too large");
    reset();
    fake.renders = false;
    refused(png, CZ_UNSUPPORTED, "librsvg cannot draw the figure");
    reset();
    fake.writes = false;
    refused(png, CZ_NOMEM, "no memory for the picture");
    test_tmp_remove(tmp);
}
END_TEST

START_TEST(endings_decide_and_the_size_is_the_figures)
{
    const char *tmp = test_tmp_make();
    char path[128];
    reset();
    snprintf(path, sizeof path, "%s/x.PNG", tmp);
    ck_ok(plot_write(path, svg, sizeof svg - 1));
    has_bytes(path, "P\0NG", 4);
    ck_assert_int_eq(fake.width, 400);
    ck_assert_int_eq(fake.height, 300);
    ck_assert_double_eq(fake.viewport[0], 0);
    ck_assert_double_eq(fake.viewport[1], 0);
    ck_assert_double_eq(fake.viewport[2], 400);
    ck_assert_double_eq(fake.viewport[3], 300);
    fake.is_installed = false; /* SVG needs nothing */
    snprintf(path, sizeof path, "%s/x.svg", tmp);
    ck_ok(plot_write(path, svg, sizeof svg - 1));
    has_bytes(path, svg, sizeof svg - 1);
    snprintf(path, sizeof path, "%s/png", tmp);
    ck_ok(plot_write(path, svg, sizeof svg - 1));
    has_bytes(path, svg, sizeof svg - 1);
    test_tmp_remove(tmp);
}
END_TEST

START_TEST(what_cannot_be_written_is_said)
{
    static const char *const others[] = {"a.pdf", "b.jpg", "c.jpeg", "d.webp", "e.GIF"};
    static const char *const ours[] = {"a.png", "b.svg", "c", "pdf", "d.pdf.svg", "e.pdf/x"};
    reset();
    refused("/nowhere/x.svg", CZ_IO, "/nowhere/x.svg: cannot be written: No such");
    refused("/nowhere/x.png", CZ_IO, "/nowhere/x.png: cannot be written: No such");
    ck_fails(plot_write("/dev/full", svg, sizeof svg - 1), CZ_IO);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "/dev/full: cannot be written: No space"));
    for (size_t i = 0; i < CZ_ARRAY_LEN(others); i++) {
        ck_fails(plot_check_name("-o", others[i]), CZ_INVALID);
        ck_assert_ptr_eq(strstr(cz_last_error(), "-o "), cz_last_error());
        ck_assert_ptr_nonnull(strstr(cz_last_error(), others[i]));
    }
    for (size_t i = 0; i < CZ_ARRAY_LEN(ours); i++) ck_ok(plot_check_name("-o", ours[i]));
}
END_TEST

TEST_MAIN("cli/plot_write", each_failure_of_librsvg_is_said,
          endings_decide_and_the_size_is_the_figures, what_cannot_be_written_is_said)
