package hive

import "github.com/trueup/trueup/internal/ondisk"

// Open opens one hive as its file has it, without logs.
func Open(src ondisk.Source) (*Hive, error) {
	r, err := NewBudget().Recover(src)
	if err != nil {
		return nil, err
	}
	w := walker{Recovery: r}
	w.begin()
	return r.hive(w.state), nil
}

// certain returns whether it is known what Windows makes of a hive and the logs beside it.
func certain(src ondisk.Source, logs ...Log) error {
	r, err := NewBudget().Recover(src, logs...)
	if err != nil {
		return err
	}
	return r.Certain()
}
