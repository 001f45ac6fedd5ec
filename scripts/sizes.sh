#!/usr/bin/env bash
# Prints the sizes of the core and compares them with sizes.txt: a larger figure is an error. A commit may only lower
# sizes.txt, except for a capability that an issue grants lines.
#
# The core is all Go of the module outside of internal/disktest; lines are shipped lines, without tests.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
go=${GO:-go}

shipped=$(git ls-files 'cmd/*.go' 'internal/*.go' | grep -v -e _test.go -e ^internal/disktest/)
tests=$(git ls-files 'cmd/*_test.go' 'internal/*_test.go')
packages=$(xargs -n 1 dirname <<<"$shipped" | sort -u)

# Prints a percentile of a list of numbers: 50 is the median.
percentile() {
	sort -n | awk -v p="$1" '{ n[NR] = $1 } END { print n[int((NR - 1) * p / 100) + 1] }'
}

lines=$(xargs cat <<<"$shipped" | wc -l)
imports=$(xargs awk '/^import \($/ { on = 1 } on { n++ } /^\)/ { on = 0 } END { print n }' <<<"$shipped")
functions=$(xargs awk '/^func .*\{$/ { start = FNR } /^}/ && start { print FNR - start + 1; start = 0 }' <<<"$shipped")

figures() {
	echo "shipped lines: $lines"
	echo "lines of tests: $(xargs cat <<<"$tests" | wc -l)"
	echo "packages: $(wc -l <<<"$packages")"
	echo "direct dependencies: $(GOWORK=off "$go" mod edit -json | grep -o '"Path": "[^"]*"\|"Indirect": true' |
		awk '/Path/ { n++ } /Indirect/ { n-- } END { print n - 1 }')"
	echo "linked modules: $(GOWORK=off "$go" list -deps -f '{{with .Module}}{{.Path}}{{end}}' ./cmd/trueup | sort -u |
		grep -vc '^github.com/trueup/trueup$')"
	echo "per mille of lines in import blocks: $((imports * 1000 / lines))"
	echo "lines of a function, 95th percentile: $(percentile 95 <<<"$functions")"
}

printed=$(figures)
echo "$printed"
echo "lines of a file, median: $(for file in $shipped; do wc -l <"$file"; done | percentile 50)"
[ "${1:-}" != --write ] || echo "$printed" >sizes.txt
worse=0
while IFS=: read -r name most; do
	now=$(awk -F': ' -v name="$name" '$1 == name { print $2 }' <<<"$printed")
	if [ "${now:-x}" = x ] || [ "$now" -gt "$most" ]; then
		echo "sizes.txt has at most$most for \"$name\", and it is ${now:-not counted}" >&2
		worse=1
	fi
done <sizes.txt
[ $worse = 0 ] || echo "cut as much elsewhere; for a capability that an issue grants: scripts/sizes.sh --write" >&2
exit $worse
