#!/usr/bin/env bash
# Counts constructions in the comments of the core that stand in place of a noun, per 1,000 lines of comments, prints the
# files with the most of them, and fails above the limits. It counts constructions and not words: a synonym of "what" is
# no better than "what".
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

git ls-files 'cmd/*.go' 'internal/*.go' | grep -v -e _test.go -e ^internal/disktest/ | xargs awk '
function count(text, pattern,  n) {
	n = 0
	while (match(text, pattern)) {
		n++
		text = substr(text, RSTART + RLENGTH - 1)
	}
	return n
}
BEGIN {
	name[1] = "what as a noun"; limit[1] = 10
	pattern[1] = "[^a-z]what(ever)?[^a-z]"
	name[2] = "those of, that of, those that"; limit[2] = 3
	pattern[2] = "[^a-z](those (of|that|which|with|whose|in|on|by|from|for)|are those|that of)[^a-z]"
	name[3] = "knows, asks, says, takes"; limit[3] = 15
	pattern[3] = "[^a-z](knows|asks|says|takes)[^a-z]"
	name[4] = "nil: ..., empty for none"; limit[4] = 3
	pattern[4] = "[^a-z0-9](nil|empty|zero|0|-1|false)(( is)?( for| if| where| when) (none|no[^a-z]|there is no)|: )"
}
/^[ \t]*\/\/|[ \t]\/\/ / {
	lines++
	text = " " tolower(substr($0, index($0, "//") + 2)) " "
	for (i = 1; i <= 4; i++) {
		n = count(text, pattern[i])
		found[i] += n
		of[FILENAME] += n
	}
}
END {
	for (i = 1; i <= 4; i++) {
		rate = found[i] * 1000 / lines
		printf "%5.1f (at most %d) for 1,000 lines of comments: %s\n", rate, limit[i], name[i]
		worse = worse || rate > limit[i]
	}
	for (file in of)
		if (of[file] > 1) printf "%4d in %s\n", of[file], file | "sort -rn | head -n 10"
	close("sort -rn | head -n 10")
	exit worse
}'
