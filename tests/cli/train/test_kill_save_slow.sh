#!/usr/bin/env bash
# Claim: that of test_kill_save.sh, at 400 moments.
CZERO_KILLS=400 exec bash "$(dirname "$0")/test_kill_save.sh" "$@"
