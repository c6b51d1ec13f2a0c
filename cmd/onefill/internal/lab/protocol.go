package lab

// The parent and its reader processes talk in JSON lines over the child's
// standard input and output. A child ends when its standard input does, so none
// outlives the parent, however that ended.

// command is what the parent asks for. Each has a reply with the same ID.
type command struct {
	ID int    `json:"id"`
	Op string `json:"op"`
	// Key, for opPrepare: the cell's; for opGet and opPark: which is asked for, if not that.
	Key string `json:"key,omitempty"`
	// setup, for opOpen.
	Setup *workerSetup `json:"setup,omitempty"`
	// cell, for opPrepare.
	Cell *cellSetup `json:"cell,omitempty"`
	// Callers, for opPrepare, opPark, opStart, opCancel and opCollect.
	Callers []int  `json:"callers,omitempty"`
	Phase   string `json:"phase,omitempty"`
	// Holder, for opTake, opPublish and opDrop: who does it; one process may play several.
	Holder string `json:"holder,omitempty"`
	// Share and Of, for opFill: which of how many shares of the keys. SinceUS, for opRecent.
	Share   int   `json:"share,omitempty"`
	Of      int   `json:"of,omitempty"`
	SinceUS int64 `json:"since_us,omitempty"`
	// Commit, for opWrite, opWork and opCompare.
	Commit *commitSetup `json:"commit,omitempty"`
}

// The commands.
const (
	opOpen       = "open"       // connect to the origin
	opPrepare    = "prepare"    // make the cache, connect, warm up, park the callers
	opPark       = "park"       // park callers once more
	opStart      = "start"      // let parked callers go
	opCancel     = "cancel"     // cancel the contexts of running callers
	opCollect    = "collect"    // wait for callers and hand over their calls
	opGet        = "get"        // one more call, at once
	opInvalidate = "invalidate" // through the mode's cache
	opStored     = "stored"     // what the store holds, past every local cache
	opTake       = "take"       // try to take the lock or the lease
	opPublish    = "publish"    // store a value as its holder
	opDrop       = "drop"       // give it back
	opFill       = "fill"       // load a share of the keys of the traffic
	opTraffic    = "traffic"    // start the traffic
	opRecent     = "recent"     // count its latest calls
	opHalt       = "halt"       // end it and hand over its calls
	opWrite      = "write"      // start to change rows
	opWork       = "work"       // start to apply the jobs of the queue
	opLeave      = "leave"      // end that, in order
	opCompare    = "compare"    // the row of each key, as the cache has it and as the store does
	opFinish     = "finish"     // close the cell's cache
)

type workerSetup struct {
	Process int        `json:"process"`
	Run     string     `json:"run"` // random part of all names that the run uses
	Origin  originSpec `json:"origin"`
	Store   storeSpec  `json:"store"`
	// Connections to the origin that may be needed at once.
	Connections int `json:"connections"`
}

type cellSetup struct {
	Scenario  string `json:"scenario"`
	Mode      string `json:"mode"`
	LeaseUS   int64  `json:"lease_us"`
	TTLUS     int64  `json:"ttl_us"`
	TimeoutUS int64  `json:"timeout_us"`
	// Push: the store tells its clients of changes.
	Push    bool     `json:"push"`
	Policy  policy   `json:"policy"`
	Traffic *traffic `json:"traffic,omitempty"` // of an outage scenario
}

type reply struct {
	ID    int    `json:"id"`
	Err   string `json:"err,omitempty"`
	Calls []Call `json:"calls,omitempty"`
	// Answer and Found, for opStored: the payload as the loader gave it.
	Answer string `json:"answer,omitempty"`
	Found  bool   `json:"found,omitempty"`
	// Yes, for opTake: taken; for opPublish and opDrop: the store let it.
	Yes bool `json:"yes,omitempty"`
	// Rows, for opCompare: what the cache answers for each key, and what the store holds, empty
	// if nothing; Unread is how many the cache did not answer, and Why the last of its errors.
	Rows   []string `json:"rows,omitempty"`
	Stored []string `json:"stored,omitempty"`
	Unread int      `json:"unread,omitempty"`
	Why    string   `json:"why,omitempty"`
	// Recent, for opRecent.
	Recent tally `json:"recent"`
}
