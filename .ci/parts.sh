# What .ci/run and .ci/wide share: fresh copies of the checkout, parts that all run, and one summary at the end.
cd "$(dirname "$0")/.."
work=$(mktemp -d "${TMPDIR:-/tmp}/replog-ci.XXXXXX")
mkdir "$work/logs"
beside=
tidy() {
  [ -z "$beside" ] || kill "$beside" 2>/dev/null || true
  rm -rf "$work"
}
trap tidy EXIT
trap 'exit 130' INT TERM

# fresh NAME: a copy of the checkout, without what git does not keep.
fresh() {
  mkdir "$work/$1"
  tar --exclude=./.git --exclude=./.venv --exclude=./build --exclude=__pycache__ --exclude='*.egg-info' \
    --exclude='./replog-demo-*' -cf - . | tar -C "$work/$1" -xf -
}

# the_line FILE PATTERN: the one line of a page, or cell of its tables, that a part runs.
the_line() {
  found=$(grep -oE "$2" "$1" | sort -u || true)
  if [ -z "$found" ] || [ "$(printf '%s\n' "$found" | wc -l)" -ne 1 ]; then
    echo "$1 must have exactly one: $2" >&2
    exit 2
  fi
  printf '%s\n' "$found"
}

# After an hour all that a part started ends; at a terminal it ends by Ctrl-C, which only its own group gets.
who=
[ ! -t 1 ] || who=--foreground

# part NAME COPY COMMAND: run a command in a copy; its output is shown and kept, its end goes into the summary.
part() {
  began=$(date +%s)
  echo "+ $3"
  { (cd "$work/$2" && timeout $who -k 60 3600 sh -c "$3") && echo 0 >"$work/logs/$1.code" || echo $? >"$work/logs/$1.code"; } 2>&1 |
    tee "$work/logs/$1.log"
  echo "$1: $((($(date +%s) - began + 30) / 60)) min, exit code $(cat "$work/logs/$1.code")" >>"$work/summary"
}

# finish: print the summary; the exit code is that of a part that failed, if one did.
finish() {
  code=0 passed=0 failed=0 skipped=0
  for name in "$work"/logs/*.code; do
    last=$(grep -E '^=+ .* in [0-9.]+s.* =+$' "${name%.code}.log" | tail -n 1)
    passed=$((passed + $(count passed)))
    failed=$((failed + $(count failed) + $(count error)))
    skipped=$((skipped + $(count skipped)))
    if [ "$code" -eq 0 ]; then code=$(cat "$name"); fi
  done
  if [ "$code" -ne 0 ] && [ "$failed" -eq 0 ]; then failed=1; fi # it did not get as far as a test
  echo
  cat "$work/summary"
  echo "$passed passed, $failed failed, $skipped skipped"
  exit "$code"
}

# count WORD: the number before it in pytest's last line.
count() {
  printf '%s\n' "$last" | grep -oE "[0-9]+ $1" | grep -oE '^[0-9]+' || echo 0
}

order=
case "${1-}" in
  --shuffle) order="--shuffle $2" ;;
  ?*) echo "usage: $0 [--shuffle SEED]" >&2 && exit 2 ;;
esac
# A test that hangs for 15 minutes ends its process, which counts as a failure; a part that does not end, ends after an hour.
hangs="-o faulthandler_timeout=900 -o faulthandler_exit_on_timeout=true"
export PYTEST_ADDOPTS="--durations=30 --durations-min=1 --no-skips $hangs${order:+ $order}"
