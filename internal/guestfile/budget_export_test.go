package guestfile

import "github.com/trueup/trueup/internal/disk"

// Readers of one file system alone.

func NTFS(volume disk.Disk) (FS, error) { return NewBudget().NTFS(volume) }
func FAT(volume disk.Disk) (FS, error)  { return NewBudget().FAT(volume) }
func Ext(volume disk.Disk) (FS, error)  { return NewBudget().Ext(volume) }
