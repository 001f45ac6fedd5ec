// Command trueup-fleet scans and realigns the images of datastores on many hosts.
package main

import (
	"os"

	"github.com/trueup/trueup/fleet/fleetcmd"
)

// version is set by the linker.
var version = "devel"

func main() { os.Exit(fleetcmd.Main(version, os.Args[1:])) }
