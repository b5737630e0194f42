// SPDX-License-Identifier: Apache-2.0

package beside

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"sigs.k8s.io/yaml"

	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/install"
)

// comparison is one request and what both sides answered, or what they sent to a watch.
// The answer to a watch that is open is nil.
type comparison struct {
	run     *run
	request *request
	tokens  [2]string
	answers [2]*answer
	pair    *pair
	first   bool // look at the pair
}

// judge reports whether both sides are equal, or differ as a rule says; if not, the
// difference is noted.
func (c *comparison) judge(s fmt.Stringer) bool {
	found := c.difference()
	if found == "" || c.ruled() {
		return true
	}
	c.run.differences = append(c.run.differences, fmt.Sprintf("%s\n  %s, tokens %q, keys lost: %v\n%s", s, c.request, c.tokens, c.run.lost, found))
	return false
}

// younger reports whether a server can't read what the other one knows from before the
// younger one's start, where both go to etcd. An answer that can't be encoded was read.
func (c *comparison) younger() bool {
	for i, a := range c.answers {
		if c.before(i) && a != nil && c.pair == nil && c.request.method == http.MethodGet && slices.Contains([]int{http.StatusOK, http.StatusNotAcceptable}, status(c.answers[1-i])) {
			return a.status == http.StatusGone || a.status == http.StatusInternalServerError && c.run.lost
		}
	}
	return false
}

// before reports whether the request, or what came of it, may name a version from before the
// start of a side.
func (c *comparison) before(side int) bool {
	named, err := strconv.ParseInt(c.version(), 10, 64)
	return c.run.restarted[side] || err == nil && named < c.run.began[side]
}

// ruled reports whether a rule has the difference, and counts its use.
func (c *comparison) ruled() bool {
	for _, rule := range rules {
		if rule.met(c) {
			c.run.mu.Lock()
			defer c.run.mu.Unlock()
			c.run.ruled[rule.row]++
			return true
		}
	}
	return c.younger()
}

// difference is empty if both sides are equal to a client.
func (c *comparison) difference() string {
	if c.pair != nil {
		return c.streams()
	}
	var texts [2]string
	for i, a := range c.answers {
		if texts[i] = "200: a watch"; a != nil {
			texts[i] = c.text(i, a)
		}
	}
	return unequal(texts[0], texts[1])
}

// streams compares the events since the last look. Initial events may be of any age, unless
// the client has asked for a stream of the most recent ones.
func (c *comparison) streams() string {
	a, b := c.pair.followers[ours], c.pair.followers[shipped]
	found := c.states()
	query := a.request.query
	named, streamed := query.Get("resourceVersion"), query.Get("sendInitialEvents")
	anyAge := c.first && (named == "0" || streamed == "true" && named != "" || streamed == "" && named == "")
	if a.relisted || b.relisted || anyAge {
		a, b = &follower{since: since{gone: a.gone}}, &follower{since: since{gone: b.gone}}
	}
	events := func(f *follower) []string {
		if !c.pair.redefined {
			return f.events
		}
		var all []string
		for _, e := range f.events {
			kind, _, _ := strings.Cut(e, " ")
			all = append(all, kind+" "+version.FindString(e))
		}
		return all
	}
	counts := func(s since) string {
		if c.pair.redefined {
			s.gone = 0
		}
		return fmt.Sprintf("%d 410s, %d ends of initial events, columns %d times", s.gone, s.initial, s.columns)
	}
	if a.opened != b.opened { // each stream has the columns
		a.columns, b.columns = 0, 0
	}
	return found + unequal(strings.Join(append(events(a), counts(a.since)), "\n"), strings.Join(append(events(b), counts(b.since)), "\n"))
}

// states compares the objects that both followers have. One that did not list has those
// alone that it got events of.
func (c *comparison) states() string {
	a, b := c.pair.followers[ours], c.pair.followers[shipped]
	known := func(f, by *follower) string {
		state := maps.Clone(f.state)
		maps.DeleteFunc(state, func(key, _ string) bool { return f.relisted && !by.relisted && by.state[key] == "" })
		if c.pair.redefined {
			for key := range state {
				state[key] = version.FindString(state[key])
			}
		}
		return encode(state)
	}
	return unequal(known(a, b), known(b, a))
}

// unequal returns the lines that differ.
func unequal(a, b string) string {
	if a == b {
		return ""
	}
	as, bs := strings.Split(a, "\n"), strings.Split(b, "\n")
	return fmt.Sprintf("ours:    %q\nshipped: %q\n", without(as, bs), without(bs, as))
}

func without(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(line string) bool { return slices.Contains(b, line) })
}

// text is an answer without what may differ between two servers, or two moments.
func (c *comparison) text(side int, a *answer) string {
	var text strings.Builder
	for _, name := range []string{"Content-Type", "Content-Encoding", "Warning", "Retry-After", "Vary", "Cache-Control"} {
		fmt.Fprintf(&text, "\n%s: %q", name, a.header.Values(name))
	}
	value, err := decode(a)
	if err != nil {
		fmt.Fprintf(&text, "\nundecodable: %v: %q", err, a.body)
		return text.String()
	}
	if list, ok := value.(object); ok {
		c.listMeta(side, list)
	}
	if list, ok := value.(object); ok {
		for _, item := range items(list) {
			fmt.Fprintf(&text, "\n%s", encode(item))
		}
		value = maps.Clone(list)
		delete(value.(object), "items")
		delete(value.(object), "rows")
	}
	fmt.Fprintf(&text, "\n%s", encode(value))
	return fmt.Sprint(a.status) + normal(text.String(), c.request.method != http.MethodGet)
}

// listMeta replaces the version of a list, which need not be the same unless the client
// named it, and what a continue token says of it.
func (c *comparison) listMeta(side int, list object) {
	meta, _ := list["metadata"].(object)
	if _, single := meta["name"]; meta == nil || single {
		return
	}
	shown, err := strconv.ParseInt(fmt.Sprint(meta["resourceVersion"]), 10, 64)
	exact := c.request.query.Get("resourceVersionMatch") == "Exact"
	consistent := c.request.query.Get("resourceVersion") == "" && c.tokens[side] == ""
	latest := c.run.noted[len(c.run.noted)-1]
	switch {
	case err != nil || exact:
	case consistent && shown < latest:
		meta["resourceVersion"] = fmt.Sprintf("%d, older than the last write, %d", shown, latest)
	case c.tokens[side] == "" || c.tokens[0] != c.tokens[1]:
		meta["resourceVersion"] = "of any age"
	}
	if token, ok := meta["continue"].(string); ok {
		decoded, err := base64.RawURLEncoding.DecodeString(token)
		if err != nil {
			return
		}
		var content object
		if json.Unmarshal(decoded, &content) == nil {
			if !exact && (c.tokens[0] != c.tokens[1] || c.tokens[side] == "") {
				delete(content, "rv")
			}
			// Those of the shipped cacher begin with a slash, those of its storage do not.
			content["start"] = strings.TrimPrefix(at(content, "start"), "/")
			meta["continue"] = encode(content)
		}
	}
}

var codecs = func() serializer.CodecFactory {
	scheme := runtime.NewScheme()
	utilruntime.Must(install.AddToScheme(scheme))
	utilruntime.Must(metav1.AddMetaToScheme(scheme))
	return serializer.NewCodecFactory(scheme)
}()

// decode returns the body as JSON would be decoded.
func decode(a *answer) (value any, err error) {
	kind, _, _ := mime.ParseMediaType(a.header.Get("Content-Type"))
	body := a.body
	switch {
	case kind == asProtobuf:
		decoded, _, err := codecs.UniversalDeserializer().Decode(body, nil, nil)
		if err != nil {
			return nil, err
		}
		if body, err = json.Marshal(decoded); err != nil {
			return nil, err
		}
	case kind == asYAML:
		if body, err = yaml.YAMLToJSON(body); err != nil {
			return nil, err
		}
	case !strings.Contains(kind, "json"):
		return string(body), nil
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	err = decoder.Decode(&value)
	return value, err
}

func decodeList(a *answer) object {
	value, _ := decode(a)
	list, _ := value.(object)
	return list
}

// items returns the objects of a list, those of a Table as Tables with one row.
func items(list object) (all []object) {
	of, _ := list["items"].([]any)
	for _, item := range of {
		all = append(all, item.(object))
	}
	rows, _ := list["rows"].([]any)
	for _, row := range rows {
		all = append(all, object{"rows": []any{row}})
	}
	return all
}

var (
	age     = regexp.MustCompile(`"(\d+[smhdy])+"`)
	version = regexp.MustCompile(`"resourceVersion":"\d+"`)
	number  = regexp.MustCompile(`\d{3,}`)
	fresh   = regexp.MustCompile(`"[0-9a-f]{8}-[0-9a-f-]{27}"|"\d{4}-\d\d-\d\dT[^"]*"`)
)

// normal takes out what depends on the moment: ages, versions in messages, and with made the
// identity and times of an object that is made.
func normal(text string, made bool) string {
	text = age.ReplaceAllString(text, `"an age"`)
	if made {
		text = fresh.ReplaceAllString(text, `"new"`)
	}
	if strings.Contains(text, `"kind":"Status"`) {
		text = number.ReplaceAllString(text, "N")
	}
	return text
}

func encode(value any) string {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return err.Error()
	}
	return strings.TrimSpace(text.String())
}
