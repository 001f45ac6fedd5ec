package vhdx

import (
	"crypto/sha256"

	"github.com/trueup/trueup/internal/ondisk"
)

// identity distinguishes a disk and its file from others.
type identity struct {
	identifier fileIdentifier
	disk       ondisk.GUID // what a guest knows the disk by: that of the source
	fileWrite  ondisk.GUID // both are new whenever the contents are
	dataWrite  ondisk.GUID
}

// newIdentity derives what a copy may not share with its source from that and the job, so that the same job gives the
// same bytes.
func newIdentity(from *template, seed []byte) identity {
	id := identity{identifier: newIdentifier()}
	var source ondisk.GUID
	if from != nil {
		id.identifier, source = from.identifier, from.dataWrite
	}
	derive := func(label string) (g ondisk.GUID) {
		h := sha256.New()
		h.Write([]byte("vhdx " + label))
		h.Write(source[:])
		h.Write(seed)
		copy(g[:], h.Sum(nil))
		g[7] = g[7]&0x0f | 0x40 // RFC 4122: version 4, in the high byte of the third group, and the variant
		g[8] = g[8]&0x3f | 0x80
		return g
	}
	id.disk, id.fileWrite, id.dataWrite = derive("disk"), derive("file write"), derive("data write")
	if from != nil {
		id.disk = from.meta.diskID
	}
	return id
}
