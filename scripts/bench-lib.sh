# Common code of the benchmarks: source disk and timing. Sourced, never run; rounds, cache and trueup are set below.
# shellcheck shell=bash
rounds=${ROUNDS:-5}
cache=.cache/bench
trueup=bin/trueup

die() {
	echo "bench: $*" >&2
	exit 1
}

check_tools() {
	local tool
	for tool in sfdisk mkntfs ntfscp qemu-img tar gzip awk; do
		command -v "$tool" >/dev/null || die "$tool is missing; make tools installs it"
	done
	[ -x /usr/bin/time ] || die 'GNU time is missing; make tools installs it'
	[ -x $trueup ] || die "$trueup is missing; make build makes it"
}

# fill copies archives of the machine's own programs and documents into an NTFS volume, up to a number of bytes. Every
# second archive is compressed, since a guest has both. One file a round keeps the temporary space small.
fill() {
	local volume=$1 data_bytes=$2 copied=0 round=0 part size
	local folders=(/usr/lib /usr/share /usr/bin)
	part=$(dirname "$volume")/archive
	while [ "$copied" -lt "$data_bytes" ]; do
		local folder=${folders[round % ${#folders[@]}]} pack=cat
		[ $((round % 2)) -eq 0 ] || pack='gzip -1'
		size=$((data_bytes - copied < 400 << 20 ? data_bytes - copied : 400 << 20))
		# head ends the pipe early and tar complains of that; what counts is the size that came out.
		{ tar -C / -cf - ".$folder" 2>/dev/null | $pack | head -c "$size" >"$part"; } || true
		size=$(stat -c %s "$part")
		[ "$size" -gt 0 ] || die "no data below $folder"
		ntfscp -q "$volume" "$part" "archive-$round"
		copied=$((copied + size)) round=$((round + 1))
	done
	rm "$part"
}

# timed runs a command and writes to $cache/figures: seconds of wall, user and system time, KiB of peak memory.
timed() {
	/usr/bin/time -q -o $cache/figures -f '%e %U %S %M' "$@" >/dev/null || die "failed: $*"
}

# medians prints the median of each of the three columns of a row's figures.
medians() {
	local column
	for column in 1 2 3; do
		awk -v c=$column '{ print $c }' "$cache/$1.csv" | sort -n |
			awk '{ v[NR] = $1 } END { h = int((NR + 1) / 2); printf "%s ", NR % 2 ? v[h] : (v[h] + v[h + 1]) / 2 }'
	done
	echo
}
