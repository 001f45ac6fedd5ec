package ovf_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/ovf"
)

// systems returns a package with these virtual systems.
func systems(text string) string {
	return `<Envelope xmlns="http://schemas.dmtf.org/ovf/envelope/1"
		xmlns:rasd="http://schemas.dmtf.org/wbem/wscim/1/cim-schema/2/CIM_ResourceAllocationSettingData">
		<VirtualSystemCollection>` + text + "</VirtualSystemCollection></Envelope>\n"
}

// system returns a virtual system with these resources.
func system(resources ...string) string {
	var b strings.Builder
	for _, r := range resources {
		b.WriteString("<Item><rasd:HostResource>" + r + "</rasd:HostResource></Item>")
	}
	return "<VirtualSystem><VirtualHardwareSection>" + b.String() + "</VirtualHardwareSection></VirtualSystem>"
}

func TestDisksOfVirtualSystems(t *testing.T) {
	e, err := ovf.Parse([]byte(systems(system("ovf:/disk/a", "ovf:/file/iso", " /disk/b\n") +
		system("disk/c", "net", "ovf:/disk/b"))))
	require.NoError(t, err)
	require.Equal(t, [][]string{{"a", "b"}, {"c", "b"}}, e.Systems)
	for id, want := range map[string]int{"a": 0, "b": 0, "c": 1} {
		n, ok := e.System(id)
		require.True(t, ok)
		require.Equal(t, want, n, id)
	}
	_, ok := e.System("d")
	require.False(t, ok, "no system has it")

	e, err = ovf.Parse([]byte(systems(system("net"))))
	require.NoError(t, err)
	_, ok = e.System("d")
	require.True(t, ok, "one system has all disks")

	_, err = ovf.Parse([]byte(systems(strings.Repeat(system(), 5000))))
	require.ErrorIs(t, err, ondisk.ErrLimit)
	_, err = ovf.Parse([]byte(systems(system(strings.Split(strings.Repeat("disk/a ", 5000), " ")...))))
	require.ErrorIs(t, err, ondisk.ErrLimit)
}
