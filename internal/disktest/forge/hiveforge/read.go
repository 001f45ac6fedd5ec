package hiveforge

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/trueup/trueup/internal/disktest/forge"
)

// This file recovers a hive in memory and reads its values, directly from the specification. Spec:
// https://github.com/msuhanov/regf, "Windows registry file format specification".

func word(b []byte, at int) int {
	if at < 0 || at+4 > len(b) {
		panic("outside of the file")
	}
	return int(binary.LittleEndian.Uint32(b[at:]))
}

func half(b []byte, at int) int {
	if at < 0 || at+2 > len(b) {
		panic("outside of the file")
	}
	return int(binary.LittleEndian.Uint16(b[at:]))
}

// wholeBase reports whether a base block is whole.
func wholeBase(b []byte) bool {
	if len(b) < 512 || string(b[:4]) != "regf" {
		return false
	}
	sealed := forge.Bytes(bytes.Clone(b[:512]))
	Seal(sealed)
	return bytes.Equal(sealed, b[:512])
}

// Entry is an entry of a log of Windows 8.1 and later.
type Entry struct {
	At, Size int // in the log
	bins     int
	pages    [][3]int // offset in the hive bins, offset in the log, bytes
}

// Entries returns the entries of such a log up to the first that is torn.
func Entries(log []byte) (out []Entry) {
	number := uint32(word(log, 4))
	for at := 512; at+40 <= len(log); number++ {
		e := Entry{At: at, Size: word(log, at+4), bins: word(log, at+16)}
		n := word(log, at+20)
		if string(log[at:at+4]) != "HvLE" || uint32(word(log, at+12)) != number || e.Size%512 != 0 || e.Size < 512 ||
			at+e.Size > len(log) || e.bins%4096 != 0 || e.bins == 0 || n == 0 || 40+8*n > e.Size {
			return out
		}
		raw := log[at : at+e.Size]
		sealed := forge.Bytes(bytes.Clone(raw))
		if SealEntry(sealed); !bytes.Equal(sealed, raw) {
			return out
		}
		from := at + 40 + 8*n
		for i := range n {
			ref := [3]int{word(raw, 40+8*i), from, word(raw, 44+8*i)}
			e.pages, from = append(e.pages, ref), from+ref[2]
		}
		out = append(out, e)
		at += e.Size
	}
	return out
}

// Recover returns a dirty hive as Windows reads it, and the number of applied entries. It supports hives with a
// valid base block. Of two old logs it uses the first.
func Recover(hive []byte, logs ...[]byte) (out []byte, applied int) {
	out = append(out, hive[:min(len(hive), 4096+word(hive, 40))]...)
	apply := func(log []byte, e Entry) {
		for len(out) < 4096+e.bins {
			out = append(out, 0)
		}
		out = out[:4096+e.bins]
		for _, p := range e.pages {
			copy(out[4096+p[0]:4096+p[0]+p[2]], log[p[1]:p[1]+p[2]])
		}
		applied++
	}
	var fresh [][]byte
	for _, log := range logs {
		if !wholeBase(log) || word(log, 4) != word(log, 8) {
			continue
		}
		if kind := word(log, 28); kind != 6 {
			old := Entry{bins: word(log, 40)} // the whole content of an old log
			from := (516 + old.bins/4096 + 511) / 512 * 512
			if len(log) < 516+old.bins/4096 || string(log[512:516]) != "DIRT" {
				continue
			}
			for page := range old.bins / 512 {
				if log[516+page/8]>>(page%8)&1 == 1 {
					old.pages, from = append(old.pages, [3]int{page * 512, from, 512}), from+512
				}
			}
			if applied == 0 && from <= len(log) && // not cut off
				binary.LittleEndian.Uint64(log[12:]) == binary.LittleEndian.Uint64(hive[12:]) {
				apply(log, old)
			}
		} else if int32(uint32(word(log, 4))-uint32(word(hive, 8))) >= 0 {
			fresh = append(fresh, log)
		}
	}
	if len(fresh) == 2 && int32(uint32(word(fresh[1], 4))-uint32(word(fresh[0], 4))) < 0 {
		fresh[0], fresh[1] = fresh[1], fresh[0]
	}
	for i, log := range fresh {
		if i > 0 && (applied == 0 || uint32(word(log, 4)) != uint32(word(fresh[0], 4))+uint32(applied)) {
			break
		}
		for _, e := range Entries(log) {
			apply(log, e)
		}
	}
	return out, applied
}

// Values returns all values of a hive by their path, with their kind; err where it cannot be read.
func Values(hive []byte) (out map[string]string, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	out = map[string]string{}
	for at := 4096; at < len(hive); at += word(hive, at+8) {
		if string(hive[at:at+4]) != "hbin" || word(hive, at+4) != at-4096 || word(hive, at+8) == 0 {
			panic("no bin")
		}
	}
	cell := func(off int) int { // place of its data
		if size := -int(int32(uint32(word(hive, 4096+off)))); size <= 0 || 4096+off+size > len(hive) {
			panic("not a cell in use")
		}
		return 4096 + off + 4
	}
	type node struct {
		off  int
		path string
	}
	for todo := []node{{word(hive, 36), ""}}; len(todo) > 0; todo = todo[1:] {
		nk, path := cell(todo[0].off), todo[0].path
		if string(hive[nk:nk+2]) != "nk" || len(todo) > 100_000 {
			panic("no key")
		}
		if n := word(hive, nk+36); n > 0 {
			list := cell(word(hive, nk+40))
			for i := range n {
				name, data := value(hive, cell, cell(word(hive, list+4*i)))
				if _, twice := out[path+"\x00"+name]; twice {
					panic("two values of one name")
				}
				out[path+"\x00"+name] = data
			}
		}
		lists := []int{}
		if word(hive, nk+20) > 0 {
			lists = append(lists, word(hive, nk+28))
		}
		for ; len(lists) > 0; lists = lists[1:] {
			at := cell(lists[0])
			for i := range half(hive, at+2) {
				switch kind := string(hive[at : at+2]); kind {
				case "ri":
					lists = append(lists, word(hive, at+4+4*i))
				case "li", "lf", "lh":
					step := map[string]int{"li": 4, "lf": 8, "lh": 8}[kind]
					key := word(hive, at+4+step*i)
					k := cell(key)
					todo = append(todo, node{key, path + "\\" + string(hive[k+76:k+76+half(hive, k+72)])})
				default:
					panic("no list")
				}
			}
		}
	}
	return out, nil
}

// value returns name and bytes of the value at an offset.
func value(hive []byte, cell func(int) int, vk int) (name, data string) {
	if string(hive[vk:vk+2]) != "vk" {
		panic("no value")
	}
	name = string(hive[vk+20 : vk+20+half(hive, vk+2)])
	kind := fmt.Sprintf("%d:", word(hive, vk+12))
	size := word(hive, vk+4)
	if size>>31 == 1 {
		return name, kind + string(hive[vk+8:vk+8+size&0x7fffffff])
	}
	if size == 0 {
		return name, kind
	}
	at := cell(word(hive, vk+8))
	if size <= 16344 || word(hive, 24) < 4 {
		return name, kind + string(hive[at:at+size])
	}
	if string(hive[at:at+2]) != "db" {
		panic("no segments")
	}
	list := cell(word(hive, at+4))
	for i := range half(hive, at+2) {
		part := cell(word(hive, list+4*i))
		n := min(16344, size-len(data))
		data += string(hive[part : part+n])
	}
	return name, kind + data
}
