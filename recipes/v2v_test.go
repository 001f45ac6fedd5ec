package recipes

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// phony makes windows.img: as much of a Windows 7 at LBA 63 as virt-v2v looks at. The hives are real ones, and the
// programs do nothing.
const phony = `
hives=%HIVES%
xz -dkc "$hives/SYSTEM_2.xz" > SYSTEM
xz -dkc "$hives/BCD.xz" > SOFTWARE
cat > software.reg <<'END'
Windows Registry Editor Version 5.00

[\Microsoft]

[\Microsoft\Windows NT]

[\Microsoft\Windows NT\CurrentVersion]
"ProductName"="Windows 7 Professional"
"CurrentVersion"="6.1"
"CurrentBuildNumber"="7601"
"InstallationType"="Client"

[\Microsoft\Windows]

[\Microsoft\Windows\CurrentVersion]
"DevicePath"="%SystemRoot%\\inf"

END
hivexregedit --merge --prefix '\' SOFTWARE software.reg
mkdir source && cd source
printf 'package main\n\nfunc main() {}\n' > main.go
printf 'module nothing\n' > go.mod
GOOS=windows GOARCH=386 go build -o ../nothing.exe .
cd ..
mkdir -p tree/Windows/System32/config tree/Windows/System32/Drivers tree/Windows/inf 'tree/Program Files' tools
cp SYSTEM SOFTWARE tree/Windows/System32/config/
cp nothing.exe tree/Windows/System32/cmd.exe
cp nothing.exe tools/rhsrvany.exe
cp nothing.exe tools/pnp_wait.exe
truncate -s $((600000 * 512)) part
mkntfs -q -F -Q -p 63 -H 255 -S 63 -s 512 -c 4096 part
wimcapture --no-acls --compress=none tree tree.wim
wimapply tree.wim 1 part
truncate -s $((700000 * 512)) xp.img
printf 'label: dos\nlabel-id: 0x1b2c3d4e\n1: start=63, size=600000, type=7, bootable\n' | sfdisk --quiet xp.img
dd if=part of=xp.img bs=4096 conv=sparse,notrunc oflag=seek_bytes seek=$((63 * 512)) status=none
`

// virt-v2v converts a Windows, and its disk is aligned under the name that its XML has.
func TestVirtV2V(t *testing.T) {
	hives, err := filepath.Abs("../../shared/corpus/regipy")
	require.NoError(t, err)
	if _, err := filepath.EvalSymlinks(hives); err != nil {
		t.Skip("no corpus of images beside the repository")
	}
	k := newKitchen(t, "virt-v2v", "wimapply", "mkntfs", "hivexregedit", "sfdisk")
	cache, err := exec.Command("go", "env", "GOCACHE").Output()
	require.NoError(t, err)
	k.env = append(k.env, "LIBGUESTFS_BACKEND_SETTINGS=force_tcg", "VIRT_TOOLS_DATA_DIR="+k.path("tools"),
		"GOCACHE="+strings.TrimSpace(string(cache)))
	k.shell("rm xp.img\n" + strings.ReplaceAll(phony, "%HIVES%", hives))
	k.shell("mkdir out\n" + strings.Join(k.follow("virt-v2v"), ""))
	k.shell("trueup verify out/xp-sda.orig out/xp-sda && trueup inspect --boundary 64K out/xp-sda")
	require.Contains(k, k.shell("cat out/xp.xml"), "/out/xp-sda'")
}
