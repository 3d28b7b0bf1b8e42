/* Pictures into files: SVG as it is, PNG through librsvg, which draws exactly our SVG. It is opened
 * when it is needed, and no dependency of czero: it brings thirty libraries. */
#include "formats/output.h"
#include "tools/czero/plot/plot.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* The functions of librsvg 2.46 and later, and of the cairo and GObject that it is linked with. */
struct renderer {
    void *library;
    void *(*handle_new)(const unsigned char *data, size_t nbytes, void **error);
    int (*render)(void *handle, void *cairo, const double viewport[4], void **error);
    void *(*surface_create)(int format, int width, int height);
    int (*surface_status)(void *surface);
    void *(*cairo_create)(void *surface);
    int (*write_png)(void *surface, int (*put)(void *, const unsigned char *, unsigned),
                     void *user);
    void (*cairo_destroy)(void *cairo);
    void (*surface_destroy)(void *surface);
    void (*unref)(void *object);
};

static bool find(void *library, const char *name, void *slot)
{
    void *function = dlsym(library, name);
    memcpy(slot, &function, sizeof function);
    return function != NULL;
}

static cz_status open_renderer(struct renderer *r)
{
    void *library = dlopen("librsvg-2.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return err_set(CZ_UNSUPPORTED, 0,
                       "PNG needs librsvg, which is not installed (Debian: librsvg2-2); SVG needs "
                       "nothing");
    r->library = library;
    if (find(library, "rsvg_handle_new_from_data", &r->handle_new) &&
        find(library, "rsvg_handle_render_document", &r->render) &&
        find(library, "cairo_image_surface_create", &r->surface_create) &&
        find(library, "cairo_surface_status", &r->surface_status) &&
        find(library, "cairo_create", &r->cairo_create) &&
        find(library, "cairo_surface_write_to_png_stream", &r->write_png) &&
        find(library, "cairo_destroy", &r->cairo_destroy) &&
        find(library, "cairo_surface_destroy", &r->surface_destroy) &&
        find(library, "g_object_unref", &r->unref))
        return CZ_OK;
    return err_set(CZ_UNSUPPORTED, 0, "PNG needs librsvg 2.46 or later; this one is older");
}

static int put_bytes(void *user, const unsigned char *data, unsigned nbytes)
{
    enum { WRITE_ERROR = 11 }; /* CAIRO_STATUS_WRITE_ERROR */
    return fwrite(data, 1, nbytes, user) == nbytes ? 0 : WRITE_ERROR;
}

/* The size stands in the root element that plot_svg_begin() wrote. */
static cz_status draw_png(const struct renderer *r, const char *svg, size_t nbytes, FILE *out)
{
    enum { ARGB32 = 0 };
    double viewport[4] = {0};
    void *error = NULL;
    sscanf(svg, "<svg xmlns=\"%*[^\"]\" width=\"%lf\" height=\"%lf\"", &viewport[2], &viewport[3]);
    void *handle = r->handle_new((const unsigned char *)svg, nbytes, &error);
    if (!handle) return err_set(CZ_UNSUPPORTED, 0, "librsvg cannot read the figure");
    void *surface = r->surface_create(ARGB32, (int)viewport[2], (int)viewport[3]);
    cz_status st = CZ_OK;
    if (r->surface_status(surface) != 0) {
        st = err_set(CZ_NOMEM, 0, "a picture of %.0f x %.0f pixels is too large", viewport[2],
                     viewport[3]);
    } else {
        void *cairo = r->cairo_create(surface);
        if (!r->render(handle, cairo, viewport, &error))
            st = err_set(CZ_UNSUPPORTED, 0, "librsvg cannot draw the figure");
        else if (r->write_png(surface, put_bytes, out) != 0)
            st = err_set(CZ_NOMEM, 0, "no memory for the picture");
        r->cairo_destroy(cairo);
    }
    r->surface_destroy(surface);
    r->unref(handle);
    return st;
}

static bool ends_in(const char *path, const char *ending)
{
    const char *dot = strrchr(path, '.');
    return dot && strcasecmp(dot, ending) == 0;
}

cz_status plot_check_name(const char *option, const char *path)
{
    static const char *const others[] = {".pdf", ".jpg", ".jpeg", ".webp", ".gif"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(others); i++)
        if (ends_in(path, others[i]))
            return err_set(CZ_INVALID, 0,
                           "%s %s: pictures are SVG or PNG; name the file .svg or .png", option,
                           path);
    return CZ_OK;
}

static cz_status write_whole(const char *path, const char *bytes, size_t nbytes)
{
    FILE *file = out_fopen(path, "we");
    if (!file) return err_set(CZ_IO, errno, "%s: cannot be written", path);
    bool ok = fwrite(bytes, 1, nbytes, file) == nbytes;
    int saved = errno;
    if (fclose(file) == 0 && ok) return CZ_OK;
    return err_set(CZ_IO, ok ? errno : saved, "%s: cannot be written", path);
}

cz_status plot_write(const char *path, const char *svg, size_t nbytes)
{
    struct renderer r = {0};
    char *png = NULL;
    size_t png_nbytes;
    if (!ends_in(path, ".png")) return write_whole(path, svg, nbytes);
    TRY(open_renderer(&r));
    FILE *memory = open_memstream(&png, &png_nbytes);
    if (!memory) return err_set(CZ_NOMEM, 0, "no memory for the picture");
    cz_status st = draw_png(&r, svg, nbytes, memory);
    if (fclose(memory) != 0 && st == CZ_OK) st = err_set(CZ_NOMEM, 0, "no memory for the picture");
    if (st == CZ_OK) st = write_whole(path, png, png_nbytes);
    free(png);
    return st; /* GLib's libraries cannot be unloaded: the handle stays */
}
