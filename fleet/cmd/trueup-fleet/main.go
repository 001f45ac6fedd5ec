// Command trueup-fleet has many hosts scan and realign the images of their datastores.
package main

import (
	"os"

	"github.com/trueup/trueup/fleet/fleetcmd"
)

// version is set by the linker.
var version = "devel"

func main() { os.Exit(fleetcmd.Main(version, os.Args[1:])) }
