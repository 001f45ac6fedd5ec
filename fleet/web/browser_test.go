package web_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/fleet"
	"github.com/trueup/trueup/fleet/overview"
	"github.com/trueup/trueup/fleet/web"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/pagetest"
)

// busy is a busy fleet with long names.
func busy() *overview.Overview {
	o := overview.New()
	at := time.Date(2026, 11, 26, 3, 12, 0, 0, time.UTC)
	add := func(datastore, path string, state fleet.State, change func(r *fleet.Record)) {
		r := &fleet.Record{
			Job:   fleet.Job{Kind: fleet.Align, Datastore: datastore, Path: path},
			State: state, Updated: at, Worker: "esx1.example.org/4711/K3XJ5W2Q", Delivery: 1,
		}
		if change != nil {
			change(r)
		}
		o.Set(r)
	}
	left := 1325.0
	add("ds7", "templates/windows/win2003-r2-standard.vmdk", fleet.Running, func(r *fleet.Record) {
		r.Progress = fleet.Progress{Phase: "copy", Done: 13 << 30, Total: 40 << 30, Seconds: &left}
	})
	add("nas", ".", fleet.Running, func(r *fleet.Record) {
		r.Kind, r.Progress = fleet.Scan, fleet.Progress{Images: 812, Found: 2096}
	})
	long := "legacy/" + strings.Repeat("a-very-long-name-without-a-space", 4) + ".vhd"
	add("nas", long, fleet.Refused, func(r *fleet.Record) {
		r.Code, r.Message = "unsupported", "refused: disk: the boot code in sector 0 is unknown; use "+
			"--allow-unbootable if nothing boots from the disk"
	})
	add("ds7", "old/nt4-server.vmdk", fleet.Dead, func(r *fleet.Record) {
		r.Code, r.Message, r.Delivery, r.Log = "io", "read nt4-server-flat.vmdk: input/output error", 8,
			"trueup: read nt4-server-flat.vmdk at 1073741824: input/output error\n"
	})
	for n := range 40 {
		add("ds7", fmt.Sprintf("queue/%d.vmdk", n), fleet.Queued, nil)
	}
	for n := range 4 {
		add("nas", fmt.Sprintf("linux/debian-%d.qcow2", n+7), fleet.Done, nil)
	}
	add("nas", ".", fleet.Done, func(r *fleet.Record) { r.Kind, r.Again = fleet.Scan, "1" })
	o.SetAround(overview.Around{
		Backlogs: map[string]fleet.Backlog{"ds7": {AtOnce: 4}, "nas": {AtOnce: 2}},
		Workers: []fleet.Announcement{
			{
				Worker: "esx1.example.org/4711/K3XJ5W2Q", Version: "v1.2.3", Began: at,
				Datastores: []string{"ds7", "nas"}, Slots: 2, Window: "22:00-06:00",
			},
			{Worker: "esx2.example.org/99/Q7ZT", Version: "v1.2.3", Began: at, Datastores: []string{"nas"}, Slots: 1},
		},
		Drained: map[string]bool{"nas": true},
	})
	return o
}

// The page fits desktop and phone, in both colour schemes, causes no browser messages, and requests only its events.
func TestPageInChromium(t *testing.T) {
	tabs := pagetest.Browser(t)
	at := start(t, web.Options{Address: ":0"}, web.Site{Version: "v1.2.3", Overview: busy()}) + "/"
	shots := os.Getenv("TRUEUP_SHOTS")
	for _, scheme := range []string{"light", "dark"} {
		for _, width := range []int64{1280, 360} {
			pagetest.LookAt(tabs, t, at, scheme, width, shots, at+"events")
		}
	}
	locked := start(t, web.Options{Address: ":0", Token: put(t, "token", token)}, web.Site{Overview: busy()}) + "/login"
	tab, cancel := chromedp.NewContext(tabs)
	defer cancel()
	require.NoError(t, chromedp.Do(tab, chromedp.Navigate(locked), chromedp.SendKeys("#token", token),
		chromedp.KeyEvent(kb.Enter), chromedp.WaitVisible("#datastores")))
}

// Changes appear automatically, and open parts stay open. Without scripts the page is complete, and reloads itself.
func TestLivePage(t *testing.T) {
	o := busy()
	site := web.Site{Version: "v1.2.3", Overview: o, Tick: 50 * time.Millisecond}
	at := start(t, web.Options{Address: ":0"}, site) + "/"
	tab, cancel := chromedp.NewContext(pagetest.Browser(t))
	defer cancel()
	until := func(expression string) {
		t.Helper()
		_, err := chromedp.Run(tab, chromedp.Poll[bool](expression, chromedp.WithPollingTimeout(disktest.Patience)))
		require.NoError(t, err, expression)
	}
	require.NoError(t, chromedp.Do(tab, chromedp.Navigate(at)))
	// The page replaces its nodes at each event, so a node found earlier may be gone when it is clicked.
	until(`(summary => !summary.click())(document.querySelector("#failed summary"))`)
	until(`document.getElementById("live").textContent.endsWith("kept up to date.")`)
	hostile := `<img src=x onerror="document.title='lost'">`
	o.Set(&fleet.Record{
		Job:   fleet.Job{Kind: fleet.Exchange, Datastore: "ds7", Path: hostile},
		State: fleet.Dead, Message: hostile, Log: hostile,
	})
	until(`document.getElementById("failed").textContent.includes("onerror")`)
	until(`document.querySelectorAll("#failed details[open]").length === 1 && document.images.length === 0`)
	until(`document.title === "Fleet of trueup"`)
	require.NoError(t, chromedp.Do(tab,
		pagetest.Send(emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true}),
		chromedp.Navigate(at)))
	text, err := chromedp.Run(tab, chromedp.Evaluate[string](
		`document.querySelector("noscript meta").content + document.getElementById("live").textContent`))
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(text, "10As of "), text)
	require.NotContains(t, text, "kept", "no script has run")
}
