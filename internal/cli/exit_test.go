package cli

import (
	"bytes"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/realign"
)

// What a report on the terminal says stands there once.
func TestNothingIsSaidTwice(t *testing.T) {
	bad := AfterReport(errors.New("x.ova!a.vmdk: no disk image"), true)
	for seen, want := range map[bool]string{true: "", false: "trueup: x.ova!a.vmdk: no disk image\n"} {
		var out, errs bytes.Buffer
		require.Equal(t, 1, Finish(bad, &Base{seen: seen}, "inspect", &out, &errs))
		require.Equal(t, want, errs.String())
		require.Empty(t, out.String())
	}
	var out, errs bytes.Buffer
	require.Equal(t, 1, Finish(AfterReport(realign.ErrUnknown, false), &Base{seen: true}, "inspect", &out, &errs))
	require.NotEmpty(t, errs.String(), "a remedy that the report lacks")
}
