package deadletter

// maxNotes bounds how many letters a report names.
const maxNotes = 1000

// Progress is how far an operation is.
type Progress struct {
	// Done of Total letters are dealt with.
	Done, Total int
	// ID is the last one's message id.
	ID string
}

// Note says why a letter stayed, or came back.
type Note struct {
	ID        string `json:"id"`
	Position  string `json:"position"`
	EventType string `json:"event_type,omitempty"`
	Key       string `json:"key,omitempty"`
	Why       string `json:"why"`
}

// Report is what a replay did.
type Report struct {
	DryRun bool `json:"dry_run"`
	// Matched is how many letters the filter took at the start.
	Matched int `json:"matched"`
	// Replayed letters were published and deleted; in a dry run they would be.
	Replayed int `json:"replayed"`
	// Resumed letters had been published by an earlier replay and were deleted.
	Resumed int `json:"resumed"`
	// Superseded letters were deleted, since an edited one stands in the queue.
	Superseded int `json:"superseded"`
	// Refused letters stay: they were replayed too often.
	Refused int `json:"refused"`
	// Held letters stay behind an earlier one of their key.
	Held int `json:"held"`
	// Failed letters stay: the broker did not take them.
	Failed int `json:"failed"`
	// Undeleted letters were published and still stand in the queue.
	Undeleted int `json:"undeleted"`
	// Unseen letters were counted at the start and not met again: the broker shows
	// a part of the queue at a time, or somebody else took them. Another replay
	// finds those that are still there.
	Unseen int `json:"unseen"`
	// Returned is how many of those whose outcome was waited for were
	// dead-lettered again.
	Returned int `json:"returned"`
	// Settled: the group has settled all that was published, and none of it was
	// dead-lettered again. Only Canary and Wait find that out.
	Settled bool `json:"settled"`
	// Interrupted: the context ended before all was done.
	Interrupted bool `json:"interrupted"`
	// Stopped says why a canary ended the replay, or why Wait does not know the
	// outcome; "" otherwise.
	Stopped string `json:"stopped,omitempty"`
	// Notes are the letters that stayed or came back, the first 1000 of them.
	Notes []Note `json:"notes,omitempty"`
}

// Complete tells whether every letter that the filter took was dealt with, and
// none of those whose outcome was waited for came back.
func (r Report) Complete() bool {
	return r.Refused+r.Held+r.Failed+r.Undeleted+r.Unseen+r.Returned == 0 && !r.Interrupted && r.Stopped == ""
}

func (r *Report) done() int {
	return r.Replayed + r.Resumed + r.Superseded + r.Refused + r.Held + r.Failed
}

func (r *Report) note(l Letter, why string) {
	if len(r.Notes) < maxNotes {
		r.Notes = append(r.Notes, Note{ID: l.ID, Position: l.Position, EventType: l.EventType, Key: l.Key, Why: why})
	}
}
