#!/usr/bin/env bash
# A language model, from raw text to the loss on the test text. See --help.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

case ${1:-} in
  enwik8 | ptb | tinyshakespeare | wikitext2 | wikitext103) norm_plugin run "$@" ;;
  -h | --help)
    printf 'usage: scripts/run_lm.sh CORPUS [OPTIONS] [KEY=VALUE...] [-- FLAGS]\n'
    printf 'CORPUS is enwik8, ptb, tinyshakespeare, wikitext2 or wikitext103; CORPUS --help shows the options.\n'
    ;;
  *)
    printf 'error: CORPUS is %s; choose enwik8, ptb, tinyshakespeare, wikitext2 or wikitext103\n' "'${1:-}'" >&2
    exit 2
    ;;
esac
