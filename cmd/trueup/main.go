// Command trueup inspects and realigns virtual-disk images.
package main

import (
	"os"

	"github.com/trueup/trueup/internal/cli"
)

// version is set by the linker.
var version = "devel"

func main() { os.Exit(cli.Main(version, os.Args[1:])) }
