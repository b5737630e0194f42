// SPDX-License-Identifier: Apache-2.0

package debug

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"net/http"
	"strings"
)

// The page in three parts, which are one document when it is served: a client
// that may see Path may see nothing below it.
var (
	//go:embed page.html
	pageHTML string
	//go:embed page.css
	pageCSS string
	//go:embed page.js
	pageJS string
)

// nothing is the policy of answers that are not the page: they load nothing and
// stand in no frame.
const nothing = "default-src 'none'; frame-ancestors 'none'"

// page is the document, and the policy that allows only its own script and style, and
// requests to its own server.
type page struct {
	body   []byte
	policy string
}

func newPage() page {
	body := strings.NewReplacer("/*STYLE*/", pageCSS, "/*SCRIPT*/", pageJS).Replace(pageHTML)
	policy := "default-src 'none'; connect-src 'self'; script-src " + hash(pageJS) + "; style-src " + hash(pageCSS) +
		"; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
	return page{body: []byte(body), policy: policy}
}

// hash returns the source expression for an inline script or style.
func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

func (p page) serve(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", p.policy)
	_, _ = w.Write(p.body) // a client that is gone needs no page
}
