# The in-sandbox action runner: one long-lived bash that needs nothing but bash and coreutils.
#
#   bash runner.bash STEPS CWD PROCESSES
#
# stdin   the environment of every action, as NAME=VALUE\0 entries ended by an empty one; then requests
#         TOKEN\0 KIND\0 SCRIPT\0. End of file ends the sandbox.
# stdout  "ready", then one report a request: "TOKEN STATUS CUT PID". CUT is 1 when the host cut the step off.
#         stderr goes to the same place: bash's "PID Killed" notices tell death by a signal from exit 137.
# STEPS/TOKEN is the FIFO that takes the action's stdout and stderr.
#
# KIND: c  SCRIPT is the action
#       f  STEPS/TOKEN.sh holds the action; it still fits one argv entry
#       s  STEPS/TOKEN.sh holds the action, longer than one argv entry: it is sourced
#       p  as c, for the host's own work: BASH_ENV is not read
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
  local token=$1 kind=$2 script=$3 pid status plain=()
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
    cd -- "$cwd" 2>/dev/null || { printf 'forkroll: the working folder %s is gone\n' "$cwd"; exit 1; }
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
  printf '%s %s %s %s\n' "$token" "$status" "$cut" "$pid"
}

main() {
  local entry token kind script
  unset SHLVL OLDPWD
  while take entry && [[ -n $entry ]]; do export "${entry?}"; done
  trap end_step USR1
  echo ready
  while take token && take kind && take script; do run "$token" "$kind" "$script"; done
  exit 0
}

main
