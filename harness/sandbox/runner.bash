# The in-sandbox action runner: one long-lived bash that needs nothing but bash and coreutils.
#
#   bash runner.bash STEPS CWD PROCESSES
#
# stdin   KEY\0; the environment of every action, as NAME=VALUE\0 entries ended by an empty one; then requests
#         KEY\0 TOKEN\0 KIND\0 SCRIPT\0. Whatever comes before a KEY is passed over: an action may be able to write
#         here. End of file ends the sandbox.
# stdout  "ready", then one report a request: "TOKEN STATUS CUT PID ALIVE". CUT is 1 when the host cut the step off.
#         ALIVE is "=" and the names of the processes that are left, a space before each; "?" where /proc does not say.
#         stderr goes to the same place: bash's "PID Killed" notices tell death by a signal from exit 137.
# TOKEN is NAME.SEAL: the seal is in no name, so that an action cannot write the report of its own step.
# STEPS/NAME is the FIFO that takes the action's stdout and stderr.
#
# KIND: c  SCRIPT is the action
#       f  STEPS/NAME.sh holds the action; it still fits one argv entry
#       s  STEPS/NAME.sh holds the action, longer than one argv entry: it is sourced
#       p  as c, for the host's own work: BASH_ENV is not read
#       l  nothing is run: only the report is wanted
#
# SIGUSR1 ends the step that is running, and nothing else: processes of earlier steps live on.

steps=$1 cwd=$2 processes=$3
running='' cut=0 before=()
session=(setsid)
type -P setsid >/dev/null || session=()

take() { LC_ALL=C IFS= read -r -d '' "$1"; }

# Kill without forking: the step may have used up every process. As PID 1 with nothing older alive, one call
# does it, atomically. Else stop first, so that nothing forks away between the look and the kill.
end_step() {
  [[ -n $running ]] || return
  cut=1
  if [[ $$ == 1 && ${#before[@]} == 1 ]]; then
    kill -KILL -1 2>/dev/null
    return
  fi
  local pass signal
  for signal in STOP KILL; do
    for ((pass = 0; pass < 200; pass++)); do
      signal_newborn "$signal" || break
    done
  done
}

# Send $1 to each living process born in this step; fails when there was none left to send it to. Born in this
# step: absent from /proc at its start, and its line of parents reaches us past no process that was there.
signal_newborn() {
  local -A old=() parent=() state=()
  local path pid line found=1
  for path in "${before[@]}"; do old[${path#/proc/}]=1; done
  for path in /proc/[0-9]*; do
    pid=${path#/proc/}
    [[ -z ${old[$pid]} ]] || continue
    { IFS= read -r -d '' line || [[ -n $line ]]; } 2>/dev/null <"$path/stat" || continue
    line=${line##*) }
    state[$pid]=${line%% *}
    line=${line#* }
    parent[$pid]=${line%% *}
  done
  for pid in "${!parent[@]}"; do
    case ${state[$pid]} in
      Z | X) continue ;;
      T) [[ $1 == STOP ]] && continue ;;
    esac
    path=${parent[$pid]}
    while [[ $path != "$$" && -n ${parent[$path]} ]]; do path=${parent[$path]}; done
    [[ $path == "$$" ]] || continue
    kill -"$1" "$pid" 2>/dev/null && found=0
  done
  return $found
}

run() {
  local sealed=$1 token=${1%%.*} kind=$2 script=$3 pid status plain=()
  case $kind in
    f) IFS='' LC_ALL=C read -r -d '' script <"$steps/$token.sh" ;;
    s) printf -v script '. %q' "$steps/$token.sh" ;;
    p) plain=(-p) ;;
  esac
  before=(/proc/[0-9]*)
  cut=0 running=1
  # A background list ignores INT and QUIT unless told otherwise; an action must start with all defaults.
  {
    trap - INT QUIT USR1
    [[ -z $processes || $kind == p ]] || ulimit -u "$processes"
    # Beside where it was, so that an action can put it back.
    cd -- "$cwd" 2>/dev/null || {
      [[ $kind == p ]] || printf 'forkroll: the working folder %s is gone\n' "$cwd"
      cd -- "${cwd%/*}/" || exit 1
    }
    exec "${session[@]}" bash "${plain[@]}" -c -- "$script"
  } </dev/null >"$steps/$token" 2>&1 &
  pid=$!
  wait "$pid"
  status=$?
  # 138 is also what `wait` answers when USR1 came in, or came in just after the last `wait` had ended: ask again.
  while ((status == 138)) && kill -0 "$pid" 2>/dev/null; do
    wait "$pid"
    status=$?
  done
  if ((status == 138)); then
    wait "$pid"
    status=$?
  fi
  running=''
  report "$sealed" "$status" "$cut" "$pid"
}

report() {
  local alive='?'
  if [[ -e /proc/$$/task/$$/children ]]; then
    alive='='
    living_below $$
  fi
  # First a line end: something else may have written half a line to where reports go.
  printf '\n%s %s %s %s %s\n' "$1" "$2" "$3" "$4" "$alive"
}

# Add the names of the processes below $1 to `alive`, without forking. What was left by its parent has come to us.
living_below() {
  local file pid line name children
  ((${#alive} < 8192)) || return 0
  for file in /proc/"$1"/task/*/children; do
    children=()
    { read -r -a children <"$file"; } 2>/dev/null
    ((${#children[@]})) || continue
    local LC_ALL=C
    for pid in "${children[@]}"; do
      line=''
      { IFS= read -r -d '' line <"/proc/$pid/stat"; } 2>/dev/null
      [[ -n $line ]] || { alive+=' ?'; continue; } # gone just now, and maybe not without leaving something
      name=${line#*(} line=${line##*) }
      [[ $line != [ZX]* ]] || continue
      name=${name%)*}
      alive+=" ${name//[^[:graph:]]/?}"
      living_below "$pid"
    done
  done
}

main() {
  local key field entry token kind script
  unset SHLVL OLDPWD
  take key
  while take entry && [[ -n $entry ]]; do export "${entry?}"; done
  trap end_step USR1
  echo ready
  while take field; do
    [[ $field == *"$key" ]] || continue
    take token && take kind && take script || break
    if [[ $kind == l ]]; then report "$token" 0 0 0; else run "$token" "$kind" "$script"; fi
  done
  exit 0
}

main
