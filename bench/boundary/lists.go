// SPDX-License-Identifier: Apache-2.0

package boundary

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// List sends a list request and reads the whole answer.
func (c *Client) List(ctx context.Context, r Request) error {
	response, err := c.Do(ctx, r)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, response.Body)
	return errors.Join(err, response.Body.Close())
}

// CheckedList is List, and fails unless the answer is in the format that was
// asked for and has n items.
func (c *Client) CheckedList(ctx context.Context, r Request, n int) error {
	response, err := c.Do(ctx, r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if got, want := response.Header.Get("Content-Type"), strings.ReplaceAll(r.Accept, " ", ""); !strings.HasPrefix(got, strings.SplitN(want, ";", 2)[0]) {
		return fmt.Errorf("%s: the answer is %q, want %q", r.Path, got, r.Accept)
	}
	body, err := decompressed(r, response)
	if err != nil {
		return fmt.Errorf("%s: %w", r.Path, err)
	}
	content, err := io.ReadAll(body)
	if err != nil {
		return fmt.Errorf("%s: %w", r.Path, err)
	}
	got, err := items(r, content)
	if err == nil && got != n {
		err = fmt.Errorf("the answer has %d items, want %d", got, n)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", r.Path, err)
	}
	return nil
}

// decompressed returns the body as it is without compression.
func decompressed(r Request, response *http.Response) (io.Reader, error) {
	encoding := response.Header.Get("Content-Encoding")
	switch {
	case !r.Gzip && encoding == "":
		return response.Body, nil
	case r.Gzip && encoding == "gzip":
		return gzip.NewReader(response.Body)
	}
	return nil, fmt.Errorf("the answer has Content-Encoding %q; gzip was asked for: %v", encoding, r.Gzip)
}

// items counts what a list has, in protobuf by the names of the items.
func items(r Request, content []byte) (int, error) {
	if r.Accept == PartialMetadataProtobuf {
		return strings.Count(string(content), namePrefix), nil
	}
	var list struct {
		Items, Rows []json.RawMessage
	}
	err := json.Unmarshal(content, &list)
	return len(list.Items) + len(list.Rows), err
}

// Walk lists everything in pages, and calls took with the time that each page
// has taken. There must be n devices.
func (c *Client) Walk(ctx context.Context, r Request, n, limit int, took func(time.Duration)) error {
	query := url.Values{"limit": {strconv.Itoa(limit)}}
	for left := n; ; left -= limit {
		r.Query = query
		begun := time.Now()
		next, err := c.page(ctx, r)
		if err != nil {
			return err
		}
		took(time.Since(begun))
		switch last := left <= limit; {
		case (next == "") != last:
			return fmt.Errorf("%s: a page with %d devices left, limit %d, has the continue token %q", r.Path, left, limit, next)
		case last:
			return nil
		}
		query.Set("continue", next)
	}
}

// page reads a page and returns the token of the next one. Only the list's
// metadata, which come before the items, are decoded.
func (c *Client) page(ctx context.Context, r Request) (next string, err error) {
	response, err := c.Do(ctx, r)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	meta, err := listMeta(response.Body)
	if err == nil {
		_, err = io.Copy(io.Discard, response.Body)
	}
	return meta.Continue, err
}

// Latest returns the resourceVersion of a list of one device.
func (c *Client) Latest(ctx context.Context) (string, error) {
	response, err := c.Do(ctx, Request{Path: V1, Accept: JSON, Query: url.Values{"limit": {"1"}}})
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	meta, err := listMeta(response.Body)
	if err == nil {
		_, err = io.Copy(io.Discard, response.Body)
	}
	return meta.ResourceVersion, err
}

type meta struct{ ResourceVersion, Continue string }

// listMeta decodes the metadata of a list in JSON.
func listMeta(body io.Reader) (meta, error) {
	decoder := json.NewDecoder(body)
	for {
		token, err := decoder.Token()
		if err != nil {
			return meta{}, fmt.Errorf("a list without metadata: %w", err)
		}
		if token == "metadata" {
			var m meta
			return m, decoder.Decode(&m)
		}
	}
}
