package nbd

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/units"
)

// maxOption limits the data of one option in bytes. A name has at most 4096 bytes.
const maxOption = 32 << 10

var be = binary.BigEndian

// session is the protocol state of one client.
type session struct {
	Disk   disk.Disk
	r      *bufio.Reader
	w      io.Writer
	failed func(err error) // called for a failed read of the disk

	fixed      bool // the client supports replies to options
	noZeroes   bool
	structured bool
	status     bool // base:allocation is selected
	known      disk.Extent
	buf        []byte // the header of a reply, and its data
}

// newSession returns the session of a client before the handshake.
func newSession(d disk.Disk, c io.ReadWriter, failed func(error)) *session {
	return &session{Disk: d, r: bufio.NewReader(c), w: c, failed: failed}
}

// errEnd ends a session at the client's request.
var errEnd = errors.New("the client ends the session")

// violation returns the error for a protocol violation, which ends the connection.
func violation(format string, args ...any) error { return fmt.Errorf("protocol: "+format, args...) }

// handshake negotiates until the client enters the transmission phase.
func (s *session) handshake() error {
	hello := be.AppendUint64(nil, magicServer)
	hello = be.AppendUint64(hello, magicOption)
	hello = be.AppendUint16(hello, flagFixedNewstyle|flagNoZeroes)
	if _, err := s.w.Write(hello); err != nil {
		return err
	}
	var flags uint32
	if err := binary.Read(s.r, be, &flags); err != nil {
		return err
	}
	if flags&^(flagFixedNewstyle|flagNoZeroes) != 0 {
		return violation("client flags %#x", flags)
	}
	s.fixed, s.noZeroes = flags&flagFixedNewstyle != 0, flags&flagNoZeroes != 0
	for {
		entered, err := s.option()
		if err != nil || entered {
			return err
		}
	}
}

// option reads and answers one option. It reports whether the transmission phase begins.
func (s *session) option() (entered bool, err error) {
	var head struct {
		Magic    uint64
		Option   uint32
		DataSize uint32
	}
	if err := binary.Read(s.r, be, &head); err != nil {
		return false, err
	}
	switch {
	case head.Magic != magicOption:
		return false, violation("option magic %#x, want %#x", head.Magic, uint64(magicOption))
	case head.DataSize > maxOption:
		return false, violation("option %d of %d bytes, want %d at most", head.Option, head.DataSize, maxOption)
	case !s.fixed && head.Option != optExportName:
		return false, violation("option %d of a client without fixed newstyle", head.Option)
	}
	data := make([]byte, head.DataSize)
	if _, err := io.ReadFull(s.r, data); err != nil {
		return false, err
	}
	switch head.Option {
	case optExportName:
		return true, s.exportName(string(data))
	case optAbort:
		return false, errors.Join(s.answer(optAbort, repAck, nil), errEnd)
	case optInfo, optGo:
		return s.info(head.Option, data)
	case optList:
		return false, s.list(data)
	case optStructuredReply:
		if len(data) != 0 {
			return false, s.refuse(head.Option, repInvalid, "this option has no data")
		}
		s.structured = true
		return false, s.answer(head.Option, repAck, nil)
	case optListMetaContext, optSetMetaContext:
		return false, s.metaContext(head.Option, data)
	}
	return false, s.refuse(head.Option, repUnsupported, "this option is not supported")
}

// answer sends one reply to an option.
func (s *session) answer(option, kind uint32, data []byte) error {
	b := be.AppendUint64(nil, magicAnswer)
	b = be.AppendUint32(b, option)
	b = be.AppendUint32(b, kind)
	b = be.AppendUint32(b, uint32(len(data))) //nolint:gosec // of a few names
	_, err := s.w.Write(append(b, data...))
	return err
}

func (s *session) refuse(option, kind uint32, text string) error {
	return s.answer(option, kind, []byte(text))
}

// flags returns the transmission flags.
func (s *session) flags() uint16 {
	const always = flagHasFlags | flagReadOnly | flagMultiConn
	if s.structured {
		return always | flagSendDF
	}
	return always
}

// exportName starts the transmission phase. The option has no reply to reject a name.
func (s *session) exportName(name string) error {
	if name != "" {
		return violation("export %.64q, which is not served", name)
	}
	b := be.AppendUint64(nil, uint64(s.Disk.Size())) //nolint:gosec // never negative
	b = be.AppendUint16(b, s.flags())
	if !s.noZeroes {
		const reserved = 124
		b = append(b, make([]byte, reserved)...)
	}
	_, err := s.w.Write(b)
	return err
}

// info answers NBD_OPT_INFO and NBD_OPT_GO; the second starts the transmission phase.
func (s *session) info(option uint32, data []byte) (entered bool, err error) {
	name, rest, ok := text(data)
	if !ok || len(rest) < 2 || len(rest)-2 != 2*int(be.Uint16(rest)) {
		return false, s.refuse(option, repInvalid, "the lengths in this option do not add up")
	}
	if name != "" {
		return false, s.refuse(option, repUnknown, "there is no such export")
	}
	b := be.AppendUint64(be.AppendUint16(nil, infoExport), uint64(s.Disk.Size())) //nolint:gosec // never negative
	err = s.answer(option, repInfo, be.AppendUint16(b, s.flags()))
	for asked := rest[2:]; len(asked) > 0 && err == nil; asked = asked[2:] {
		if be.Uint16(asked) == infoBlockSize { // only the size and the flags are mandatory
			b := be.AppendUint16(nil, infoBlockSize)
			for _, size := range []uint32{s.blockMin(), blockPreferred, blockMax} {
				b = be.AppendUint32(b, size)
			}
			err = s.answer(option, repInfo, b)
		}
	}
	if err == nil {
		err = s.answer(option, repAck, nil)
	}
	return option == optGo, err
}

// blockMin returns the minimum block size: the sector size of the disk, if it is larger than usual. Shorter requests
// still get a reply. Spec: "Block size constraints".
func (s *session) blockMin() uint32 {
	if n := s.Disk.SectorSize(); n > units.SectorSize {
		return uint32(n) //nolint:gosec // 4096 at most
	}
	return 1
}

// list sends the name of the export, which is empty.
func (s *session) list(data []byte) error {
	if len(data) != 0 {
		return s.refuse(optList, repInvalid, "this option has no data")
	}
	if err := s.answer(optList, repServer, make([]byte, 4)); err != nil {
		return err
	}
	return s.answer(optList, repAck, nil)
}

// metaContext lists or selects base:allocation.
func (s *session) metaContext(option uint32, data []byte) error {
	selects := option == optSetMetaContext
	if selects {
		s.status = false // a later option replaces the selection, even if it fails
	}
	if !s.structured {
		return s.refuse(option, repInvalid, "structured replies come first")
	}
	name, rest, ok := text(data)
	if !ok || len(rest) < 4 {
		return s.refuse(option, repInvalid, "the lengths in this option do not add up")
	}
	if name != "" {
		return s.refuse(option, repUnknown, "there is no such export")
	}
	queries, ok := texts(be.Uint32(rest), rest[4:])
	if !ok {
		return s.refuse(option, repInvalid, "the lengths in this option do not add up")
	}
	found, id := slices.Contains(queries, allocation), uint32(allocationID)
	if selects {
		s.status = found
	} else { // a list; without a query, of all
		found = found || len(queries) == 0 || slices.Contains(queries, "base:")
		id = 0 // reserved
	}
	if found {
		if err := s.answer(option, repMetaContext, append(be.AppendUint32(nil, id), allocation...)); err != nil {
			return err
		}
	}
	return s.answer(option, repAck, nil)
}

// texts returns count length-prefixed strings, which must be all of the data.
func texts(count uint32, data []byte) (list []string, ok bool) {
	for range count {
		var s string
		if s, data, ok = text(data); !ok {
			return nil, false
		}
		list = append(list, s)
	}
	return list, len(data) == 0
}

// text splits a length-prefixed string off the data of an option.
func text(data []byte) (s string, rest []byte, ok bool) {
	if len(data) < 4 {
		return "", nil, false
	}
	n := be.Uint32(data)
	if n > math.MaxInt32 || int(n) > len(data)-4 {
		return "", nil, false
	}
	return string(data[4 : 4+n]), data[4+n:], true
}

// Numbers of the protocol, all big-endian. Spec: NetworkBlockDevice/nbd, doc/proto.md.

// Magic numbers, from "Newstyle negotiation", "Fixed newstyle negotiation" and "Transmission".
const (
	magicServer     = 0x4e42444d41474943 // "NBDMAGIC"
	magicOption     = 0x49484156454f5054 // "IHAVEOPT"
	magicAnswer     = 0x3e889045565a9
	magicRequest    = 0x25609513
	magicSimple     = 0x67446698
	magicStructured = 0x668e33ef
	magicOldstyle   = 0x00420281861253 // of servers without negotiation
)

// Flags of the handshake and of the transmission.
const (
	flagFixedNewstyle = 1 << 0
	flagNoZeroes      = 1 << 1

	flagHasFlags  = 1 << 0
	flagReadOnly  = 1 << 1
	flagSendDF    = 1 << 7
	flagMultiConn = 1 << 8
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
	repFails       = 1 << 31 // set in the types below
	repTLSRequired = 1<<31 + 5
	repUnknown     = 1<<31 + 6

	infoExport    = 0
	infoBlockSize = 3
)

// Commands and their flags.
const (
	cmdRead        = 0
	cmdWrite       = 1
	cmdDisconnect  = 2
	cmdFlush       = 3
	cmdTrim        = 4
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
	replyFails       = 1 << 15 // set in the types below
	replyError       = 1<<15 + 1

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

// Block sizes of "Block size constraints". Any byte is readable; requests larger than blockMax are rejected.
const (
	blockPreferred = 64 << 10
	blockMax       = 32 << 20
)

// allocation is the metadata context of holes, and allocationID the number of its selection.
const (
	allocation   = "base:allocation"
	allocationID = 1
)
