# Runs on a node without python3: the same blocks as remote.py sends, read twice a second with what every system has.
# MARK and HINT are set before it. Processes are looked at every ten seconds, GPUs every five.
LC_ALL=C; export LC_ALL
root=${LLMTOP_ROOT:-}
fields=index,uuid,name,utilization.gpu,power.draw,power.limit,temperature.gpu,clocks.sm,clocks_throttle_reasons.active,memory.total,memory.used,clocks.max.sm
apps=gpu_uuid,pid,process_name,used_memory
put() { printf '\n@%s %s %s\n' "$MARK" "$1" "$2"; }
file() { [ -r "$root/$1" ] && put file "$1" && cat "$root/$1" 2>/dev/null; }
link() { text=$(readlink "$root/$1" 2>/dev/null) && put link "$1" && printf '%s' "$text"; }
limit=$(command -v timeout >/dev/null 2>&1 && echo "timeout 4")
smi=$(PATH=$PATH:/usr/bin:/usr/lib/wsl/lib command -v nvidia-smi)

# command lines without the values of keys and passwords, a word a line
mask() {
  sed -e ':again
/^--*[A-Za-z_-]*\([Kk]ey\|[Kk]eys\|[Tt]oken\|[Ss]ecret\|[Pp]assword\|[Pp]asswd\|[Cc]redentials\)=.*/s/=.*/=***/
s/^\([A-Za-z_]*\(KEY\|TOKEN\|SECRET\|PASSW\)[A-Za-z_]*\)=.*/\1=***/
/^--*[A-Za-z_-]*\([Kk]ey\|[Kk]eys\|[Tt]oken\|[Ss]ecret\|[Pp]assword\|[Pp]asswd\|[Cc]redentials\)$/{
:hidden
n
/^-/b again
s/.*/***/
b hidden
}'
}

network() {
  link "proc/$1/ns/net"
  for table in tcp tcp6; do
    put file "proc/$1/net/$table"
    sed -n -e 1p -e '/^ *[0-9]*: [^ ]* [^ ]* 0A /p' "$root/proc/$1/net/$table" 2>/dev/null
  done
  file "proc/$1/net/fib_trie"
}

parent() {
  above=$(sed 's/.*) [A-Za-z] \([0-9]*\) .*/\1/' "$root/proc/$1/stat" 2>/dev/null)
  printf '%s' "${above:-0}"
}

processes() {
  put scan
  found=$(cd "$root/proc" && grep -liE "$HINT" [0-9]*/cmdline 2>/dev/null)
  [ -n "$found" ] || return
  network self
  for path in $found; do
    pid=${path%/cmdline}
    [ "$pid" = "$$" ] && continue
    put file "proc/$pid/stat"
    printf '%s (-) S %s' "$pid" "$(parent "$pid")"
    put file "proc/$pid/cmdline"
    tr '\000' '\n' <"$root/proc/$pid/cmdline" 2>/dev/null | mask | tr '\n' '\000'
    network "$pid"
  done
}

# power of the whole machine, of those rails that are shown
board() {
  for folder in "$root"/sys/class/hwmon/hwmon*; do
    read -r name 2>/dev/null <"$folder/name" || continue
    case $name in spbm*) ;; *) continue ;; esac
    place=sys/class/hwmon/${folder##*/}
    file "$place/name"
    file "$place/prochot"
    for path in "$folder"/power*_label; do
      read -r name <"$path" || continue
      case $name in sys_total | soc_pkg | cpu_[pe] | gpu | dc_input | pl1 | syspl1)
        path=${path##*/}
        file "$place/$path"
        file "$place/${path%label}input"
        ;;
      esac
    done
  done 2>/dev/null
}

gpus() {
  if [ -z "$smi" ]; then
    put smi gpu
    printf 'no nvidia-smi'
  elif rows=$($limit "$smi" "--query-gpu=$fields" --format=csv,noheader,nounits 2>&1 </dev/null); then
    put gpu "$fields"
    printf '%s\n' "$rows"
    put apps "$apps"
    rows=$($limit "$smi" "--query-compute-apps=$apps" --format=csv,noheader,nounits 2>/dev/null </dev/null)
    printf '%s\n' "$rows"
    for pid in $(printf '%s\n' "$rows" | sed -n 's/^[^,]*, \([0-9][0-9]*\),.*/\1/p'); do
      put file "proc/$pid/stat"
      printf '%s (-) S %s' "$pid" "$(parent "$pid")"
      file "proc/$pid/cgroup"
    done
  else
    put smi gpu
    printf '%s' "${rows:-nvidia-smi does not answer}"
  fi
}

put hello
printf '{"reader": "sh", "page_size": %s}' "$(getconf PAGESIZE 2>/dev/null || echo 4096)"
file proc/sys/kernel/hostname
file proc/driver/nvidia/params
put file proc/self/mountinfo
grep ' /proc/meminfo ' "$root/proc/self/mountinfo" 2>/dev/null
round=0
while :; do
  [ $((round % 20)) = 0 ] && processes
  [ $((round % 10)) = 0 ] && { gpus; board; }
  file proc/meminfo
  if [ $((round % 2)) = 0 ]; then
    for path in proc/pressure/memory proc/uptime; do file "$path"; done
    put file proc/stat
    head -n 1 "$root/proc/stat" 2>/dev/null
    put file proc/vmstat
    grep '^pswpout ' "$root/proc/vmstat" 2>/dev/null
    for folder in "$root"/sys/devices/system/node/node[0-9]*; do
      name=sys/devices/system/node/${folder##*/}
      file "$name/meminfo"
      file "$name/cpulist"
    done
  fi
  put end
  put wait || exit 0
  sleep 0.5 || sleep 1
  round=$((round + 1))
done
