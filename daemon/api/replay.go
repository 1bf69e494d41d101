package api

import "time"

// Recording tells what is kept of a run, so that it can be replayed.
type Recording struct {
	Complete bool      `json:"complete" doc:"Whether the run can be replayed."`
	Why      string    `json:"why,omitempty" doc:"Why it is not complete."`
	Bytes    int64     `json:"bytes,omitempty"`
	Expires  time.Time `json:"expires,omitzero" doc:"When it is dropped at the latest; others of the tenant's may take its place before."`
	// Engine and FuelVersion are what a replay needs to find again.
	Engine      string `json:"engine,omitempty" doc:"Hash of the interpreter and what is loaded into it."`
	FuelVersion string `json:"fuel_version,omitempty" doc:"Of the costs that processor time is counted in."`
}

// ReplayRequest replays a recorded run. An empty one replays it as it was.
type ReplayRequest struct {
	Code    string            `json:"code,omitempty" doc:"Other code, to see what it makes of the same answers."`
	Modules map[string]string `json:"modules,omitempty" max:"1000" doc:"File names and their source, in place of code."`
	Main    string            `json:"main,omitempty" max:"1024" doc:"The entry among modules."`
}

// Replay tells of which run a run is a replay, and whether it came out the same.
type Replay struct {
	Of        string   `json:"of" required:"true" doc:"The recorded run."`
	Identical bool     `json:"identical" doc:"Result, error, logs, output, processor time, memory and calls are the recorded ones, byte for byte."`
	Differs   []string `json:"differs,omitempty" doc:"What is not as recorded, such as result or logs[3]; the first of them."`
	// ChangedCode says that the code was not the recorded one.
	ChangedCode bool `json:"changed_code,omitempty"`
	// Note says why the recorded run's end cannot be had again for certain.
	Note       string      `json:"note,omitempty" doc:"Why the end of the recorded run, or of the replay, depended on real time."`
	Divergence *Divergence `json:"divergence,omitempty"`
}

// Divergence is the first call of a replay that is not the recorded one.
type Divergence struct {
	Nth      int    `json:"nth" doc:"Number of the call, from 1."`
	Recorded string `json:"recorded,omitempty" doc:"The call that the recorded run made."`
	Came     string `json:"came,omitempty" doc:"The call that the replay made; hostile."`
}
