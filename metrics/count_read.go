// SPDX-License-Identifier: Apache-2.0

package metrics

import "time"

// Read counts a GET or LIST by how it is answered.
func (r *Resource) Read(verb Verb, decision Decision) {
	if s := r.load(); s != nil {
		pickRead(&s.reads, verb, decision).Add(1)
	}
}

// ReadTook records how long a GET or LIST took in all, by how it was answered. Of
// the reads that Read counts, not each one needs to be timed.
func (r *Resource) ReadTook(verb Verb, decision Decision, d time.Duration) {
	if s := r.load(); s != nil {
		pickRead(&s.readDuration, verb, decision).observe(NameReadDuration, d.Seconds())
	}
}

// ReadWait records how long a read waited for the cache to be fresh enough.
func (r *Resource) ReadWait(d time.Duration) {
	if s := r.load(); s != nil {
		s.readWait[0].observe(NameReadWait, d.Seconds())
		if s.mirrored.Load() {
			s.mirror.waited(r.id, d)
		}
	}
}

// StaleRead counts a consistent read for which the cache did not become fresh
// in time, by what became of it.
func (r *Resource) StaleRead(answer StaleAnswer) {
	if s := r.load(); s != nil {
		pick(s.staleReads[:], answer).Add(1)
	}
}

// Listed counts the objects of one LIST that was served from the cache: how
// many it looked at and how many it returned; neither must be negative.
func (r *Resource) Listed(evaluated, returned int) {
	if s := r.load(); s != nil {
		s.evaluated[0].Add(uint64(evaluated))
		s.listed[0].Add(uint64(returned))
	}
}

// DeclareIndexes tells by which indexes ReadByIndex will count, until
// FellAsleep or Forget. The names come from the configuration of the cache, so
// that no request adds series. Unlike the other methods it allocates.
func (r *Resource) DeclareIndexes(names ...string) {
	if s := r.load(); s != nil {
		s.byIndex.declare(append([]string{other, ByKeys}, names...))
	}
}

// ReadByIndex counts a LIST that was served from the cache by the index that it
// read, ByKeys if it read a range of keys, and notes how many objects the LIST
// looked at. Names that were not declared are counted as other.
func (r *Resource) ReadByIndex(name string, evaluated int) {
	if s := r.load(); s != nil {
		if c := s.byIndex.of(name); c != nil {
			c.evaluated.Add(uint64(evaluated))
			c.reads.Add(1)
		}
	}
}

// VersionRequest counts a request to storage for its current resourceVersion, when
// it is sent.
func (r *Resource) VersionRequest() {
	if s := r.load(); s != nil {
		s.versionRequests[0].Add(1)
	}
}

// VersionRequestTook records how long a request for storage's resourceVersion was
// under way, when it has ended or was given up.
func (r *Resource) VersionRequestTook(result VersionResult, d time.Duration) {
	if s := r.load(); s != nil {
		pick(s.versionDuration[:], result).observe(NameVersionDuration, d.Seconds())
	}
}

// VersionRequestRead counts a read that waits for the storage's resourceVersion,
// alone or with others.
func (r *Resource) VersionRequestRead() {
	if s := r.load(); s != nil {
		s.versionRequestReads[0].Add(1)
	}
}
