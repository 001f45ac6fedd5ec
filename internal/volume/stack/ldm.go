package stack

import "github.com/trueup/trueup/internal/volume"

// LDM has the traits of a partition of a dynamic disk of Windows. Its type in the partition table identifies it.
var LDM = volume.Traits{Kind: volume.LDM, Title: "dynamic disk (LDM)", Data: "first volume"}
