
echo "$made made, ${exchanged:+$exchanged exchanged or aligned already, }$passed passed over, ${#failed[@]} failed"
if [ "${#failed[@]}" -gt 0 ]; then
	echo "failed: number ${failed[*]}" >&2
	exit 1
fi
