# What the shell scripts beside this file print of their own: bold on a terminal, unless NO_COLOR is set (no-color.org).
say() {
  if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then
    printf '\033[1m==> %s\033[0m\n' "$*"
  else
    printf '==> %s\n' "$*"
  fi
}
