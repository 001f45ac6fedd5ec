#
# A copy that is there already is passed over, so the script can be run again. An image that fails stops no other. Each command
# checks that its copy fits before it writes, proves every byte, and gives the copy its name last.
#
#     TRUEUP=/path/to/trueup   the program to run, if that of the PATH is not meant
#     DRY_RUN=1                print the commands and run none
#
# It ends with 0 when all copies are there, with 1 when one could not be made.
#
# Names can hold anything, and so look like mistakes:
# shellcheck disable=SC1003,SC2016
set -euo pipefail

trueup=${TRUEUP:-trueup}
made=0
passed=0
exchanged=
failed=()
trap 'exit 130' INT
trap 'exit 143' TERM

# copy RANK align [FLAG…] SOURCE DEST makes one copy.
copy() {
	local rank=$1 dest=${!#}
	shift
	if [ -e "$dest" ] || [ -L "$dest" ]; then
		passed=$((passed + 1))
		LC_ALL=C printf '%d: passed over, it exists: %q\n' "$rank" "$dest"
	elif [ -n "${DRY_RUN:-}" ]; then
		LC_ALL=C printf '%q ' "$trueup" "$@"
		echo
	elif "$trueup" "$@" </dev/null; then
		made=$((made + 1))
	else
		failed+=("$rank")
	fi
}
