package nbd

// Numbers of the protocol, all big-endian. Spec: NetworkBlockDevice/nbd, doc/proto.md.

// Magic numbers, from "Newstyle negotiation", "Fixed newstyle negotiation" and "Transmission".
const (
	magicServer     = 0x4e42444d41474943 // "NBDMAGIC"
	magicOption     = 0x49484156454f5054 // "IHAVEOPT"
	magicAnswer     = 0x3e889045565a9
	magicRequest    = 0x25609513
	magicSimple     = 0x67446698
	magicStructured = 0x668e33ef
	magicOldstyle   = 0x00420281861253 // of servers that negotiate nothing
)

// Flags of the handshake and of the transmission.
const (
	flagFixedNewstyle = 1 << 0
	flagNoZeroes      = 1 << 1

	flagHasFlags  = 1 << 0
	flagReadOnly  = 1 << 1
	flagSendDF    = 1 << 7
	flagMultiConn = 1 << 8
	flagSendCache = 1 << 10
)

// Options, and the types of answers to them.
const (
	optExportName      = 1
	optAbort           = 2
	optList            = 3
	optInfo            = 6
	optGo              = 7
	optStructuredReply = 8
	optListMetaContext = 9
	optSetMetaContext  = 10

	repAck         = 1
	repServer      = 2
	repInfo        = 3
	repMetaContext = 4
	repUnsupported = 1<<31 + 1
	repInvalid     = 1<<31 + 3
	repFails       = 1 << 31 // set in those below
	repTLSRequired = 1<<31 + 5
	repUnknown     = 1<<31 + 6

	infoExport      = 0
	infoName        = 1
	infoDescription = 2
	infoBlockSize   = 3
)

// Commands and their flags.
const (
	cmdRead        = 0
	cmdWrite       = 1
	cmdDisconnect  = 2
	cmdFlush       = 3
	cmdTrim        = 4
	cmdCache       = 5
	cmdWriteZeroes = 6
	cmdBlockStatus = 7

	cmdFlagDF     = 1 << 2
	cmdFlagReqOne = 1 << 3
)

// Chunks of structured replies, and the states of base:allocation.
const (
	replyFlagDone = 1 << 0

	replyNone        = 0
	replyData        = 1
	replyHole        = 2
	replyBlockStatus = 5
	replyFails       = 1 << 15 // set in those below
	replyError       = 1<<15 + 1
	replyErrorOffset = 1<<15 + 2

	stateHole = 1 << 0
	stateZero = 1 << 1
)

// Errors of requests.
const (
	errPerm     = 1
	errIO       = 5
	errMemory   = 12
	errInvalid  = 22
	errOverflow = 75
	errNotSup   = 95
	errShutdown = 108
)

// Block sizes of "Block size constraints". Any byte can be read; larger requests than the last are refused.
const (
	blockPreferred = 64 << 10
	blockMax       = 32 << 20
)

// allocation is the metadata context of holes, and the number under which it is selected.
const (
	allocation   = "base:allocation"
	allocationID = 1
)
