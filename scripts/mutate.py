#!/usr/bin/env python3
"""Changes the code in small ways and reports the changes that no test notices.

    scripts/mutate.py                         25 changes per module, all modules, with all default tests
    scripts/mutate.py --module data/jinja     25 changes of a folder, with the folder's own tests (OWN_TESTS): minutes
      --module M[,M…]     only these: modules, folders of a module, files without their .c
      --count N           changes per module (default 25)
      --seed S            other changes (default 1)
      --budget SECONDS    test time per change (default 60); tests that reach it, quickest first
      --jobs N            tests at a time (default: the number of cores)
      --only FILE:LINE    only the changes of this line
      --dir DIR           working folder (default build-mutate); the same call on the same commit continues there
      --list              print the chosen changes and stop

A change (mutant) is a comparison at its boundary, a swapped operator, a constant plus one, a negation or a
check dropped, a status ignored, two arguments swapped, a call left out. All chosen changes are compiled into one
build of a copy of the tree, each behind a switch that the environment variable CZ_MUTANT turns on. Every
default test runs once without a change, which gives its time and the changes that it reaches; then each change
runs with the tests that reach it until one fails. A change in code that no test reaches survives. If all
of --module are folders, only their own tests are built and run.

tests/mutation/equivalent.txt (if there is one) names changes that alter nothing a caller can see, each as printed by
--list without its line number, after a comment with the reason; they are not counted. The results stay in
DIR/results.tsv. Exit: 0 every module reaches --floor percent (default 85), 1 not, 2 this machine cannot do it.
"""
import argparse
import concurrent.futures
import glob
import json
import mmap
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
MODULES = ["base", "layout", "comm", "formats", "ops", "optim", "model", "data", "offload", "zero", "checkpoint", "engine", "tools"]
# the tests that must notice a change of a folder; a folder that is not here has all unit tests of its module
OWN_TESTS = {
    "base/text": r"base\.test_(nearest|regex|text|unread)|data\.test_encoding",
    "data/chat": r"data\.test_chat|fuzz\.chat|cli\.test_(data_show|rows)_sh",
    "data/jinja": r"data\.test_(jinja|chat)|fuzz\.(jinja|chat)",
    "data/tokenizer": r"data\.test_(bpe|encoding|pieces|pipes|steps|text_bounds|tokenizer|vocab|wordpiece)"
                      r"|fuzz\.(bpe|pieces|tokenizer|wordpiece)|cli\.test_vocab_sh",
    "engine/chain": r"engine\.test_(chain|infer|generate|offload_late)",
    "engine/machine": r"engine\.test_machine|fuzz\.machine",
    "engine/tune": r"engine\.test_tune|cli\.test_tune_sh",
    "model/decoder": r"model\.test_(decoder|families|options)|engine\.test_family_stages_sh",
    "model/lora": r"(model|engine)\.test_lora|model\.test_dora|cli\.test_lora_sh",
    "offload/ring": r"offload\.test_ring",
    "zero/late": r"zero\.|engine\.test_offload(_late|_calls)?$",
}
# not in every program: plug-ins with their own sources, what is only used with a GPU, experiments
LEFT_OUT = re.compile(r"/cuda/|/nccl/|^comm/mpi/|^comm/peer_watch|^comm/device/|/(plan|machine)_device\.c$|/lab/|_cuda\.c$")
FLAGS_OF = {"avx2": r"_avx2\.c$", "avx512f": r"_avx512\.c$", "avx512_bf16": r"_avx512bf16\.c$|/matmul_panels\.c$", "amx_bf16": r"_amx\.c$"}
QUIET = re.compile(r"^(err_|log_|printf|fprintf|snprintf|vsnprintf|free$|assert|report_|puts|fputs|static_assert|_Static_assert|sizeof)")
EQUIVALENT = os.path.join(ROOT, "tests/mutation/equivalent.txt")

SWITCH_H = """#pragma once
extern unsigned char *cz_mutant_reached __attribute__((visibility("hidden")));
extern int cz_mutant __attribute__((visibility("hidden")));
#define CZM(k) (cz_mutant_reached[k] = 1, cz_mutant == (k))
"""
SWITCH_C = """#include "mutant_switch.h"
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
static unsigned char nowhere[65536];
unsigned char *cz_mutant_reached = nowhere;
int cz_mutant = -1;
__attribute__((constructor(101))) static void read_switch(void)
{
    const char *id = getenv("CZ_MUTANT"), *path = getenv("CZ_MUTANT_REACHED");
    if (id) cz_mutant = atoi(id);
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *map = mmap(NULL, sizeof nowhere, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map != MAP_FAILED) cz_mutant_reached = map;
}
"""

# ---- C text, cut into statements -----------------------------------------------------------------

TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/)|(?P<directive>^[ \t]*\#(?:[^\n\\]|\\.)*)|(?P<text>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')
    |(?P<number>(?:0[xX][0-9a-fA-F.]+(?:[pP][+-]?\d+)?|\.?\d[\d.]*(?:[eE][+-]?\d+)?)[uUlLfF]*)|(?P<name>[A-Za-z_]\w*)
    |(?P<op><<=|>>=|\.\.\.|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|.)""", re.S | re.M | re.X)
BOUNDARY = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
OTHER = {"&&": "||", "||": "&&", "+": "-", "-": "+", "*": "+", "/": "*", "%": "/", "<<": ">>", ">>": "<<", "&": "|",
         "|": "&", "+=": "-=", "-=": "+=", "*=": "+=", "|=": "&="}
CLOSES = {"(": ")", "[": "]", "{": "}"}


class Token:
    __slots__ = ("kind", "text", "begin", "end")

    def __init__(self, match):
        self.kind, self.text = match.lastgroup, match.group()
        self.begin, self.end = match.span()


class Source:
    """The statements of one file's functions: spans(kind, first token, last token + 1)."""

    def __init__(self, path):
        self.path = path
        with open(os.path.join(ROOT, path), encoding="utf-8") as f:
            self.text = f.read()
        everything = [Token(m) for m in TOKEN.finditer(self.text)]
        self.directives = [t.begin for t in everything if t.kind == "directive"]
        self.tokens = [t for t in everything if t.kind not in ("space", "directive")]
        self.spans = []
        self.functions()

    def at(self, i):
        return self.tokens[i].text if i < len(self.tokens) else ""

    def closing(self, i):
        """Index of the token that closes the bracket at i."""
        depth, opens, closes = 0, self.at(i), CLOSES[self.at(i)]
        while i < len(self.tokens):
            depth += (self.at(i) == opens) - (self.at(i) == closes)
            if depth == 0:
                return i
            i += 1
        raise ValueError(f"{self.path}: unbalanced {opens}")

    def functions(self):
        i = 0
        while i < len(self.tokens):
            if self.at(i) == "{":
                end = self.closing(i)
                if self.at(i - 1) == ")":
                    self.block(i)
                i = end
            i += 1

    def block(self, i):
        end = self.closing(i)
        i += 1
        while i < end:
            i = self.statement(i)
        return end + 1

    def to_semicolon(self, i):
        while self.at(i) != ";":
            i = self.closing(i) + 1 if self.at(i) in CLOSES else i + 1
        return i

    def statement(self, i):
        word = self.at(i)
        if word == "{":
            return self.block(i)
        if word in ("if", "while", "switch"):
            end = self.closing(i + 1)
            after = self.statement(end + 1)
            if word != "switch":
                exits = self.at(end + 1) in ("return", "goto", "TRY", "break", "continue")
                has_else = self.at(after) == "else"
                self.spans.append(("check" if word == "if" and exits and not has_else else "condition", i + 2, end))
            if word == "if" and self.at(after) == "else":
                return self.statement(after + 1)
            return after
        if word == "do":
            i = self.statement(i + 1)
            end = self.closing(i + 1)
            self.spans.append(("condition", i + 2, end))
            return end + 2
        if word == "for":
            end = self.closing(i + 1)
            first = self.to_semicolon(i + 2)
            second = self.to_semicolon(first + 1)
            pragma = any(self.tokens[i - 1].end <= d < self.tokens[i].begin for d in self.directives)
            if second > first + 1 and not pragma:
                self.spans.append(("condition", first + 1, second))
            return self.statement(end + 1)
        if word in ("case", "default"):
            while self.at(i) != ":":
                i += 1
            return i + 1
        if self.tokens[i].kind == "name" and self.at(i + 1) == ":":
            return i + 2
        end = self.to_semicolon(i)
        if word == "return":
            if end > i + 1:
                self.spans.append(("return", i + 1, end))
        elif word not in (";", "goto", "break", "continue"):
            self.simple(i, end)
        return end + 1

    def simple(self, i, end):
        """A declaration with one initial value, or an expression."""
        depth, equals, commas = 0, [], 0
        for k in range(i, end):
            depth += self.at(k) in CLOSES
            depth -= self.at(k) in CLOSES.values()
            if depth == 0 and self.at(k) == "=":
                equals.append(k)
            commas += depth == 0 and self.at(k) == ","
        declares = self.tokens[i].kind == "name" and (
            self.tokens[i + 1].kind == "name" or self.at(i + 1) == "*" or self.at(i) in ("const", "static"))
        if not declares:
            self.spans.append(("expression", i, end))
        elif (len(equals) == 1 and commas == 0 and self.at(equals[0] + 1) != "{" and self.at(i) != "static"
              and not self.is_aggregate([self.at(k) for k in range(i, equals[0])])):
            self.spans.append(("initial", equals[0] + 1, end))

    @staticmethod
    def is_aggregate(declared):
        return "[" in declared or ("*" not in declared and ("struct" in declared or "union" in declared))

    def line(self, i):
        return self.text.count("\n", 0, self.tokens[i].begin) + 1


# ---- changes -------------------------------------------------------------------------------------

class Mutant:
    def __init__(self, source, span, what, at, new):
        self.source, self.span, self.what, self.new = source, span, what, new
        self.path, self.line, self.module = source.path, source.line(at), None
        start, end = source.text.rfind("\n", 0, source.tokens[at].begin) + 1, source.text.find("\n", source.tokens[at].begin)
        self.shown = source.text[start:end].strip()
        self.id = -1

    def key(self):
        return f"{self.path} | {self.shown} | {self.what}"


def joined(source, first, last, swap=None):
    """The tokens of a span as one line, some of them replaced."""
    swap = swap or {}
    return " ".join(swap.get(k, source.at(k)) for k in range(first, last))


def arguments(source, opening):
    """The arguments of the call whose bracket opens here, as token ranges."""
    end, ranges, first, i = source.closing(opening), [], opening + 1, opening + 1
    while i < end:
        if source.at(i) in CLOSES:
            i = source.closing(i)
        elif source.at(i) == ",":
            ranges.append((first, i))
            first = i + 1
        i += 1
    if end > opening + 1:
        ranges.append((first, end))
    return ranges


def mutants_of(source):
    for span in source.spans:
        kind, first, last = span
        begin, finish = source.tokens[first].begin, source.tokens[last - 1].end
        if any(begin <= d < finish for d in source.directives):
            continue

        def make(what, at, swap, span=span, first=first, last=last):
            return Mutant(source, span, what, at, joined(source, first, last, swap))

        word = source.at(first)
        if kind == "expression" and QUIET.match(word):
            continue
        if kind == "check":
            yield Mutant(source, span, "check dropped", first, "0")
        if kind == "expression" and source.at(first + 1) == "(" and source.closing(first + 1) == last - 1:
            if word in ("TRY", "TRY_GOTO"):
                inner = arguments(source, first + 1)[0]
                yield Mutant(source, span, "status ignored", first, "(void)(" + joined(source, *inner) + ")")
            elif word != "va_end":
                yield Mutant(source, span, "call left out", first, "(void)0")
        k, end_of_allocation = first, 0
        while k < last:
            token, before = source.tokens[k], source.tokens[k - 1]
            binary = k > first and (before.kind in ("name", "number") or before.text in (")", "]")) and before.text not in ("return", "sizeof")
            if token.kind == "name" and source.at(k + 1) == "(" and k + 1 < last:
                if QUIET.match(token.text):
                    k = source.closing(k + 1) + 1
                    continue
                if token.text in ("malloc", "calloc", "realloc"):
                    end_of_allocation = source.closing(k + 1)
                ranges = arguments(source, k + 1)
                for (a, b), (c, d) in zip(ranges, ranges[1:]):
                    if joined(source, a, b) != joined(source, c, d) and b - a <= 3 and d - c <= 3:
                        swap = {i: "" for i in range(a, b)} | {i: "" for i in range(c, d)}
                        swap[a], swap[c] = joined(source, c, d), joined(source, a, b)
                        yield make("arguments swapped", a, swap)
            elif token.text in BOUNDARY and binary:
                yield make(f"{token.text} -> {BOUNDARY[token.text]}", k, {k: BOUNDARY[token.text]})
            elif token.text in OTHER and (binary or token.text[-1] == "="):
                yield make(f"{token.text} -> {OTHER[token.text]}", k, {k: OTHER[token.text]})
            elif token.text == "!":
                yield make("! dropped", k, {k: ""})
            elif k > end_of_allocation and token.kind == "number" and re.fullmatch(r"\d+[uUlL]*", token.text):
                yield make(f"{token.text} -> {token.text}+1", k, {k: f"({token.text} + 1)"})
            k += 1


def for_another_processor():
    """Kernels whose instructions this processor lacks: no test here can reach them."""
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        flags = set(next((line.split(":")[1] for line in f if line.startswith("flags")), "").split())
    return re.compile("|".join(pattern for flag, pattern in FLAGS_OF.items() if flag not in flags) or "$^")


def sources_of(module):
    lacking = for_another_processor()
    names = subprocess.run(["git", "-C", ROOT, "ls-files", f"{module}/*.c", f"{module}.c"],
                           capture_output=True, text=True, check=True).stdout.split()
    return [n for n in names if not LEFT_OUT.search(n) and not lacking.search(n)]


def choose(options):
    """The chosen mutants of each module, spread evenly over kinds of change."""
    chosen = []
    for module in options.module:
        found = [m for path in sources_of(module) for m in mutants_of(Source(path))]
        for m in found:
            m.module = module
        if options.only:
            chosen += [m for m in found if f"{m.path}:{m.line}" == options.only]
            continue
        kinds = defaultdict(list)
        for m in found:
            kinds[re.sub(r"\d+\w*", "n", m.what) if "+1" in m.what else m.what].append(m)
        rng = random.Random(f"{options.seed} {module}")
        for group in kinds.values():
            rng.shuffle(group)
        order = sorted(kinds, key=lambda k: -len(kinds[k]))
        picked = []
        while len(picked) < min(2 * options.count, len(found)):  # twice: some do not compile
            for k in order:
                if kinds[k]:
                    picked.append(kinds[k].pop())
        chosen += picked
    return chosen


# ---- one build with all of them ---------------------------------------------------------------------

def instrumented(source, mutants):
    """The file's text with each change behind its switch; lines keep their numbers."""
    by_span = defaultdict(list)
    for m in mutants:
        by_span[m.span].append(m)
    text, cuts = source.text, []
    for (kind, first, last), group in by_span.items():
        begin, end = source.tokens[first].begin, source.tokens[last - 1].end
        old = text[begin:end]
        if kind in ("check", "condition", "initial"):
            new = "".join(f"CZM({m.id}) ? ({m.new}) : " for m in group) + f"({old})"
        elif kind == "return":
            begin = text.rindex("return", 0, begin)
            end = text.index(";", end) + 1
            new = "{ " + "".join(f"if (CZM({m.id})) return {m.new}; " for m in group) + f"return {old}; }}"
        else:
            end = text.index(";", end) + 1
            new = "{ " + "".join(f"if (CZM({m.id})) {{ {m.new}; }} else " for m in group) + f"{{ {old}; }} }}"
        cuts.append((begin, end, new))
    for begin, end, new in sorted(cuts, reverse=True):
        text = text[:begin] + new + text[end:]
    return '#include "mutant_switch.h"\n#line 1\n' + text


def is_changed(path):
    with open(path, encoding="utf-8") as f:
        return f.readline() == '#include "mutant_switch.h"\n'


def make_tree(options):
    tree = os.path.join(options.dir, "tree")
    stale = {name for name in glob.glob("**/*.c", root_dir=tree, recursive=True) if is_changed(os.path.join(tree, name))}
    names = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, check=True).stdout.decode().split("\0")[:-1]
    shutil.rmtree(tree, ignore_errors=True)
    for name in names:
        to = os.path.join(tree, name)
        os.makedirs(os.path.dirname(to), exist_ok=True)
        shutil.copy2(os.path.join(ROOT, name), to, follow_symlinks=False)
        if name in stale:
            os.utime(to)  # newer than its object, which has the last call's changes
    for name, text in (("mutant_switch.h", SWITCH_H), ("base/mutant_switch.c", SWITCH_C)):
        with open(os.path.join(tree, name), "w", encoding="utf-8") as f:
            f.write(text)
    return tree


def configure(options, tree):
    build = os.path.join(options.dir, "build")
    command = ["cmake", "-S", tree, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DCZ_CUDA=OFF", "-DCZ_WERROR=OFF",
               "-DCMAKE_C_FLAGS=-w", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"mutate: cmake failed\n{done.stderr[-2000:]}")
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as f:
        return build, {os.path.relpath(c["file"], tree): c["command"] for c in json.load(f)}


def drop_broken(tree, build, command, source, mutants):
    """Writes the file with those of its changes that compile."""
    path = os.path.join(tree, source.path)
    while mutants:
        with open(path, "w", encoding="utf-8") as f:
            f.write(instrumented(source, mutants))
        check = re.sub(r" -o \S+", "", command) + " -fsyntax-only -fmax-errors=0"
        done = subprocess.run(check, shell=True, cwd=build, capture_output=True, text=True)
        if done.returncode == 0:
            return mutants
        lines = {int(n) for n in re.findall(re.escape(source.path) + r":(\d+):\d+: (?:fatal )?error", done.stderr)}
        left = []
        for m in mutants:
            first, last = source.line(m.span[1]), source.line(m.span[2] - 1)
            if not any(first - 1 <= n <= last + 1 for n in lines):
                left.append(m)
        if len(left) == len(mutants):
            left = []
        mutants = left
    with open(path, "w", encoding="utf-8") as f:
        f.write(source.text)
    return []


def build_all(options, mutants):
    tree = make_tree(options)
    build, commands = configure(options, tree)
    by_source = defaultdict(list)
    for k, m in enumerate(mutants):
        m.id = k
        by_source[m.source].append(m)
    known = equivalents()
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        results = pool.map(lambda s: drop_broken(tree, build, commands[s.path], s, by_source[s]),
                           [s for s in by_source if s.path in commands])
        alive = [m for group in results for m in group]
    kept = []
    for module in options.module:
        of = sorted((m for m in alive if m.module == module and m.key() not in known), key=lambda m: m.id)
        kept += of if options.only else of[:options.count]
    print(f"mutate: {len(kept)} changes; building", flush=True)
    tests = list_tests(build, options)
    targets = {"unpack_fixtures"} | ({"tool_czero", "czero_shared"} if any(t.is_script for t in tests) else set())
    targets |= {t.name for t in tests if not t.is_script}
    command = ["cmake", "--build", build, "-j", str(options.jobs)] + (["--target", *sorted(targets)] if folders_only(options) else [])
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"mutate: the build failed\n{done.stdout[-3000:]}")
    return build, kept


def equivalents():
    if not os.path.exists(EQUIVALENT):
        return set()
    with open(EQUIVALENT, encoding="utf-8") as f:
        return {line.rstrip("\n") for line in f if line.strip() and not line.startswith("#")}


# ---- tests -----------------------------------------------------------------------------------------

class Test:
    def __init__(self, entry):
        self.name, self.command = entry["name"], entry.get("command")
        self.is_script = self.name.endswith("_sh")
        properties = {p["name"]: p["value"] for p in entry["properties"]}
        self.labels = properties.get("LABELS", [])
        self.folder = properties.get("WORKING_DIRECTORY")
        self.environment = dict(e.split("=", 1) for e in properties.get("ENVIRONMENT", []))
        self.lock = bool(properties.get("RESOURCE_LOCK"))
        self.seconds, self.reached = 0.0, b""


LOCK = threading.Lock()


def limits():
    resource.setrlimit(resource.RLIMIT_DATA, (8 << 30, 8 << 30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in signal.SIGHUP, signal.SIGINT, signal.SIGQUIT:  # which a background job of a shell ignores
        signal.signal(number, signal.SIG_DFL)


def end_session(leader):
    """Kills all processes of a session: a case of Check has a process group of its own."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as f:
                session = int(f.read().rsplit(")", 1)[1].split()[3])
            if session == leader:
                os.kill(int(name), signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):
            pass


def run_test(test, extra, timeout):
    """Runs one test in a session and a temporary folder of its own: its exit status, None past the time limit."""
    with tempfile.TemporaryDirectory(prefix="mutate-", ignore_cleanup_errors=True) as folder:
        environment = os.environ | test.environment | extra | {"TMPDIR": folder}
        if test.lock:
            LOCK.acquire()
        try:
            process = subprocess.Popen(test.command, cwd=test.folder, env=environment, start_new_session=True,
                                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                       preexec_fn=limits)
            try:
                return process.wait(timeout)
            except subprocess.TimeoutExpired:
                return None
            finally:
                end_session(process.pid)
                process.wait()
        finally:
            if test.lock:
                LOCK.release()


def folders_only(options):
    return all("/" in m for m in options.module)


def own_tests(module):
    """The names of the tests that must notice a change: the longest entry of OWN_TESTS that leads to it."""
    of = [folder for folder in OWN_TESTS if (module + "/").startswith(folder + "/")]
    return OWN_TESTS[max(of, key=len)] if of else module.split("/")[0] + r"\."


def list_tests(build, options):
    text = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"], capture_output=True, text=True, check=True).stdout
    tests = [Test(e) for e in json.loads(text)["tests"]]
    own = re.compile("|".join(own_tests(m) for m in options.module) if folders_only(options) else "")
    return [t for t in tests if own.match(t.name) and not {"slow", "gpu"} & set(t.labels) and not re.match(r"lint\.|install\.", t.name)]


def measure(options, tests):
    """Each test once without a change: its time, and the changes that it reaches. Tests that fail are left out."""
    kept = os.path.join(options.dir, "tests.json")
    if os.path.exists(kept):
        with open(kept, encoding="utf-8") as f:
            known = json.load(f)
        for t in tests:
            if t.name in known:
                t.seconds, t.reached = known[t.name][0], bytes.fromhex(known[t.name][1])
        return [t for t in tests if t.name in known]

    def one(test):
        with tempfile.NamedTemporaryFile(prefix="mutate-reached-") as f:
            f.truncate(65536)
            begin = time.monotonic()
            test.status = run_test(test, {"CZ_MUTANT_REACHED": f.name}, 900)
            test.seconds = time.monotonic() - begin
            with mmap.mmap(f.fileno(), 65536) as m:
                test.reached = m[:]
        return test

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        done = list(pool.map(one, tests))
    for t in done:
        if t.status not in (0, 77):
            print(f"mutate: {t.name} fails without a change (status {t.status}): left out", flush=True)
    done = [t for t in done if t.status == 0]
    with open(kept, "w", encoding="utf-8") as f:
        json.dump({t.name: (t.seconds, t.reached.hex()) for t in done}, f)
    return done


def try_mutant(m, tests, budget):
    """The test that notices the change, or None."""
    own = re.compile(own_tests(m.module))
    reaching = [t for t in tests if t.reached[m.id] and (own.match(t.name) or "/" not in m.module)]
    reaching.sort(key=lambda t: (not own.match(t.name), t.seconds))
    m.n_reaching, spent = len(reaching), 0.0
    for t in reaching:
        if spent > budget:
            break
        limit = 4 * t.seconds + 10
        begin = time.monotonic()
        status = run_test(t, {"CZ_MUTANT": str(m.id), "CK_DEFAULT_TIMEOUT": str(int(limit))}, limit)
        spent += time.monotonic() - begin
        if status != 0:
            return t.name + ("" if status is not None else " (time limit)")
    return None


# ---- the run -----------------------------------------------------------------------------------------

def read_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--module", default=",".join(MODULES))
    parser.add_argument("--count", type=int, default=25)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--budget", type=float, default=60)
    parser.add_argument("--floor", type=float, default=85)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only")
    parser.add_argument("--dir", default=os.path.join(ROOT, "build-mutate"))
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    options.module = [options.only.split("/")[0]] if options.only else [m.rstrip("/") for m in options.module.split(",")]
    unknown = [m for m in options.module if m.split("/")[0] not in MODULES or not sources_of(m)]
    if unknown:
        parser.error(f"no module {', '.join(unknown)}; there are {', '.join(MODULES)} and their folders")
    options.dir = os.path.realpath(options.dir)
    return options


def report(mutants, options):
    good = True
    print(f"\n{'module':16} {'changes':>8} {'noticed':>8} {'percent':>8}")
    for module in options.module:
        of = [m for m in mutants if m.module == module]
        if not of:
            continue
        noticed = sum(m.killer is not None for m in of)
        share = 100 * noticed / len(of)
        good &= share >= options.floor
        print(f"{module:16} {len(of):8} {noticed:8} {share:8.0f}")
    survivors = [m for m in mutants if m.killer is None]
    print(f"\n{len(mutants)} changes, {len(mutants) - len(survivors)} noticed, {len(survivors)} not:")
    for m in survivors:
        print(f"  {m.path}:{m.line} | {m.what} | {m.n_reaching} tests reach it\n      {m.shown}\n      now: {m.new[:160]}")
    return good


def prepare_folder(options):
    """Empties the folder unless the same call on the same commit began there."""
    stamp = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout
    stamp += f"{options.module} {options.count} {options.seed} {options.only}"
    path = os.path.join(options.dir, "call")
    os.makedirs(options.dir, exist_ok=True)
    if os.path.exists(path):
        with open(path, encoding="utf-8") as f:
            if f.read() == stamp:
                return
    for name in "tests.json", "results.tsv":
        if os.path.exists(os.path.join(options.dir, name)):
            os.remove(os.path.join(options.dir, name))
    with open(path, "w", encoding="utf-8") as f:
        f.write(stamp)


def read_results(path):
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as f:
        rows = [line.rstrip("\n").split("\t") for line in f]
    return {row[0]: (row[1] or None, int(row[2])) for row in rows if len(row) == 4}


def main():
    options = read_options()
    mutants = choose(options)
    if options.list:
        for m in mutants:
            print(f"{m.path}:{m.line} | {m.shown} | {m.what}")
        return 0
    prepare_folder(options)
    build, mutants = build_all(options, mutants)
    tests = measure(options, [t for t in list_tests(build, options) if t.command])
    print(f"mutate: {len(tests)} tests, {sum(t.seconds for t in tests):.0f} s without a change", flush=True)
    begin, path = time.monotonic(), os.path.join(options.dir, "results.tsv")
    known = read_results(path)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool, open(path, "a", encoding="utf-8") as results:
        running = {}
        for m in mutants:
            if str(m.id) in known:
                m.killer, m.n_reaching = known[str(m.id)]
            else:
                running[pool.submit(try_mutant, m, tests, options.budget)] = m
        for n, future in enumerate(concurrent.futures.as_completed(running), 1):
            m = running[future]
            m.killer = future.result()
            print(m.id, m.killer or "", m.n_reaching, m.key(), sep="\t", file=results, flush=True)
            print(f"[{n}/{len(running)}] {m.path}:{m.line} | {m.what} | {m.killer or 'NOT NOTICED'}", flush=True)
    print(f"mutate: {time.monotonic() - begin:.0f} s")
    return 0 if report(mutants, options) else 1


if __name__ == "__main__":
    sys.exit(main())
