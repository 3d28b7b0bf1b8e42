#!/usr/bin/env bash
# Claim: formats/output.c and formats/file_io.c are the only places that create, rename or open for writing by
# name, so that nothing is written through a link below a folder that the user named. The exceptions have reasons.
set -uo pipefail
cd "$(dirname "$0")/../.."

calls='(?<![\w.>])(mkdir|mkdirat|rename|renameat2?|link|linkat|symlink|symlinkat|mkstemp|mkdtemp|mkfifo|mknod|creat|tmpfile|freopen)\(|O_CREAT|O_TMPFILE|(?<![\w])fopen\([^;]*"(w|a|r\+)'
# file: why it may
allowed='
formats/output.c: the module
formats/file_io.c: the module, and the file that appears when it is complete
checkpoint/store/store.c: names in the folder that the user named itself; mkdir follows no link
checkpoint/store/store_fs.c: the same: mkdir, rename and linkat follow no link at the end
checkpoint/store/store_lock.c: the same: O_EXCL and O_NOFOLLOW
offload/swap/swap_folder.c: offload may not include formats; nvme_path is resolved once, then O_EXCL and O_NOFOLLOW
offload/swap/swap_file.c: the same
engine/tune/tune_measure.c: /proc/self/clear_refs is no file
ops/matmul/matmul_choices_cuda.cu: a file that the user names; ops may not include formats
'
failed=0
complain() {
  echo "$1" >&2
  failed=1
}

found=$(grep -rnP --include='*.[ch]' --include='*.cu' "$calls" api base checkpoint comm data device engine formats layout \
  model offload ops optim tools zero | grep -vP '^[^:]+:\d+:\s*(/\*|\*[ /]|//)')
while IFS=: read -r file line text; do
  grep -q "^$file: ." <<<"$allowed" || complain "$file:$line: creates by name; use formats/output.h: $text"
done < <(sed '/^$/d' <<<"$found")
while IFS=: read -r file _; do
  [ -z "$file" ] || grep -q "^$file:" <<<"$found" || complain "tests/lint/test_writes.sh: $file needs no exception"
done <<<"$allowed"
exit $failed
