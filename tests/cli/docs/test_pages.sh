#!/usr/bin/env bash
# Claim: every command of the pages that people copy from (README.md and the guides of docs/) runs as printed, in the page's order, on tiny models and files
# of the names that the page has; what the page shows below a command is what the command prints, and a run's highest rate is the one of the page's config.
# Commands that cannot run here are in skipped.txt with their reason, each as it stands in its page: a list that should only become shorter.
# With a python that has PEFT as second argument ($(scripts/peers.sh)) the Python of docs/finetune.md runs as well and has to write what czero generates.
. "$(dirname "$0")/../../support/command.sh"
unset NO_COLOR CZERO_LOG
python3 "$source_dir/tests/cli/docs/pages.py" "$build" "$source_dir" "$@" || fail "pages differ from what their commands do"
