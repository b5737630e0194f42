// SPDX-License-Identifier: Apache-2.0

package browser

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/integration/debugpage"
)

// A person finds a slow client: it is the first row, in the overview and in the
// cache's own view. The page follows without being loaded again, sorts and pages
// on the server, and works by keyboard.
func TestPage(t *testing.T) {
	f := open(t, debugpage.Operator, cacher.Configure(func(c *cacher.Config) { c.WatchBuffer = 10 }))
	f.put("device-0")
	for i := range 59 {
		f.watch(fmt.Sprintf("informer-%02d", i), true)
	}
	f.do(chromedp.Navigate(f.page))
	f.until(cells("Caches", 0) + `.join() === "` + resource + `"`)
	f.until(cells("Caches", 4) + `[0] === "59"`)
	require.Equal(t, "–", f.eval(cells("Caches", 6)+"[0]"))

	// The view of one cache, by keyboard.
	f.do(chromedp.KeyEvent("j"), chromedp.KeyEvent(kb.Enter))
	f.until(`location.hash === "#/` + resource + `"`)
	f.until(cells("Watchers", 0) + `.length === 50`)
	f.eval(`window.sameDocument = "yes"`)

	// A slow watcher comes and falls behind.
	f.watch("slow-client", false)
	f.until(cells("Watchers", 0) + `.length === 50 && document.querySelector(".pager span").innerText.endsWith("of 60")`)
	// The connection of a client that reads nothing takes some four megabytes. Any other
	// watch may be parked for a moment.
	f.putAndAwait("device-0", 500)
	parked := `[...document.querySelectorAll('table[aria-label="Watchers"] tbody tr')].some(r => r.cells[1].innerText === "slow-client" && r.cells[4].innerText === "parked")`
	for i := 0; f.eval(parked) != "true"; i++ {
		require.Less(t, i, 400, "the slow watcher is never parked")
		f.putAndAwait("device-0", 50)
	}
	f.until(cells("Watchers", 1) + `[0] === "slow-client"`)
	f.until(`Number(` + cells("Watchers", 5) + `[0].replaceAll(",", "")) > 0`)
	require.Equal(t, "robot", f.eval(cells("Watchers", 0)+"[0]"))
	require.Contains(t, f.eval(cells("Watchers", 2)+"[0]"), "127.0.0.1:")
	require.Equal(t, "all", f.eval(cells("Watchers", 3)+"[0]"))
	require.Equal(t, "yes", f.eval("window.sameDocument"), "the page was loaded again")

	// Sorting: the server sorts, and the heading says how.
	sorted := `document.querySelector("th[aria-sort]").innerText.trim() + " " + document.querySelector("th[aria-sort]").getAttribute("aria-sort")`
	require.Equal(t, "lag descending", f.eval(sorted))
	f.do(chromedp.Click(`button[data-sort="userAgent"]`))
	f.until(cells("Watchers", 1) + `[0] === "informer-00"`)
	require.Equal(t, "user agent ascending", f.eval(sorted))
	f.do(chromedp.Click(`button[data-sort="userAgent"]`))
	f.until(cells("Watchers", 1) + `[0] === "slow-client"`)
	require.Equal(t, "user agent descending", f.eval(sorted))

	// Paging, by button and by keyboard.
	f.do(chromedp.Click(`.pager button:nth-of-type(2)`))
	f.until(cells("Watchers", 1) + `.join() === "informer-09,informer-08,informer-07,informer-06,informer-05,informer-04,informer-03,informer-02,informer-01,informer-00"`)
	require.Equal(t, "51 to 60 of 60", f.eval(`document.querySelector(".pager span").innerText`))
	require.Equal(t, "true", f.eval(`document.querySelector(".pager button:nth-of-type(2)").disabled`))
	f.do(chromedp.KeyEvent("p"))
	f.until(cells("Watchers", 1) + `.length === 50`)
	f.do(chromedp.Click(`button[data-sort="lag"]`))
	f.until(cells("Watchers", 1) + `[0] === "slow-client"`)

	// Names and values are there for this user, when asked for.
	f.do(chromedp.Click("#values"))
	f.until(cells("Watchers", 3) + `[0] === "/fleet.example.com/devices/"`)
	f.do(chromedp.Click("#values"))
	f.until(cells("Watchers", 3) + `[0] === "all"`)

	f.screenshots(func() {
		f.until(cells("Watchers", 1) + `[0] === "slow-client" && ` + cells("Watchers", 4) + `[1] === "live"`)
	})

	// Esc leads back, where the slow client has its name.
	f.do(chromedp.KeyEvent(kb.Escape))
	f.until(cells("Caches", 8) + `[0] === "robot · slow-client"`)
	f.expectClean()
}

// A user who may not list the resource sees no names, and is told so. Nothing of
// the page is wider than a phone, but for tables, which scroll by themselves.
func TestPageForAViewerOnAPhone(t *testing.T) {
	f := open(t, debugpage.Viewer)
	f.put("device-0")
	f.watch("informer", true)
	f.do(emulation.SetDeviceMetricsOverride(390, 844, 2, true), chromedp.Navigate(f.page+"#/"+resource))
	f.until(cells("Watchers", 3) + `[0] === "all"`)
	f.do(chromedp.Click("#values"))
	f.until(`document.querySelector(".pager").innerText.includes("may not list")`)
	require.Equal(t, "all", f.eval(cells("Watchers", 3)+"[0]"))
	require.Equal(t, "true", f.eval(`document.documentElement.scrollWidth <= innerWidth`), "the page is wider than the phone")
	for _, empty := range []string{"No watch has ended", "Nothing has gone wrong"} {
		require.Equal(t, "true", f.eval(fmt.Sprintf(`document.body.innerText.includes(%q)`, empty)), empty)
	}
	f.expectClean()
}

// screenshots writes pictures of the page in light, dark and at phone width, if
// SCREENSHOTS is set. The page is as before afterwards.
func (f *fixture) screenshots(settled func()) {
	f.t.Helper()
	if os.Getenv("SCREENSHOTS") == "" {
		return
	}
	for _, shot := range []struct {
		name, scheme  string
		width, height int64
		mobile        bool
	}{{"light", "light", 1280, 900, false}, {"dark", "dark", 1280, 900, false}, {"phone", "light", 390, 844, true}} {
		f.do(emulation.SetDeviceMetricsOverride(shot.width, shot.height, 1, shot.mobile),
			emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: shot.scheme}}))
		settled()
		f.eval("scrollTo(0, 0)")
		var png []byte
		f.do(chromedp.CaptureScreenshot(&png))
		require.NoError(f.t, os.WriteFile(filepath.Join("..", "..", "docs", "images", "debug-"+shot.name+".png"), png, 0o644))
	}
	f.do(emulation.ClearDeviceMetricsOverride(), emulation.SetEmulatedMedia())
}
