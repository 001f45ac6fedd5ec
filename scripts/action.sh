#!/usr/bin/env bash
# Runs in action.yml: scans PATHS (one per line) once, and makes all reports of the results. The action fails later,
# with the exit code in GITHUB_OUTPUT, after the upload of the reports.
set -euo pipefail

go build -C "$ACTION" -buildvcs=false -o "$RUNNER_TEMP/trueup" ./cmd/trueup
folder=$(mktemp -d "$RUNNER_TEMP/trueup-reports-XXXXXX")
results=$folder/results.ndjson

options=(${FAIL_ON:+--fail-on "$FAIL_ON"})
code=0
"$RUNNER_TEMP/trueup" scan --output json --out "$results" --no-progress "${options[@]}" --files-from - <<<"$PATHS" || code=$?

if [ -s "$results" ]; then # else the command line was wrong, and standard error has the reason
	for report in html:report.html junit:junit.xml text:report.txt; do
		"$RUNNER_TEMP/trueup" report --output "${report%%:*}" --out "$folder/${report#*:}" "${options[@]}" "$results" || [ $? -le 3 ]
	done
	cat "$folder/report.txt"
	if [ -n "${GITHUB_STEP_SUMMARY:-}" ]; then
		{ echo '```'; cat "$folder/report.txt"; echo '```'; } >>"$GITHUB_STEP_SUMMARY"
	fi
	echo "folder=$folder" >>"$GITHUB_OUTPUT"
fi
echo "exit-code=$code" >>"$GITHUB_OUTPUT"
