package journal

// Phase is how far a run has come: the first byte of the last record of its journal.
type Phase byte

// Phases. A journal without a record is of a run that has begun.
const (
	Begun     Phase = 0
	Kept      Phase = 'k' // done; the journal stays for an undo
	Undoing   Phase = 'u'
	Finishing Phase = 'f'
)

// Kind is one kind of work that a run can leave open on disk.
type Kind struct {
	Name   string // in the journal
	States map[Phase]State
}

// State is what a phase means for the disk, and for the commands.
type State struct {
	Text   string // what stands on disk
	Blocks bool   // the disk is in the middle of it: nothing else may read or write it
	// Why a command does not apply, and what to do instead; empty: it applies.
	Undo, Resume, Finish string
	Undoes               string // what undo does; empty: it brings the original back
	Drops                bool   // undo --force removes the journal of a disk that is not in the middle of it any more
}

// Exchange is the name of the kind that gives an aligned copy the names of its source.
const Exchange = "exchange"

// InPlace is the name of the kind that moves partitions inside of a disk.
const InPlace = "in-place"

// Kinds lists all kinds, one row for each.
var Kinds = []Kind{{
	Name: Exchange,
	States: map[Phase]State{
		Begun: {
			Text:   "an exchange of the disk for its aligned copy was interrupted",
			Blocks: true,
			Finish: "the exchange is not complete; resume it first",
		},
		Kept: {
			Text:   "the disk was exchanged for its aligned copy, and the original is kept beside it",
			Resume: "the exchange is complete; undo brings the original back, finish removes it",
		},
		Undoing: {
			Text:   "an undo of the exchange of the disk was interrupted",
			Blocks: true,
			Resume: "the original is about to come back; give the undo again",
			Finish: "the original is about to come back; give the undo again",
		},
		Finishing: {
			Text:   "the removal of the kept original was interrupted",
			Undo:   "files of the original are removed already; finish removes the others",
			Resume: "the exchange is complete; finish removes what is left of the original",
		},
	},
}, {
	Name:   InPlace,
	States: inPlace,
}}

// inPlace lists the states of a move in place: 'm' is the move itself, 'c' follows the commit, after which there is no
// undo, and 'd' follows the first sector.
var inPlace = map[Phase]State{
	Begun:   inMove,
	'm':     inMove,
	Undoing: inMove,
	'c': {
		Text:   "a move of the partitions inside of the disk was interrupted while the tables were written",
		Blocks: true,
		Undo:   "everything is at its new place already; resume completes it",
		Finish: "the move is not complete; resume it first",
		Drops:  true,
	},
	'd': {
		Text:   "the partitions were moved inside of the disk, and the end of that was interrupted",
		Blocks: true,
		Undo:   "everything is at its new place already; resume completes it",
		Finish: "resume completes it",
		Drops:  true,
	},
}

// inMove is the state in the middle of a move in place.
var inMove = State{
	Text:   "a move of the partitions inside of the disk was interrupted",
	Blocks: true,
	Finish: "the move is not complete; resume it first",
	Undoes: "takes the move back",
	Drops:  true,
}

// States that no kind lists.
var (
	notBegun = State{
		Text:   "a run was ended before it changed anything",
		Resume: "nothing was begun; undo removes the journal",
		Finish: "nothing was begun; undo removes the journal",
		Undoes: "removes the journal",
	}
	atWork = State{
		Text: "another run of trueup is at work on it", Blocks: true,
		Undo: "wait for it", Resume: "wait for it", Finish: "wait for it",
	}
	unknown = State{
		Text: "another version of trueup has left work open on it", Blocks: true,
		Undo: "use that version", Resume: "use that version", Finish: "use that version",
	}
)

// stateOf returns the state that a kind and a record stand for.
func stateOf(kind string, record []byte) (Phase, State) {
	phase := Begun
	if len(record) > 0 {
		phase = Phase(record[0])
	}
	for _, k := range Kinds {
		if k.Name == kind {
			if s, ok := k.States[phase]; ok {
				return phase, s
			}
		}
	}
	return phase, unknown
}
