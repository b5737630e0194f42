// SPDX-License-Identifier: Apache-2.0

// Command devices prints manifests of devices for the example API server:
//
//	go run ./examples/apiserver/devices 200 | kubectl apply -f -
//
// The devices are always the same, in five namespaces, which need not exist in the standalone
// server. examples/apiserver/devices.yaml contains the first five.
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
)

// kind is a kind of device. Devices of a kind differ by number.
type kind struct {
	name, owner string
	models      [2]string
}

var kinds = []kind{
	{"switch", "network", [2]string{"Arbor S96", "Arbor S48"}},
	{"router", "network", [2]string{"Kite R4", "Kite R8"}},
	{"server", "compute", [2]string{"Basalt 2U", "Basalt 4U"}},
	{"disk-shelf", "storage", [2]string{"Quarry 60", "Quarry 90"}},
	{"sensor", "field-ops", [2]string{"Finch T1", "Finch H2"}},
}

// site is a namespace. zone is the prefix of its zones' names.
type site struct {
	namespace, zone, tier string
	firmware              string // of all its devices
}

var sites = []site{
	{"osaka", "osa", "production", ""},
	{"lisbon", "lis", "production", "version: 1.4.2"},
	{"lab", "lab", "test", "channel: beta"},
	{"denver", "den", "production", ""},
	{"hamburg", "hh", "production", "version: 1.7.2"},
}

func main() {
	n, err := count(os.Args[1:])
	if err == nil {
		err = write(os.Stdout, n)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "devices: %v\n", err)
		os.Exit(1)
	}
}

func count(args []string) (int, error) {
	if len(args) != 1 {
		return 0, fmt.Errorf("usage: devices COUNT")
	}
	n, err := strconv.Atoi(args[0])
	if err != nil || n < 0 {
		return 0, fmt.Errorf("COUNT must be a whole number that is not negative, and not %q", args[0])
	}
	return n, nil
}

func write(to io.Writer, n int) error {
	out := bufio.NewWriter(to)
	for i := range n {
		writeDevice(out, i)
	}
	return out.Flush()
}

// writeDevice prints device i. Of every 25 devices, each site has one of each kind.
func writeDevice(out io.Writer, i int) {
	kind := kinds[i%len(kinds)]
	site := sites[(i+i/len(kinds))%len(sites)]
	round := i / (len(kinds) * len(sites))
	fmt.Fprintf(out, `---
apiVersion: fleet.example.com/v1
kind: Device
metadata:
  name: %s-%02d
  namespace: %s
  labels:
    kind: %s
    rack: r%d
    tier: %s
spec:
  zone: %s-%d
  owner: %s
  model: %s
`, kind.name, round+1, site.namespace, kind.name, round%8+1, site.tier, site.zone, round%2+1, kind.owner, kind.models[round%2])
	if site.firmware != "" {
		fmt.Fprintf(out, "  firmware:\n    %s\n", site.firmware)
	}
}
