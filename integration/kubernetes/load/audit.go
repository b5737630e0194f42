// SPDX-License-Identifier: Apache-2.0

//go:build unix

package load

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

// auditPolicy has the kube-apiserver write down who lists and watches: what informers
// relist is in no metric.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  verbs: [list, watch]
- level: None
`

// audited is a line of the audit log.
type audited struct {
	Stage          string
	Verb           string
	RequestURI     string
	User           struct{ Username string }
	ResponseStatus struct{ Code int }
	StageTimestamp time.Time
}

// addAudited counts, for each phase, what the controllers and the scheduler have listed,
// by a LIST or by a watch with initial events, and all requests that were answered with
// 410, Gone.
func addAudited(path string, phases []Phase) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	for i := range phases {
		phases[i].Figures["informers lists"], phases[i].Figures["answers gone"] = 0, 0
	}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var line audited
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		for i := range phases {
			if !phases[i].has(line.StageTimestamp) {
				continue
			}
			if line.ResponseStatus.Code == http.StatusGone {
				phases[i].Figures["answers gone"]++
			} else if line.lists() && line.informer() {
				phases[i].Figures["informers lists"]++
			}
		}
	}
	return lines.Err()
}

// informer reports whether the request is one of the controllers or the scheduler.
func (a *audited) informer() bool {
	name := a.User.Username
	return name == "system:kube-controller-manager" || name == "system:kube-scheduler" || strings.HasPrefix(name, "system:serviceaccount:kube-system:")
}

// lists reports whether the answer has the present state. A watch is counted when it
// begins.
func (a *audited) lists() bool {
	switch a.Verb {
	case "list":
		return a.Stage == "ResponseComplete"
	case "watch":
		at, err := url.Parse(a.RequestURI)
		return err == nil && a.Stage == "ResponseStarted" && at.Query().Get("sendInitialEvents") == "true"
	}
	return false
}
