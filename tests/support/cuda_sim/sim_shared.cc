/* Static shared memory: what a kernel has not written is a NaN, not what an earlier grid left; and
 * how much of it a kernel has.
 *
 * __shared__ arrays are function-local statics of .cu files (which have no others that change), so
 * this library's own symbol table lists them: C++ names them _ZZ<function>E<variable>. The
 * simulator's functions are told apart by their names. A stripped library has no list. */
#include "sim_exec.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <map>
#include <string.h>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

namespace {

/* file: 0, or the number of the source whose own the symbol is: such names are not unique. */
struct symbol {
    char *at;
    size_t nbytes;
    std::string name;
    int file;
};

struct symbols {
    std::vector<symbol> variables, functions;
    std::vector<std::string> sources; /* by number - 1 */
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

void add_symbol(symbols *found, const Elf64_Sym *y, const symbol &named, bool is_zeroed)
{
    int type = ELF64_ST_TYPE(y->st_info);
    if (type == STT_OBJECT && is_zeroed && is_shared(named.name.c_str()))
        found->variables.push_back(named);
    if (type == STT_FUNC && named.name.compare(0, 2, "_Z") == 0) found->functions.push_back(named);
}

void add_symbols(symbols *found, const image &file, char *base)
{
    const Elf64_Ehdr *elf = (const Elf64_Ehdr *)file.bytes;
    const Elf64_Shdr *sections = (const Elf64_Shdr *)(file.bytes + elf->e_shoff);
    for (int i = 0; i < elf->e_shnum; i++) {
        if (sections[i].sh_type != SHT_SYMTAB) continue;
        const Elf64_Sym *table = (const Elf64_Sym *)(file.bytes + sections[i].sh_offset);
        const char *names = file.bytes + sections[sections[i].sh_link].sh_offset;
        int source = 0; /* local symbols follow their file's */
        for (size_t s = 0; s < sections[i].sh_size / sizeof *table; s++) {
            const Elf64_Sym *y = &table[s];
            if (ELF64_ST_TYPE(y->st_info) == STT_FILE) {
                found->sources.push_back(names + y->st_name);
                source = (int)found->sources.size();
            }
            if (y->st_shndx == 0 || y->st_shndx >= elf->e_shnum) continue;
            bool is_local = ELF64_ST_BIND(y->st_info) == STB_LOCAL;
            add_symbol(
                found, y,
                {base + y->st_value, (size_t)y->st_size, names + y->st_name, is_local ? source : 0},
                sections[y->st_shndx].sh_type == SHT_NOBITS);
        }
    }
}

symbols find_symbols()
{
    symbols found;
    Dl_info info;
    if (!dladdr((void *)&sim_now, &info)) return found;
    image file = map_file(info.dli_fname);
    if (!file.bytes) return found;
    if (file.nbytes > sizeof(Elf64_Ehdr) && memcmp(file.bytes, ELFMAG, SELFMAG) == 0)
        add_symbols(&found, file, (char *)info.dli_fbase);
    munmap((void *)file.bytes, file.nbytes);
    return found;
}

const symbols &all_symbols()
{
    static const symbols all = find_symbols();
    return all;
}

const symbol *find_function(const void *kernel)
{
    const symbol *f = nullptr;
    for (const symbol &x : all_symbols().functions)
        if (x.at == kernel) f = &x;
    return f;
}

size_t count_shared(const void *kernel)
{
    const symbol *f = find_function(kernel);
    if (!f) return 0;
    const std::string prefix = "_ZZ" + f->name.substr(2) + "E";
    size_t nbytes = 0;
    for (const symbol &v : all_symbols().variables)
        if (v.file == f->file && v.name.compare(0, prefix.size(), prefix) == 0) nbytes += v.nbytes;
    return nbytes;
}

} // namespace

void sim_shared_poison(void)
{
    for (const symbol &v : all_symbols().variables) memset(v.at, 0xFF, v.nbytes);
}

/* The runtime's lock is held. */
size_t sim_shared_of(const void *kernel)
{
    static std::map<const void *, size_t> known;
    auto at = known.find(kernel);
    if (at != known.end()) return at->second;
    return known[kernel] = count_shared(kernel);
}

bool sim_function_symbol(const void *kernel, std::string *name, std::string *source)
{
    const symbol *f = find_function(kernel);
    if (!f) return false;
    *name = f->name;
    *source = f->file > 0 ? all_symbols().sources[(size_t)f->file - 1] : "";
    return true;
}
