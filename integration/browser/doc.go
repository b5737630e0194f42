// SPDX-License-Identifier: Apache-2.0

// Package browser tests the page /debug/watchcache in Debian's chromium, driven
// through chromedp, against a server over HTTPS. The browser reaches the server as
// through kubectl proxy: through a proxy on the loopback address that has the
// user's certificate. The package is a module of its own, so that nobody who
// uses the cache downloads chromedp.
//
// make e2e SUITE=browser installs chromium, if that is possible. Without it the tests are
// skipped, or fail if CI=true. SCREENSHOTS=1 writes the pictures in docs/images.
package browser
