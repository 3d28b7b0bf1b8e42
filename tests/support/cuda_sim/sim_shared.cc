/* Static shared memory: what a kernel has not written is a NaN, not what an earlier grid left.
 *
 * __shared__ arrays are function-local statics of .cu files (which have no others that change), so
 * this library's own symbol table lists them: C++ names them _ZZ<function>E<variable>. The
 * simulator's functions are told apart by their names. A stripped library has no list. */
#include "sim_exec.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

namespace {

struct variable {
    void *at;
    size_t nbytes;
};

struct image {
    const char *bytes;
    size_t nbytes;
};

bool is_shared(const char *name)
{
    return strncmp(name, "_ZZ", 3) == 0 && !strstr(name, "sim_") && !strstr(name, "_GLOBAL__N_");
}

image map_file(const char *path)
{
    image file = {nullptr, 0};
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return file;
    if (fstat(fd, &st) == 0) {
        void *map = mmap(nullptr, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (map != MAP_FAILED) file = {(const char *)map, (size_t)st.st_size};
    }
    close(fd);
    return file;
}

void add_symbols(std::vector<variable> *found, const image &file, char *base)
{
    const Elf64_Ehdr *elf = (const Elf64_Ehdr *)file.bytes;
    const Elf64_Shdr *sections = (const Elf64_Shdr *)(file.bytes + elf->e_shoff);
    for (int i = 0; i < elf->e_shnum; i++) {
        if (sections[i].sh_type != SHT_SYMTAB) continue;
        const Elf64_Sym *symbols = (const Elf64_Sym *)(file.bytes + sections[i].sh_offset);
        const char *names = file.bytes + sections[sections[i].sh_link].sh_offset;
        for (size_t s = 0; s < sections[i].sh_size / sizeof *symbols; s++) {
            const Elf64_Sym *y = &symbols[s];
            bool object = ELF64_ST_TYPE(y->st_info) == STT_OBJECT && y->st_shndx > 0 &&
                          y->st_shndx < elf->e_shnum;
            if (!object || sections[y->st_shndx].sh_type != SHT_NOBITS) continue;
            if (is_shared(names + y->st_name))
                found->push_back({base + y->st_value, (size_t)y->st_size});
        }
    }
}

std::vector<variable> find_variables()
{
    std::vector<variable> found;
    Dl_info info;
    if (!dladdr((void *)&sim_now, &info)) return found;
    image file = map_file(info.dli_fname);
    if (!file.bytes) return found;
    if (file.nbytes > sizeof(Elf64_Ehdr) && memcmp(file.bytes, ELFMAG, SELFMAG) == 0)
        add_symbols(&found, file, (char *)info.dli_fbase);
    munmap((void *)file.bytes, file.nbytes);
    return found;
}

} // namespace

void sim_shared_poison(void)
{
    static const std::vector<variable> variables = find_variables();
    for (const variable &v : variables) memset(v.at, 0xFF, v.nbytes);
}
