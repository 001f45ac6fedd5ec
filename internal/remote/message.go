package remote

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/trueup/trueup/internal/ondisk"
)

// Limits of what a hub, its clerks and the readers of files say to each other, in bytes.
const (
	maxAsk     = 256 << 10       // of one read
	maxMessage = maxAsk + 64<<10 // of a message: data, an address, a header or the text of an error
	maxURI     = 64 << 10
)

// Questions about a file, and what follows them.
const (
	asksOpen      = 'o' // the address
	asksRead      = 'r' // offset u64, length u32
	asksUnchanged = 'u'
	saysClose     = 'c' // which has no answer
)

// writeMessage writes a message about the file with a number: number u32, bytes of the body u32, body.
func writeMessage(w io.Writer, number uint32, body []byte) error {
	if len(body) > maxMessage {
		return fmt.Errorf("message of %d bytes: %w of %d", len(body), ondisk.ErrLimit, maxMessage)
	}
	b := binary.BigEndian.AppendUint32(make([]byte, 0, 8+len(body)), number)
	b = binary.BigEndian.AppendUint32(b, uint32(len(body))) //nolint:gosec // see above
	_, err := w.Write(append(b, body...))
	return err
}

// readMessage reads a message, which may come from a process that a server has taken over.
func readMessage(r io.Reader) (number uint32, body []byte, err error) {
	var head struct{ Number, Size uint32 }
	if err := binary.Read(r, binary.BigEndian, &head); err != nil {
		return 0, nil, err
	}
	if head.Size > maxMessage {
		return 0, nil, fmt.Errorf("message of %d bytes: %w of %d", head.Size, ondisk.ErrLimit, maxMessage)
	}
	body = make([]byte, head.Size)
	_, err = io.ReadFull(r, body)
	return head.Number, body, err
}

// readQuestion asks for bytes of a file.
func readQuestion(off int64, n int) []byte {
	b := binary.BigEndian.AppendUint64([]byte{asksRead}, uint64(off)) //nolint:gosec // never negative
	return binary.BigEndian.AppendUint32(b, uint32(n))                //nolint:gosec // maxAsk at most
}

// readOf takes the question for bytes apart. What is asked for lies in a file of that size.
func readOf(question []byte, size int64) (off int64, n int, err error) {
	if len(question) != 13 {
		return 0, 0, fmt.Errorf("a question of %d bytes for bytes, want 13", len(question))
	}
	at, most := binary.BigEndian.Uint64(question[1:]), binary.BigEndian.Uint32(question[9:])
	if at > uint64(size) || most > maxAsk || uint64(most) > uint64(size)-at { //nolint:gosec // never negative
		return 0, 0, fmt.Errorf("a question for %d bytes at %d, want %d at most, below %d", most, at, maxAsk, size)
	}
	return int64(at), int(most), nil //nolint:gosec // below size
}

// answerOf makes an answer of data or an error: 0 and the data, or 1 + the class of the error and its text.
func answerOf(data []byte, err error) []byte {
	if err == nil {
		return append([]byte{0}, data...)
	}
	r := replyOf(err)
	return append([]byte{byte(1 + r.Class)}, r.Error[:min(len(r.Error), maxURI)]...) //nolint:gosec // few classes
}

// dataOf returns what an answer has.
func dataOf(answer []byte) ([]byte, error) {
	switch {
	case len(answer) == 0:
		return nil, errors.New("an empty answer of what asks servers")
	case answer[0] == 0:
		return answer[1:], nil
	}
	return nil, reply{
		Error: cmp.Or(string(answer[1:]), "an error that has no text"), Class: int(answer[0]) - 1,
	}.err()
}
