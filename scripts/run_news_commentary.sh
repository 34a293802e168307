#!/usr/bin/env bash
# News Commentary English-German, from the archives to BLEU. See --help.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

norm_plugin run news_commentary "$@"
