package sys

import (
	"runtime"

	"golang.org/x/sys/cpu"
)

// ComputesGMAC reports whether the processor has the instructions by which Go computes GMAC.
func ComputesGMAC() bool {
	switch runtime.GOARCH {
	case "amd64":
		return cpu.X86.HasAES && cpu.X86.HasPCLMULQDQ && cpu.X86.HasSSE41
	case "arm64":
		return cpu.ARM64.HasAES && cpu.ARM64.HasPMULL
	}
	return false
}
