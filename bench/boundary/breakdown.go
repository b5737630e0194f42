// SPDX-License-Identifier: Apache-2.0

package boundary

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/google/pprof/profile"
)

// Part is what CPU time goes into.
type Part string

// The parts, in the order in which a request meets them.
const (
	Storage     Part = "storage"
	Cache       Part = "cache"
	Conversion  Part = "conversion"
	Encoding    Part = "encoding"
	Compression Part = "compression"
	Transport   Part = "TLS and frames"
	Collection  Part = "garbage collection"
	Rest        Part = "the rest"
)

// Parts is all of them.
var Parts = []Part{Storage, Cache, Conversion, Encoding, Compression, Transport, Collection, Rest}

// Breakdown is the CPU time that the samples of a profile give to each part.
type Breakdown map[Part]time.Duration

// Total is the CPU time of all parts.
func (b Breakdown) Total() time.Duration {
	var sum time.Duration
	for _, d := range b {
		sum += d
	}
	return sum
}

// Profile takes a CPU profile of the server for so many seconds, while busy is
// called again and again.
func (s *Server) Profile(ctx context.Context, seconds int, busy func(context.Context) error) (Breakdown, error) {
	client, err := s.Connect()
	if err != nil {
		return nil, err
	}
	defer client.Close()
	working, stop := context.WithCancel(ctx)
	defer stop()
	worked := make(chan error, 1)
	// Ends with the first call of busy that ends after the profile has come.
	go func() {
		var err error
		for err == nil && working.Err() == nil {
			err = busy(ctx)
		}
		worked <- err
	}()
	raw, err := client.profile(ctx, seconds)
	stop()
	if err := errors.Join(err, <-worked); err != nil {
		return nil, err
	}
	p, err := profile.ParseData(raw)
	if err != nil {
		return nil, fmt.Errorf("the profile: %w", err)
	}
	return breakdown(p)
}

func (c *Client) profile(ctx context.Context, seconds int) ([]byte, error) {
	response, err := c.Do(ctx, Request{Path: "/debug/pprof/profile", Query: url.Values{"seconds": {strconv.Itoa(seconds)}}})
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	return io.ReadAll(response.Body)
}

// breakdown gives each sample to the part of the innermost function that has
// one: the time that encoding/json spends in copying bytes is encoding. All that
// storage calls is storage, the decoding of what etcd sends included.
func breakdown(p *profile.Profile) (Breakdown, error) {
	value := -1
	for i, t := range p.SampleType {
		if t.Type == "cpu" && t.Unit == "nanoseconds" {
			value = i
		}
	}
	if value < 0 {
		return nil, errors.New("the profile has no CPU time")
	}
	b := Breakdown{}
	for _, sample := range p.Sample {
		b[partOf(sample)] += time.Duration(sample.Value[value])
	}
	return b, nil
}

func partOf(sample *profile.Sample) Part {
	part := Rest
	for _, location := range sample.Location {
		for _, line := range location.Line {
			if line.Function == nil {
				continue
			}
			of, known := partOfFunction(line.Function.Name)
			switch {
			case !known:
			case part == Rest:
				part = of
			case of == Storage && part != Collection:
				return Storage
			}
		}
	}
	return part
}

const (
	module    = "github.com/kube-watchcache/watchcache/"
	machinery = "k8s.io/apimachinery/pkg/"
	apiserver = "k8s.io/apiserver/pkg/"
)

// partPrefixes says by the beginning of a function's name to which part the
// function belongs; the first one counts. Packages that everybody uses (runtime,
// bytes, reflect, net, syscall and so on) are in no part, so that their time is
// that of their callers.
var partPrefixes = []struct {
	prefix string
	part   Part
}{
	// The handlers and filters around everything else.
	{"net/http.HandlerFunc", Rest},

	{"runtime.gc", Collection},
	{"runtime.bgsweep", Collection},
	{"runtime.bgscavenge", Collection},
	{"runtime.markroot", Collection},
	{"runtime.(*mheap).freeSpan", Collection},

	{"compress/", Compression},
	{"github.com/NYTimes/gziphandler", Compression},

	{"crypto/", Transport},
	{"vendor/golang.org/x/crypto/", Transport},
	{"net/http", Transport},
	{"golang.org/x/net/http2", Transport},

	{"go.etcd.io/", Storage},
	{"google.golang.org/grpc", Storage},
	{module + "storage/", Storage},
	{apiserver + "storage/etcd3", Storage},
	{apiserver + "storage/value", Storage},

	{module + "internal/keptlists.", Encoding},
	{module + "cacher.", Cache},
	{module + "cacher/", Cache},
	{module + "watchcache.", Cache},
	{apiserver + "storage/cacher", Cache},
	{apiserver + "storage.", Cache},
	{"k8s.io/utils/third_party/", Cache},
	{"k8s.io/client-go/tools/cache", Cache},

	{machinery + "conversion", Conversion},
	{machinery + "runtime.(*Scheme)", Conversion},
	{machinery + "api/meta/table", Conversion},
	{module + "examples/apiserver/pkg/apis/", Conversion},
	{module + "examples/apiserver/pkg/registry/", Conversion},
	{apiserver + "endpoints/handlers.asTable", Conversion},
	{apiserver + "endpoints/handlers.asPartial", Conversion},
	{machinery + "api/meta.", Conversion},

	{"encoding/", Encoding},
	{"sigs.k8s.io/json", Encoding},
	{"google.golang.org/protobuf", Encoding},
	{"github.com/fxamacker/cbor", Encoding},
	{machinery + "runtime/serializer", Encoding},
	{machinery + "apis/meta/v1.(*", Encoding},
	{machinery + "apis/meta/v1.FieldsV1", Encoding},
	{machinery + "apis/meta/v1.Time", Encoding},
	{machinery + "runtime.", Encoding},
	{machinery + "util/framer", Encoding},
	{apiserver + "endpoints/handlers.(*watchEncoder)", Encoding},
	{apiserver + "endpoints/handlers.(*watchEmbeddedEncoder)", Encoding},
}

func partOfFunction(name string) (Part, bool) {
	for _, p := range partPrefixes {
		if strings.HasPrefix(name, p.prefix) {
			return p.part, true
		}
	}
	return "", false
}
