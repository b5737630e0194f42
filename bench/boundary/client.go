// SPDX-License-Identifier: Apache-2.0

package boundary

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// The served versions of devices.
const (
	V1      = "/apis/fleet.example.com/v1/devices"
	V1Beta1 = "/apis/fleet.example.com/v1beta1/devices"
)

// V1In is where the devices of the i-th device's namespace are served.
func V1In(i int) string {
	return "/apis/fleet.example.com/v1/namespaces/" + namespace(i) + "/devices"
}

// The formats that requests accept.
const (
	JSON            = "application/json"
	Table           = "application/json;as=Table;v=v1;g=meta.k8s.io"
	PartialMetadata = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
	// PartialMetadataProtobuf is what client-go's metadata client asks for first.
	PartialMetadataProtobuf = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
)

// Client is an HTTPS client as client-go makes one, on connections of its own.
type Client struct {
	http *http.Client
	host string
	wire atomic.Int64
}

// Connect gives a client; connections are opened when they are needed. The
// caller closes the client.
func (s *Server) Connect() (*Client, error) {
	c := &Client{host: s.child.URL}
	config := rest.CopyConfig(s.child.Config)
	// Transports are shared by configurations with one dialer.
	dialer := net.Dialer{}
	config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dialer.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return countedConn{conn, &c.wire}, nil
	}
	var err error
	c.http, err = rest.HTTPClientFor(config)
	return c, err
}

// Close closes the client's idle connections: requests have to end before.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Received is how many bytes have come over the client's connections, those of
// TLS and HTTP/2 included.
func (c *Client) Received() int64 { return c.wire.Load() }

// countedConn counts the bytes that are read.
type countedConn struct {
	net.Conn
	read *atomic.Int64
}

func (c countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.read.Add(int64(n))
	return n, err
}

// Request is a GET.
type Request struct {
	Path, Accept string
	Query        url.Values
	// Gzip asks for a compressed answer, as client-go does. The body is not
	// decompressed.
	Gzip bool
}

// Do sends a request. The caller reads and closes the body; an answer that is
// not 200 is an error with its body.
func (c *Client) Do(ctx context.Context, r Request) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.host+r.Path+"?"+r.Query.Encode(), nil)
	if err != nil {
		return nil, err
	}
	if r.Accept != "" {
		request.Header.Set("Accept", r.Accept)
	}
	// With a header of our own the transport decompresses nothing.
	request.Header.Set("Accept-Encoding", "identity")
	if r.Gzip {
		request.Header.Set("Accept-Encoding", "gzip")
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		defer response.Body.Close()
		body, _ := io.ReadAll(io.LimitReader(response.Body, 1<<10))
		return nil, fmt.Errorf("GET %s: %s: %s", request.URL, response.Status, body)
	}
	return response, nil
}

// Annotate changes the i-th device by a request, and returns its new resourceVersion.
func (c *Client) Annotate(ctx context.Context, i, n int) (resourceVersion string, err error) {
	body := fmt.Sprintf(`{"metadata":{"annotations":{"fleet.example.com/last-inspection":"number %d"}}}`, n)
	request, err := http.NewRequestWithContext(ctx, http.MethodPatch, c.host+V1In(i)+"/"+deviceName(i), strings.NewReader(body))
	if err != nil {
		return "", err
	}
	request.Header.Set("Content-Type", string(types.MergePatchType))
	request.Header.Set("Accept", JSON)
	response, err := c.http.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("PATCH %s: %s: %.1000s: %w", request.URL, response.Status, answer, err)
	}
	return versionIn(answer)
}

// versionIn returns the resourceVersion of an object, or of the object in an event.
func versionIn(content []byte) (string, error) {
	_, rest, found := bytes.Cut(content, []byte(`"resourceVersion":"`))
	version, _, ended := bytes.Cut(rest, []byte(`"`))
	if !found || !ended {
		return "", fmt.Errorf("no resourceVersion in %.500s", content)
	}
	return string(version), nil
}
