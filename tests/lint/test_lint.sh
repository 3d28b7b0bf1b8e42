#!/usr/bin/env bash
# Claim: library code never prints, exits or aborts; foreign allocation calls stay in their wrapper; readers of
# checkpoint and model folders open files by formats/beneath.h alone, and map none;
# nothing in the tree names a package registry's host or a text that is not in the tree, no test pipes a program into grep -q, and sections
# of docs/deepspeed-behaviour.md that are cited exist.
set -uo pipefail
cd "$(dirname "$0")/../.."
modules="base device layout formats comm ops optim model data offload zero checkpoint engine api"
failed=0
forbid() { # pattern, what, folders…
  local pattern=$1 what=$2
  shift 2
  local hits
  hits=$(grep -rnP --include='*.[ch]' --include='*.cu' "$pattern" "$@" |
    grep -vP ':\s*(\*|/\*|//)' | grep -v "${but:-^$}" || true)
  if [ -n "$hits" ]; then
    printf '%s:\n%s\n' "$what" "$hits" >&2
    failed=1
  fi
}
# shellcheck disable=SC2086
{
  forbid '(?<![\w.>])(printf|puts|putchar|perror|fputs)\s*\(\s*("|stdout|stderr)' \
    'the library prints' $modules
  forbid '(?<![\w.])f?printf\s*\(\s*(stdout|stderr)' 'the library prints' $modules
  forbid '(?<![\w.>_])(exit|_exit|abort|quick_exit)\s*\(' 'the library ends the process' $modules
  forbid '\bcuda(Malloc|MallocHost|HostAlloc|Free)\s*\(' 'raw CUDA allocation outside device/' \
    base layout formats comm ops optim model data offload zero checkpoint engine
  forbid '(?<![\w.>])(open|fopen|stat|file_open_read|file_load|json_load|pt_open|safetensors_open)\s*\(' \
    'a name in a folder that is not resolved by formats/beneath.h' \
    checkpoint/read/[!n]*.c checkpoint/fsck/fsck_*.c model data/tokenizer/*/ engine/state engine/infer
  forbid '(?<![\w.>])mmap\s*\(' 'a mapping, which ends the process where a file is truncated' \
    layout formats optim model data offload zero checkpoint
  # --rename, of a user's command line alone, has groups
  but='^engine/state/load_names\.c:' forbid '(?<![\w.>])reg(comp|exec)\s*\(' 'a matcher without a bound: use base/text/regex.h' $modules tools
  forbid '\batomicAdd\s*\(\s*\(?\s*(float|double)' 'floating-point atomics' ops
  forbid '#\s*if(def|ndef)?\s+.*USE_CUDA' 'preprocessor device switch' $modules
}
hosts='pypi\.org|pythonhosted|deb\.debian\.org|npmjs|crates\.io|proxy\.golang'
if hits=$(git ls-files -z | xargs -0 grep -nIE "$hosts" -- 2>/dev/null |
  grep -v '^tests/lint/test_lint.sh'); then
  printf 'package registry hosts named:\n%s\n' "$hits" >&2
  failed=1
fi
beside="\\.\\./shared|\\bspec (§|Q[0-9])|\\bthe spec\\b|DESIGN §|design\\.md §|team's (design|style|own)? ?paper"
if hits=$(git ls-files -z | xargs -0 grep -nIE "$beside" -- 2>/dev/null |
  grep -vE '^(tests/[a-z]+/test_lint.sh|examples/data/)'); then
  printf 'texts named that are not in the tree:\n%s\n' "$hits" >&2
  failed=1
fi
# `grep -q` leaves at its first hit: under pipefail the program before it then fails by SIGPIPE, now and then.
if hits=$(git ls-files -z 'tests/*.sh' 'scripts/*.sh' | xargs -0 grep -nE '"?\$\{?(czero|build|tool|example|train)\b([^|&]|>&)*\| *grep -[a-zA-Z]*q' --); then
  printf 'a program that writes into grep -q: keep its output first:\n%s\n' "$hits" >&2
  failed=1
fi
# docs/deepspeed-behaviour.md is cited by the names of its sections.
page=docs/deepspeed-behaviour.md
n_cited=0
while IFS=$'\t' read -r file section; do
  n_cited=$((n_cited + 1))
  grep -qE "^##+ $section\$" $page || {
    echo "$file: $page has no section \"$section\"" >&2
    failed=1
  }
done < <(git ls-files -z '*.[ch]' '*.cu' '*.py' | xargs -0 perl -0777 -ne \
  's/\n[ *#]+/ /g; while (m{docs/deepspeed-behaviour\.md, "([^"]+)"(?: (?:to|and) "([^"]+)")?}g) {
     print "$ARGV\t$_\n" for grep { defined } $1, $2 }')
[ "$n_cited" -ge 25 ] || { echo "only $n_cited citations of $page found" >&2; failed=1; }
[ $failed = 0 ] && echo "no findings"
exit $failed
