
exchanged=0

# exchange RANK replace [FLAG…] DISK has an aligned copy take the names of DISK. A disk that is aligned
# already stays as it is, and an exchange that was interrupted is completed, so it can be run again.
exchange() {
	local rank=$1
	shift
	if [ -n "${DRY_RUN:-}" ]; then
		LC_ALL=C printf '%q ' "$trueup" "$@"
		echo
	elif "$trueup" "$@" </dev/null; then
		exchanged=$((exchanged + 1))
	else
		failed+=("$rank")
	fi
}
