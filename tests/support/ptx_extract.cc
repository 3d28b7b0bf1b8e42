/* PTX out of object files that nvcc made: what accompanies the machine code, for GPUs of later
 * generations, is what the simulated device can run.
 *
 *     ptx_extract FOLDER FILE.o...
 *
 * writes FOLDER/ops__step__step_cuda.cu.ptx from …/x.dir/ops/step/step_cuda.cu.o, and
 * FOLDER/entries.txt: "entry file" for each kernel. Objects without PTX are passed over.
 *
 * A fat binary begins with 0xBA55ED50, u16 version, u16 bytes of this header, u64 bytes that
 * follow; then entries: u16 kind (1: PTX), u16 version, u32 bytes of the entry's header, u64 bytes
 * of its contents; at 16: u32 bytes of them before padding if they are compressed; at 28: u32
 * architecture; at 56: u64 bytes once they are not. Compression is zstd's. */
#include <dlfcn.h>
#include <fstream>
#include <iostream>
#include <sstream>
#include <stdint.h>
#include <string.h>
#include <string>

static const uint32_t fat_magic = 0xBA55ED50, zstd_magic = 0xFD2FB528;

template <class T> static T read_at(const std::string &bytes, size_t at)
{
    T x = 0;
    if (at + sizeof x <= bytes.size()) memcpy(&x, bytes.data() + at, sizeof x);
    return x;
}

/* Opened at run time: Debian has the library, its header only with a package that nothing else
 * needs. */
static std::string decompress(const std::string &packed, size_t nbytes)
{
    typedef size_t (*decompress_fn)(void *, size_t, const void *, size_t);
    static void *library = dlopen("libzstd.so.1", RTLD_NOW);
    static decompress_fn run = library ? (decompress_fn)dlsym(library, "ZSTD_decompress") : nullptr;
    if (!run) {
        std::cerr << "ptx_extract: libzstd.so.1 is not here\n";
        exit(1);
    }
    std::string text(nbytes, '\0');
    if (run(&text[0], nbytes, packed.data(), packed.size()) != nbytes) {
        std::cerr << "ptx_extract: a compressed module is not understood\n";
        exit(1);
    }
    return text;
}

/* The modules' texts: of the newest architecture that there is. */
static std::string ptx_of(const std::string &object)
{
    std::string best;
    uint32_t best_arch = 0;
    for (size_t at = 0; at + 16 <= object.size(); at += 8) {
        if (read_at<uint32_t>(object, at) != fat_magic) continue;
        size_t entry = at + read_at<uint16_t>(object, at + 6);
        const size_t end = entry + read_at<uint64_t>(object, at + 8);
        while (entry + 64 <= end && end <= object.size()) {
            const uint32_t header = read_at<uint32_t>(object, entry + 4);
            const uint64_t padded = read_at<uint64_t>(object, entry + 8);
            const uint32_t packed = read_at<uint32_t>(object, entry + 16);
            const uint32_t arch = read_at<uint32_t>(object, entry + 28);
            if (read_at<uint16_t>(object, entry) == 1 && arch >= best_arch) {
                std::string text = object.substr(entry + header, packed ? packed : padded);
                if (read_at<uint32_t>(text, 0) == zstd_magic)
                    text = decompress(text, read_at<uint64_t>(object, entry + 56));
                best = text.c_str();
                best_arch = arch;
            }
            if (header + padded == 0) break;
            entry += header + padded;
        }
    }
    return best;
}

/* "…/x.dir/ops/step/step_cuda.cu.o" → "ops__step__step_cuda.cu.ptx" */
static std::string flat_name(std::string path)
{
    const size_t folder = path.rfind(".dir/");
    if (folder != std::string::npos) path = path.substr(folder + 5);
    if (path.compare(0, 2, "./") == 0) path = path.substr(2);
    std::string flat;
    for (char c : path.substr(0, path.rfind('.'))) flat += c == '/' ? "__" : std::string(1, c);
    return flat + ".ptx";
}

static void list_entries(std::ostream &out, const std::string &text, const std::string &file)
{
    static const std::string word = ".entry ";
    for (size_t at = 0; (at = text.find(word, at)) != std::string::npos; at += word.size()) {
        const size_t start = at + word.size();
        out << text.substr(start, text.find_first_of("( \n", start) - start) << ' ' << file << '\n';
    }
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        std::cerr << "usage: ptx_extract FOLDER FILE.o...\n";
        return 2;
    }
    const std::string folder = argv[1];
    std::ostringstream entries;
    for (int i = 2; i < argc; i++) {
        std::ifstream file(argv[i], std::ios::binary);
        std::ostringstream bytes;
        bytes << file.rdbuf();
        const std::string text = ptx_of(bytes.str());
        if (text.empty()) continue;
        const std::string name = flat_name(argv[i]);
        std::ofstream(folder + "/" + name, std::ios::binary) << text;
        list_entries(entries, text, name);
    }
    std::ofstream index(folder + "/entries.txt");
    index << entries.str();
    return index.flush() ? 0 : 1;
}
