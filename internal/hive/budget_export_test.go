package hive

import "github.com/trueup/trueup/internal/ondisk"

// Open opens one hive alone.
func Open(src ondisk.Source) (*Hive, error) { return NewBudget().Open(src) }
