/* What hwloc knows: the machine (this one, a recorded one or a synthetic one), its cores with node
 * and cache, the node of a GPU; and which processors this process may use. */
#include "offload/affinity/affinity_impl.h"

#include "base/host/processors.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static cz_status set_source(hwloc_topology_t t, const char *words)
{
    static const char synthetic[] = "synthetic:", xml[] = "xml:";
    if (!words) return CZ_OK;
    if (strncmp(words, synthetic, strlen(synthetic)) == 0) {
        if (hwloc_topology_set_synthetic(t, words + strlen(synthetic)) == 0) return CZ_OK;
        return err_set(CZ_INVALID, 0, "\"%s\" describes no machine that hwloc understands", words);
    }
    if (strncmp(words, xml, strlen(xml)) == 0) {
        const char *path = words + strlen(xml);
        if (access(path, R_OK) != 0) return err_set(CZ_IO, errno, "cannot read %s", path);
        if (hwloc_topology_set_xml(t, path) == 0) return CZ_OK;
        return err_set(CZ_INVALID, 0, "%s contains no machine description that hwloc understands",
                       path);
    }
    return err_set(CZ_INVALID, 0,
                   "\"%s\" is not a topology such as \"synthetic:…\" or \"xml:PATH\"", words);
}

/* PCI devices are kept only on request: to look for them takes longer than all else. */
cz_status affinity_topology_open(const char *words, bool with_pci, hwloc_topology_t *out)
{
    hwloc_topology_t t;
    *out = NULL;
    if (hwloc_topology_init(&t) != 0) return err_set(CZ_NOMEM, 0, "no memory for a topology");
    cz_status st = set_source(t, words);
    if (with_pci)
        hwloc_topology_set_type_filter(t, HWLOC_OBJ_PCI_DEVICE, HWLOC_TYPE_FILTER_KEEP_ALL);
    errno = 0;
    if (st == CZ_OK && hwloc_topology_load(t) != 0)
        st = err_set(words ? CZ_INVALID : CZ_IO, errno, "hwloc cannot describe %s",
                     words ? words : "this machine");
    if (st == CZ_OK)
        *out = t;
    else
        hwloc_topology_destroy(t);
    return st;
}

/* ---- cores ----------------------------------------------------------------------------------- */

/* The nearest node of what is local to obj; in front of memory without cores, which has higher
 * numbers. A node hidden from us leaves its cores with those of the whole machine. */
int affinity_node_of(hwloc_obj_t obj)
{
    for (; obj; obj = obj->parent)
        if (obj->nodeset && hwloc_bitmap_first(obj->nodeset) >= 0)
            return hwloc_bitmap_first(obj->nodeset);
    return 0;
}

cz_status affinity_cores_list(hwloc_topology_t topology, hwloc_const_cpuset_t allowed,
                              struct affinity_cores *out)
{
    /* Inside some virtual machines only processors are known. */
    int n_known = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE);
    hwloc_obj_type_t type = n_known > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
    if (n_known <= 0) n_known = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PU);
    out->n = 0;
    out->v = calloc((size_t)(n_known > 0 ? n_known : 1), sizeof *out->v);
    if (!out->v) return err_set(CZ_NOMEM, 0, "no memory for %d cores", n_known);
    for (int i = 0; i < n_known; i++) {
        hwloc_obj_t obj = hwloc_get_obj_by_type(topology, type, (unsigned)i);
        struct affinity_core *core = &out->v[out->n];
        if (!hwloc_bitmap_intersects(obj->cpuset, allowed)) continue;
        core->cpus = hwloc_bitmap_alloc();
        if (!core->cpus || hwloc_bitmap_and(core->cpus, obj->cpuset, allowed) != 0)
            return err_set(CZ_NOMEM, 0, "no memory for %d cores", n_known);
        core->node = affinity_node_of(obj);
        core->cache = -1;
        for (hwloc_obj_t up = obj; up; up = up->parent) /* the outermost: the last level */
            if (hwloc_obj_type_is_dcache(up->type)) core->cache = (int)up->gp_index;
        out->n++;
    }
    return CZ_OK;
}

void affinity_cores_free(struct affinity_cores *c)
{
    for (int i = 0; i < c->n; i++) hwloc_bitmap_free(c->v[i].cpus);
    free(c->v);
    *c = (struct affinity_cores){.v = NULL};
}

int affinity_gpu_node(hwloc_topology_t topology, const char *pci_bus_id)
{
    if (!pci_bus_id) return -1;
    hwloc_obj_t gpu = hwloc_get_pcidev_by_busidstring(topology, pci_bus_id);
    hwloc_obj_t near = gpu ? hwloc_get_non_io_ancestor_obj(topology, gpu) : NULL;
    bool is_far = near && hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE) > 1 &&
                  near->type == HWLOC_OBJ_MACHINE; /* the firmware did not say where it is */
    return near && !is_far ? affinity_node_of(near) : -1;
}

/* ---- what this process may use --------------------------------------------------------------- */

/* OpenMP's binding has precedence over czero's if the user set it; so has CZERO_BIND=none. */
bool affinity_user_binds(void)
{
    static const char *const names[] = {"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY",
                                        "KMP_AFFINITY"};
    const char *own = getenv("CZERO_BIND");
    if (own && strcmp(own, "none") == 0) return true;
    for (size_t i = 0; i < CZ_ARRAY_LEN(names); i++) {
        const char *value = getenv(names[i]);
        if (value && *value) return true;
    }
    return false;
}

cz_status affinity_allowed_here(hwloc_bitmap_t out)
{
    struct processors allowed;
    processors_allowed(&allowed);
    hwloc_bitmap_zero(out);
    for (int cpu = 0; cpu < PROCESSORS_MAX; cpu++)
        if (processors_has(&allowed, cpu) && hwloc_bitmap_set(out, (unsigned)cpu) != 0)
            return err_set(CZ_NOMEM, 0, "no memory for a set of processors");
    return CZ_OK;
}
