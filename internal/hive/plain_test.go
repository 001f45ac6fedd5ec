package hive

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// What follows shares no code with the package: a recovery in memory and a reader of values, as plain as the
// specification. Spec: https://github.com/msuhanov/regf, "Windows registry file format specification".

func plain32(b []byte, at int) int {
	if at < 0 || at+4 > len(b) {
		panic("outside of the file")
	}
	return int(binary.LittleEndian.Uint32(b[at:]))
}

func plain16(b []byte, at int) int {
	if at < 0 || at+2 > len(b) {
		panic("outside of the file")
	}
	return int(binary.LittleEndian.Uint16(b[at:]))
}

// plainBase reports whether a base block is whole.
func plainBase(b []byte) bool {
	if len(b) < 512 || string(b[:4]) != "regf" {
		return false
	}
	sum := uint32(0)
	for at := 0; at < 508; at += 4 {
		sum ^= binary.LittleEndian.Uint32(b[at:])
	}
	switch sum {
	case 0:
		sum = 1
	case 0xffffffff:
		sum = 0xfffffffe
	}
	return sum == binary.LittleEndian.Uint32(b[508:])
}

// plainEntry is an entry of a new log.
type plainEntry struct {
	at, size, bins int
	pages          [][3]int // place in the hive bins, in the log, bytes
}

func plainMarvin(b []byte) uint64 {
	lo, hi := uint32(0x7a4e55c5), uint32(0x82ef4d88)
	mix := func(v uint32) {
		lo += v
		hi ^= lo
		lo = bits.RotateLeft32(lo, 20) + hi
		hi = bits.RotateLeft32(hi, 9) ^ lo
		lo = bits.RotateLeft32(lo, 27) + hi
		hi = bits.RotateLeft32(hi, 19)
	}
	for ; len(b) >= 4; b = b[4:] {
		mix(binary.LittleEndian.Uint32(b))
	}
	mix(0x80)
	mix(0)
	return uint64(hi)<<32 | uint64(lo)
}

// plainEntries returns the entries of a new log up to the first that is torn.
func plainEntries(log []byte) (out []plainEntry) {
	number := uint32(plain32(log, 4))
	for at := 512; at+40 <= len(log); number++ {
		e := plainEntry{at: at, size: plain32(log, at+4), bins: plain32(log, at+16)}
		n := plain32(log, at+20)
		if string(log[at:at+4]) != "HvLE" || uint32(plain32(log, at+12)) != number || e.size%512 != 0 || e.size < 512 ||
			at+e.size > len(log) || e.bins%4096 != 0 || e.bins == 0 || n == 0 || 40+8*n > e.size {
			return out
		}
		raw := log[at : at+e.size]
		if plainMarvin(raw[40:]) != binary.LittleEndian.Uint64(raw[24:]) ||
			plainMarvin(raw[:32]) != binary.LittleEndian.Uint64(raw[32:]) {
			return out
		}
		from := at + 40 + 8*n
		for i := range n {
			ref := [3]int{plain32(raw, 40+8*i), from, plain32(raw, 44+8*i)}
			e.pages, from = append(e.pages, ref), from+ref[2]
		}
		out = append(out, e)
		at += e.size
	}
	return out
}

// plainRecover gives a dirty hive as Windows reads it, and how many entries it applies. It knows hives whose base block
// is whole. Of two old logs it takes the first.
func plainRecover(hive []byte, logs ...[]byte) (out []byte, applied int) {
	out = append(out, hive[:min(len(hive), 4096+plain32(hive, 40))]...)
	apply := func(log []byte, e plainEntry) {
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
		if !plainBase(log) || plain32(log, 4) != plain32(log, 8) {
			continue
		}
		if kind := plain32(log, 28); kind != 6 {
			old := plainEntry{bins: plain32(log, 40)} // all that an old log holds
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
		} else if int32(uint32(plain32(log, 4))-uint32(plain32(hive, 8))) >= 0 {
			fresh = append(fresh, log)
		}
	}
	if len(fresh) == 2 && int32(uint32(plain32(fresh[1], 4))-uint32(plain32(fresh[0], 4))) < 0 {
		fresh[0], fresh[1] = fresh[1], fresh[0]
	}
	for i, log := range fresh {
		if i > 0 && (applied == 0 || uint32(plain32(log, 4)) != uint32(plain32(fresh[0], 4))+uint32(applied)) {
			break
		}
		for _, e := range plainEntries(log) {
			apply(log, e)
		}
	}
	return out, applied
}

// plainValues returns all values of a hive by their path, with their kind; err where it cannot be read.
func plainValues(hive []byte) (out map[string]string, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	out = map[string]string{}
	for at := 4096; at < len(hive); at += plain32(hive, at+8) {
		if string(hive[at:at+4]) != "hbin" || plain32(hive, at+4) != at-4096 || plain32(hive, at+8) == 0 {
			panic("no bin")
		}
	}
	cell := func(off int) int { // place of its data
		if size := -int(int32(uint32(plain32(hive, 4096+off)))); size <= 0 || 4096+off+size > len(hive) {
			panic("not a cell in use")
		}
		return 4096 + off + 4
	}
	type node struct {
		off  int
		path string
	}
	for todo := []node{{plain32(hive, 36), ""}}; len(todo) > 0; todo = todo[1:] {
		nk, path := cell(todo[0].off), todo[0].path
		if string(hive[nk:nk+2]) != "nk" || len(todo) > 100_000 {
			panic("no key")
		}
		if n := plain32(hive, nk+36); n > 0 {
			list := cell(plain32(hive, nk+40))
			for i := range n {
				name, data := plainValue(hive, cell, cell(plain32(hive, list+4*i)))
				if _, twice := out[path+"\x00"+name]; twice {
					panic("two values of one name")
				}
				out[path+"\x00"+name] = data
			}
		}
		lists := []int{}
		if plain32(hive, nk+20) > 0 {
			lists = append(lists, plain32(hive, nk+28))
		}
		for ; len(lists) > 0; lists = lists[1:] {
			at := cell(lists[0])
			for i := range plain16(hive, at+2) {
				switch kind := string(hive[at : at+2]); kind {
				case "ri":
					lists = append(lists, plain32(hive, at+4+4*i))
				case "li", "lf", "lh":
					step := map[string]int{"li": 4, "lf": 8, "lh": 8}[kind]
					key := plain32(hive, at+4+step*i)
					k := cell(key)
					todo = append(todo, node{key, path + "\\" + string(hive[k+76:k+76+plain16(hive, k+72)])})
				default:
					panic("no list")
				}
			}
		}
	}
	return out, nil
}

// plainValue returns name and bytes of the value at a place.
func plainValue(hive []byte, cell func(int) int, vk int) (name, data string) {
	if string(hive[vk:vk+2]) != "vk" {
		panic("no value")
	}
	name = string(hive[vk+20 : vk+20+plain16(hive, vk+2)])
	kind := fmt.Sprintf("%d:", plain32(hive, vk+12))
	size := plain32(hive, vk+4)
	if size>>31 == 1 {
		return name, kind + string(hive[vk+8:vk+8+size&0x7fffffff])
	}
	if size == 0 {
		return name, kind
	}
	at := cell(plain32(hive, vk+8))
	if size <= 16344 || plain32(hive, 24) < 4 {
		return name, kind + string(hive[at:at+size])
	}
	if string(hive[at:at+2]) != "db" {
		panic("no segments")
	}
	list := cell(plain32(hive, at+4))
	for i := range plain16(hive, at+2) {
		part := cell(plain32(hive, list+4*i))
		n := min(16344, size-len(data))
		data += string(hive[part : part+n])
	}
	return name, kind + data
}
