// SPDX-License-Identifier: Apache-2.0

package metrics

// Totals is what the counters of one cache show, since it started or was last
// woken up. Maps are by label value, and have no entry for what was not counted.
type Totals struct {
	// Events came from storage, by type.
	Events map[string]uint64 `json:"events"`
	// Reads were answered, by verb and decision.
	Reads map[string]map[string]uint64 `json:"reads"`
	// ReadsByIndex are LISTs that the cache has served, by the index read.
	ReadsByIndex map[string]uint64 `json:"readsByIndex"`
	StaleReads   map[string]uint64 `json:"staleReads"`
	// EvaluatedObjects were looked at by LISTs, and ReturnedObjects returned.
	EvaluatedObjects uint64 `json:"evaluatedObjects"`
	ReturnedObjects  uint64 `json:"returnedObjects"`
	// Delivered and Initial are events sent to watchers, once for each watcher.
	Delivered uint64 `json:"delivered"`
	Initial   uint64 `json:"initial"`
	// Candidates are watchers that the index named for an event, and Matches
	// those that the event was for.
	Candidates       uint64 `json:"candidates"`
	Matches          uint64 `json:"matches"`
	Evaluations      uint64 `json:"evaluations"`
	EvaluationsSaved uint64 `json:"evaluationsSaved"`
	Encodings        uint64 `json:"encodings"`
	EncodingsShared  uint64 `json:"encodingsShared"`
	// Parked, Resumed and Expired count watchers, each time.
	Parked  uint64 `json:"parked"`
	Resumed uint64 `json:"resumed"`
	Expired uint64 `json:"expired"`
	// BeyondWindow counts the watches that went on although events after their
	// positions had left the window, each time: none of the events was for them.
	BeyondWindow uint64 `json:"beyondWindow"`
	// Ended are watches that ended, by reason.
	Ended map[string]uint64 `json:"ended"`
	// VersionRequests were sent to the storage, for VersionRequestReads reads.
	VersionRequests     uint64 `json:"versionRequests"`
	VersionRequestReads uint64 `json:"versionRequestReads"`
	// Relists are successful lists of the storage, by cause.
	Relists           map[string]uint64 `json:"relists"`
	WatchesBroken     uint64            `json:"watchesBroken"`
	Undeliverable     uint64            `json:"undeliverable"`
	ConsistencyChecks map[string]uint64 `json:"consistencyChecks"`
	// WokenUp counts the requests that woke the cache up, and goes on while the
	// cache sleeps.
	WokenUp uint64 `json:"wokenUp"`
}

// Totals returns what was counted: nothing for a cache that sleeps. Handles for
// the same group and resource on one registry share what they count.
func (r *Resource) Totals() Totals {
	s := r.load()
	if s == nil {
		s = new(series)
	}
	t := Totals{
		Events: byValue(s.events[:], eventTypes), Reads: s.totalReads(), ReadsByIndex: map[string]uint64{},
		StaleReads:       byValue(s.staleReads[:], staleAnswers),
		EvaluatedObjects: s.evaluated[0].Load(), ReturnedObjects: s.listed[0].Load(),
		Delivered: s.delivered[0].Load(), Initial: s.initial[0].Load(),
		Candidates: s.candidates[0].Load(), Matches: s.matches[0].Load(),
		Evaluations: s.evaluations[0].Load(), EvaluationsSaved: s.evaluationsSaved[0].Load(),
		Encodings: s.encodings[0].Load(), EncodingsShared: s.encodingsShared[0].Load(),
		Parked: s.parkings[0].Load(), Resumed: s.resumptions[0].Load(), Expired: s.expired[0].Load(),
		BeyondWindow:    s.beyondWindow[0].Load(),
		Ended:           byValue(s.ended[:], endReasons),
		VersionRequests: s.versionRequests[0].Load(), VersionRequestReads: s.versionRequestReads[0].Load(),
		Relists: byValue(s.relists[:], relistCauses), WatchesBroken: s.watchesBroken[0].Load(),
		Undeliverable: s.undeliverable[0].Load(), ConsistencyChecks: byValue(s.consistency[:], checkResults),
	}
	s.byIndex.each(func(name string, count uint64) { t.ReadsByIndex[name] = count })
	if r != nil {
		if p := r.presence.Load(); p != nil {
			t.WokenUp = p.wokenUp.Load()
		}
	}
	return t
}

// counted reports whether one of the counts is not 0.
func counted(cells []cell) bool {
	for i := range cells {
		if cells[i].Load() > 0 {
			return true
		}
	}
	return false
}

// byValue returns the counts that are not 0, by label value.
func byValue(cells []cell, values []string) map[string]uint64 {
	out := map[string]uint64{}
	for i := range cells {
		if n := cells[i].Load(); n > 0 {
			out[values[i]] = n
		}
	}
	return out
}

func (s *series) totalReads() map[string]map[string]uint64 {
	out := map[string]map[string]uint64{}
	for i, verb := range verbs {
		row := s.reads[i*len(decisions) : (i+1)*len(decisions)]
		if counted(row) {
			out[verb] = byValue(row, decisions)
		}
	}
	return out
}
