package boot

// finders is the table of contents. All of them run on every partition.
var finders = []Finder{
	hiddenSectors,
	exfatOffset,
}
