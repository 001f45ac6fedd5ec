// Command govc is as much of VMware's govc as the recipes call: its own code, without what they do not need.
package main

import (
	"os"

	"github.com/vmware/govmomi/cli"
	_ "github.com/vmware/govmomi/cli/datastore" // registers datastore.download and others
	_ "github.com/vmware/govmomi/cli/importx"   // import.vmdk
)

func main() { os.Exit(cli.Run(os.Args[1:])) }
