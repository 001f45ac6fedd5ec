// Package recipes runs the recipes of docs/recipes.md against the tools that they name.
package recipes

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// kitchen is a folder in which recipes run, with an image of a partition at LBA 63 as xp.img.
type kitchen struct {
	*testing.T
	dir string
	env []string
}

// built is the folder of trueup and govc.
var built string

func TestMain(m *testing.M) {
	var err error
	if built, err = os.MkdirTemp("", "trueup-recipes-*"); err != nil {
		panic(err)
	}
	for from, program := range map[string]string{"..": "./cmd/trueup", ".": "./govc"} {
		build := exec.Command("go", "build", "-buildvcs=false", "-o", built+"/", program)
		build.Dir, build.Stderr = from, os.Stderr
		if err := build.Run(); err != nil {
			panic(err)
		}
	}
	code := m.Run()
	_ = os.RemoveAll(built)
	os.Exit(code)
}

// newKitchen skips a test that lacks one of its tools, unless they are required.
func newKitchen(t *testing.T, tools ...string) *kitchen {
	t.Helper()
	k := &kitchen{T: t, dir: t.TempDir()}
	k.env = append(os.Environ(), "PATH="+built+":"+os.Getenv("PATH")+":/usr/sbin:/sbin", "HOME="+k.dir)
	for _, tool := range tools {
		cmd := exec.Command("sh", "-c", "command -v "+tool)
		cmd.Env = k.env
		if cmd.Run() != nil && os.Getenv("REQUIRE_TOOLS") != "1" {
			t.Skip("not installed: " + tool)
		}
	}
	source, err := filepath.Abs("../testdata/xp-lba63.vmdk")
	require.NoError(t, err)
	k.shell("qemu-img convert -O raw " + source + " xp.img")
	return k
}

func (k *kitchen) path(name string) string { return filepath.Join(k.dir, name) }

// write puts a file into the folder.
func (k *kitchen) write(name, text string) {
	k.Helper()
	require.NoError(k, os.MkdirAll(filepath.Dir(k.path(name)), 0o755))
	require.NoError(k, os.WriteFile(k.path(name), []byte(text), 0o600))
}

// shell runs commands to the first that fails, and returns what they print.
func (k *kitchen) shell(lines string) string {
	k.Helper()
	cmd := exec.Command("bash", "-ec", lines)
	cmd.Dir, cmd.Env = k.dir, k.env
	out, err := cmd.CombinedOutput()
	require.NoError(k, err, "%s\n%s", lines, out)
	return string(out)
}

// aligned compares a copy with xp.img.
func (k *kitchen) aligned(copied string) {
	k.Helper()
	k.shell("trueup verify xp.img " + copied)
	k.shell("trueup inspect --boundary 64K " + copied)
}

var block = regexp.MustCompile("(?ms)^```(\\w+)(?: (\\S+))?\n(.*?)^```$")

// follow writes the named blocks of a recipe into files, and returns the commands of the others.
func (k *kitchen) follow(title string) (commands []string) {
	k.Helper()
	text, err := os.ReadFile("../docs/recipes.md")
	require.NoError(k, err)
	_, after, found := strings.Cut(string(text), "\n## "+title+"\n")
	require.True(k, found, title)
	recipe, _, _ := strings.Cut(after, "\n## ")
	for _, b := range block.FindAllStringSubmatch(recipe, -1) {
		switch {
		case b[2] != "":
			k.write(b[2], b[3])
		case b[1] == "sh":
			commands = append(commands, b[3])
		}
	}
	return commands
}

// Each recipe has a test that follows it, or says that it was not run.
func TestAllRecipes(t *testing.T) {
	tested, err := filepath.Glob("*_test.go")
	require.NoError(t, err)
	var tests strings.Builder
	for _, name := range tested {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		tests.Write(text)
	}
	text, err := os.ReadFile("../docs/recipes.md")
	require.NoError(t, err)
	titles := regexp.MustCompile(`(?m)^## (.+)$`).FindAllStringSubmatch(string(text), -1)
	require.Greater(t, len(titles), 10)
	for _, title := range titles {
		elsewhere := slices.Contains([]string{
			"NFS", "GitHub Actions and containers", "Down for seconds: QEMU and libvirt",
		}, title[1]) // it says where
		if elsewhere || strings.HasSuffix(title[1], "(not run)") {
			continue
		}
		if !strings.Contains(tests.String(), `follow("`+title[1]+`")`) {
			t.Errorf("recipe %q: write a test that calls follow(%[1]q), or end its heading with (not run)", title[1])
		}
	}
}

func TestPacker(t *testing.T) {
	k := newKitchen(t, "packer")
	commands := k.follow("Packer")
	k.write("source.pkr.hcl", "source \"null\" \"template\" {\n  communicator = \"none\"\n}\n")
	k.shell("sed -i s/source.qemu.template/source.null.template/ align.pkr.hcl")
	k.shell("mkdir output && qemu-img convert -O qcow2 xp.img output/disk.qcow2")
	k.shell(strings.Join(commands, ""))
	k.aligned("output/disk.qcow2")

	// Without the line that aligns, the gate fails the build.
	k.shell("qemu-img convert -O qcow2 xp.img output/disk.qcow2 && sed -i '/replace/d' align.pkr.hcl")
	require.Contains(k, k.shell(`packer build . || echo "failed with $?"`), "failed with 1")
}

func TestAnsible(t *testing.T) {
	k := newKitchen(t, "ansible-playbook")
	commands := k.follow("Ansible")
	k.shell("mkdir one two && cp xp.img one/ && trueup align xp.img two/even.img")
	k.write("hosts.ini", "one images="+k.path("one")+"\ntwo images="+k.path("two")+
		"\n[all:vars]\nansible_connection=local\n")
	k.shell(strings.Join(commands, ""))
	require.Contains(k, k.shell("cat report.html"), "host=two")
	require.Equal(k, "one.ndjson\n", k.shell(`grep -l '"start_lba":63' *.ndjson`))

	// An image that cannot be read fails the host, and a report that cannot be made the last line.
	k.shell("head -c 70000 two/even.img > two/cut.vhdx && " +
		"printf vhdxfile | dd of=two/cut.vhdx conv=notrunc status=none")
	playbook, report, _ := strings.Cut(commands[0], "\n")
	require.Contains(k, k.shell(playbook+" || echo failed with $?"), "failed with 2")
	k.write("one.ndjson", "no rows\n")
	require.Contains(k, k.shell("("+strings.TrimSpace(report)+") || echo failed with $?"), "failed with 1")
}

// The stand-in for oc knows one volume, pvc-one, which is the folder pvc, and runs the command of a job there.
const standIn = `#!/bin/bash
set -e
echo "oc $*" >>oc.log
case $1 in
get)
	case $* in
	*" job.batch/trueup-x7") cat state ;;
	*) echo '{"items": [{"metadata": {"name": "pvc-one"}}]}' ;;
	esac
	;;
create)
	job=$(cat)
	pod=$(jq .spec.template.spec <<<"$job")
	[ "$(jq -r '.volumes[0].persistentVolumeClaim.claimName' <<<"$pod")" = pvc-one ]
	[ "$(jq -r '.volumes[0].name' <<<"$pod")" = "$(jq -r '.containers[0].volumeMounts[0].name' <<<"$pod")" ]
	mount=$(jq -r '.containers[0].volumeMounts[0].mountPath' <<<"$pod")
	mapfile -t args < <(jq -r '.containers[0].args[]' <<<"$pod")
	[ "$(jq .securityContext.runAsUser <<<"$pod")" = "$(jq .securityContext.fsGroup <<<"$pod")" ]
	code=0
	trueup "${args[@]/#$mount/pvc}" >&2 || code=$?
	# Source: JobConditionType (Kubernetes): these two go in front since version 1.31.
	[ "$code" = 0 ] && echo SuccessCriteriaMet Complete >state || echo FailureTarget Failed >state
	echo job.batch/trueup-x7 created
	;;
*) exit 1 ;;
esac
`

func TestForklift(t *testing.T) {
	k := newKitchen(t, "ansible-playbook", "jq")
	require.Empty(k, k.follow("Forklift and MTV"))
	k.write("plan.yml", "targetnamespace: vms\n")
	// Forklift embeds three structs in each other, which its writer of YAML names so.
	k.write("workload.yml", "vm:\n  vm1:\n    vm0:\n      id: vm-2861\n      name: xp\n    powerstate: poweredOff\n")
	k.write("oc", standIn)
	k.shell("mkdir pvc && cp xp.img pvc/disk.img && chmod +x oc && PATH=$PWD:$PATH ansible-playbook hook.yml")
	k.aligned("pvc/disk.img")
	require.Equal(k, "oc get pvc -n vms -l vmID=vm-2861 -o json\noc create -n vms -f -\n"+
		"oc get -n vms -o jsonpath={.status.conditions[*].type} job.batch/trueup-x7\n", k.shell("cat oc.log"))

	// A disk that is refused fails the hook at once.
	k.write("pvc/disk.img", strings.Repeat("no disk", 1000))
	require.Contains(k, k.shell("PATH=$PWD:$PATH ansible-playbook hook.yml || echo failed with $?"), "failed with 2")
}
