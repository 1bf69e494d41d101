package daemon

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/daemon/recording"
	"sandboxd/isolate"
	"sandboxd/policy"
)

// The years that a run's clock may begin in: what it shows has to be a time for
// everybody who reads it, also after the longest sleep.
const firstYear, lastYear = 1970, 2199

// planRecord decides whether the run is recorded, and gives it the seed and the
// clock that a deterministic one has.
func planRecord(p *plan) error {
	mode, asked := p.profile.Isolate.Record, p.request.Deterministic
	if p.request.Record && mode == policy.RecordOff {
		return &api.Error{Code: api.CodeDenied, Field: "record", Message: "the policy lets no run be recorded", Hint: "an operator can set isolate.record of the profile"}
	}
	p.record = mode != policy.RecordOff && (p.request.Record || asked != nil || mode == policy.RecordAll)
	if !p.record && asked == nil {
		return nil
	}
	p.deterministic = &api.Deterministic{}
	if asked != nil {
		*p.deterministic = *asked
	}
	if p.deterministic.Seed == nil {
		p.deterministic.Seed = ptr(newSeed())
	}
	if p.deterministic.Clock == nil {
		p.deterministic.Clock = ptr(time.Now().UTC().Truncate(time.Millisecond))
	}
	if year := p.deterministic.Clock.UTC().Year(); year < firstYear || year > lastYear {
		return api.Invalid("deterministic.clock", "must be in the years 1970 to 2199")
	}
	return nil
}

// maxRecorders is the memory of all recordings under way together.
const maxRecorders = 256 << 20

// newSeed is a seed that every reader of JSON keeps exactly.
func newSeed() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails: it ends the program instead
	return binary.LittleEndian.Uint64(b[:]) >> 11
}

// A recordedHost answers the calls of a run that is recorded.
type recordedHost struct {
	*host
	recorder *recording.Recorder
}

var _ isolate.OrderHost = (*recordedHost)(nil)

// Called implements isolate.OrderHost.
func (h *recordedHost) Called(int) {}

// Waiting implements isolate.OrderHost.
func (h *recordedHost) Waiting(int) {}

// Answered implements isolate.OrderHost.
func (h *recordedHost) Answered(nth int, answer json.RawMessage, err error) {
	h.recorder.Answered(nth, answer, err)
}

// Call implements isolate.Host.
func (h *recordedHost) Call(ctx context.Context, c isolate.Call) (json.RawMessage, error) {
	h.recorder.Asked(c)
	return h.host.Call(ctx, c)
}

// recorded makes h note what it answers, if the plan says so.
func (d *Daemon) recorded(p *plan, req *isolate.Request, h *host) (isolate.Host, *recording.Recorder) {
	if !p.record {
		return h, nil
	}
	id, err := isolate.IdentityOf(req.Language)
	if err != nil {
		d.log.Error("a run cannot be recorded", "run", h.run.id, "tenant", h.run.tenant, "error", err)
		return h, nil
	}
	recorder := recording.NewRecorder(req, id, p.profile.Isolate.Recordings.Size.Bytes(), d.recorders)
	return &recordedHost{h, recorder}, recorder
}

// keepRecording stores the recording of a run that has ended, and says so in its
// record. A recording that cannot be stored does not change how the run ended.
func (d *Daemon) keepRecording(r *run, p *plan, recorder *recording.Recorder) {
	if !p.record {
		return
	}
	kept := &api.Recording{Why: "it could not be stored; the daemon's log says more"}
	if recorder != nil {
		rec, size, err := d.storeRecording(r, p, recorder)
		if err != nil {
			d.log.Error("a recording could not be stored", "run", r.id, "tenant", r.tenant, "error", err)
		} else {
			kept = &api.Recording{Complete: rec.Incomplete == "", Why: rec.Incomplete, Bytes: size, Expires: rec.Expires,
				Engine: rec.Identity.Engine, FuelVersion: rec.Identity.FuelVersion}
		}
	}
	r.mu.Lock()
	r.record.Recording = kept
	r.mu.Unlock()
}

// notRecorded says why a run that was to be recorded is not.
func (r *run) notRecorded(p *plan, why string) {
	if p.record {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.record.Recording = &api.Recording{Why: why}
	}
}

func (d *Daemon) storeRecording(r *run, p *plan, recorder *recording.Recorder) (*recording.Recording, int64, error) {
	record := r.snapshot()
	outcome, err := recording.OutcomeOf(&record)
	if err != nil {
		return nil, 0, err
	}
	l := p.profile.Isolate.Recordings
	rec := recorder.Finish(r.tenant, r.id, r.codeSHA, outcome, time.Now().UTC(), l.Age.Std())
	size, err := d.recordings.Put(rec, recording.Limits{Count: l.Count, Total: l.Total.Bytes(), Age: l.Age.Std()})
	return rec, size, err
}
