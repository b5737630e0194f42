// SPDX-License-Identifier: Apache-2.0

package beside

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"

	"github.com/stretchr/testify/require"
)

// request is one that both sides get.
type request struct {
	resource           *resource
	method, path, user string
	query              url.Values
	accept             string
	gzip               bool
	body               any
}

func (q *request) String() string {
	return fmt.Sprintf("%s %s?%s as %s, accept %q, gzip %v", q.method, q.path, q.query.Encode(), q.user, q.accept, q.gzip)
}

// with returns a copy whose query lacks the names and has the values.
func (q *request) with(values map[string]string, without ...string) *request {
	c := *q
	if c.query = maps.Clone(q.query); c.query == nil {
		c.query = url.Values{}
	}
	for _, name := range without {
		c.query.Del(name)
	}
	for name, value := range values {
		if value != "" {
			c.query.Set(name, value)
		}
	}
	return &c
}

// writing returns a request that changes an object of the first version.
func writing(method string, of *resource, namespace, name string, body any) *request {
	return &request{resource: of, method: method, path: of.path(0, namespace, name), user: administrator, accept: asJSON, body: body}
}

// answer is what came back, decompressed.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// send sends the request to a side and returns the response, whose body the transport
// decompresses.
func (s *side) send(ctx context.Context, q *request) (*http.Response, error) {
	var body io.Reader
	if q.body != nil {
		body = strings.NewReader(encode(q.body))
	}
	e := s.servers[q.resource.group]
	r, err := http.NewRequestWithContext(ctx, q.method, e.base+q.path+"?"+q.query.Encode(), body)
	if err != nil {
		return nil, err
	}
	r.Header = http.Header{"Accept": {q.accept}, "Content-Type": {asJSON}, userHeader: {q.user}}
	if !q.gzip { // which the transport asks for by itself
		r.Header.Set("Accept-Encoding", "identity")
	}
	if q.method == http.MethodPatch {
		r.Header.Set("Content-Type", "application/merge-patch+json")
	}
	response, err := e.client.Do(r)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.name, err)
	}
	if response.Uncompressed {
		response.Header.Set("Content-Encoding", "gzip")
	}
	return response, nil
}

// ask sends the request and reads the answer.
func (s *side) ask(ctx context.Context, q *request) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	response, err := s.send(ctx, q)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	read, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.name, err)
	}
	a := &answer{response.StatusCode, response.Header, read}
	if s.tamper.answer != nil {
		s.tamper.answer(q, a)
	}
	return a, nil
}

const (
	asJSON     = "application/json"
	asTable    = "application/json;as=Table;g=meta.k8s.io;v=v1"
	asMetadata = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	asMetaOne  = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	asProtobuf = "application/vnd.kubernetes.protobuf"
	asYAML     = "application/yaml"
)

var (
	listForms  = []string{asJSON, asJSON, asJSON, asTable, asTable + "," + asJSON, asMetadata, asProtobuf, asProtobuf + "," + asJSON, asYAML, "text/html", ""}
	getForms   = []string{asJSON, asJSON, asJSON, asTable, asMetaOne, asProtobuf + "," + asJSON, asYAML}
	watchForms = []string{asJSON, asJSON, asJSON, asTable, asMetaOne, "text/html"}
	users      = []string{administrator, administrator, administrator, administrator, administrator, "reader-of-a", "lister"}
)

// drawVersion draws a resourceVersion: text, or a placeholder for the one of some writes
// ago, or for one that is far ahead, for which both wait for seconds.
func drawVersion(d *rand.Rand) string {
	switch n := d.IntN(1000); {
	case n < 350:
		return ""
	case n < 550:
		return "0"
	case n < 970:
		return fmt.Sprintf("-%d writes", d.IntN(12)*d.IntN(2)*(1+d.IntN(3)))
	case n < 997:
		return pick(d, []string{"1", "-1", "x", "0x1", "18446744073709551615", "9223372036854775808"})
	default:
		return "+1000000 writes"
	}
}

// known returns a copy with a version in place of the placeholder.
func (r *run) known(q *request) *request {
	var n int
	if _, err := fmt.Sscanf(q.query.Get("resourceVersion"), "%d writes", &n); err != nil {
		return q
	}
	return q.with(map[string]string{"resourceVersion": fmt.Sprint(r.noted[max(0, min(len(r.noted)-1+n, len(r.noted)-1))] + int64(max(0, n)))})
}

// read is a GET or a LIST, of one page or of several.
type read struct {
	*request
	match    thing // an object that the selectors select
	pages    int
	tokensOf int // the side whose continue tokens both follow; 2: each its own
}

func drawRead(d *rand.Rand) step {
	s := &read{request: &request{resource: pick(d, resources), method: http.MethodGet, user: pick(d, users), gzip: d.IntN(4) == 0}, tokensOf: d.IntN(3), pages: 1}
	values := map[string]string{"resourceVersion": drawVersion(d)}
	if d.IntN(4) == 0 {
		s.path, s.accept = s.resource.path(d.IntN(2), pick(d, namespaces), pick(d, append(names, "mark", "none", ".."))), pick(d, getForms)
		s.request = s.with(values)
		return s
	}
	s.selectFrom(d)
	s.accept = pick(d, listForms)
	values["resourceVersionMatch"] = pick(d, []string{"", "", "", "", "", "", "NotOlderThan", "Exact", "Exact", "Other"})
	if d.IntN(2) == 0 {
		values["limit"], s.pages = pick(d, []string{"1", "2", "2", "3", "500", "-1"}), 1+d.IntN(12)
	}
	if d.IntN(25) == 0 {
		name, value, _ := strings.Cut(pick(d, []string{"sendInitialEvents=true", "sendInitialEvents=false", "continue=x", "timeoutSeconds=-1",
			"timeoutSeconds=9223372036854775807", "allowWatchBookmarks=true", "labelSelector===", "fieldSelector=spec.none=1", "pretty=true", "limit=x", "resourceVersion=a"}), "=")
		values[name] = value
	}
	s.request = s.with(values)
	return s
}

func (s *read) String() string {
	return fmt.Sprintf("%s, pages %d, tokens of %d", s.request, s.pages, s.tokensOf)
}

// do asks both sides, page by page.
func (s *read) do(r *run) {
	q, tokens := r.known(s.request), [2]string{}
	for range s.pages {
		answers, ok := r.askBoth(s, q, tokens)
		if !ok {
			return
		}
		for i, a := range answers {
			tokens[i] = at(decodeList(a), "metadata", "continue")
		}
		if s.tokensOf < 2 {
			tokens = [2]string{tokens[s.tokensOf], tokens[s.tokensOf]}
		}
		q = q.with(nil, "resourceVersion", "resourceVersionMatch")
		if tokens[ours] == "" && tokens[shipped] != "" && !q.narrowed() {
			r.nothingFollows(q, tokens[shipped])
		}
		if tokens[ours] == "" || tokens[shipped] == "" {
			return
		}
	}
}

// nothingFollows follows a token of the shipped cacher to the end of the list.
func (r *run) nothingFollows(q *request, token string) {
	for token != "" {
		a := r.ask(shipped, q.with(map[string]string{"continue": token}))
		list := decodeList(a)
		require.Empty(r, items(list), "the list goes on")
		require.Equal(r, http.StatusOK, a.status, "%s", a.body)
		token = at(list, "metadata", "continue")
	}
}
