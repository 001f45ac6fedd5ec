package main

import (
	"github.com/trueup/trueup/internal/cli"
)

// pages writes the manual pages and completions of programs below a prefix.
func (r *release) pages(prefix string, of ...product) error {
	for _, p := range of {
		pages := cli.Pages{
			Root: p.commands(r.version), Exits: p.exits, Needs: p.needs, Version: r.number(), Date: r.time,
		}
		if err := pages.Write(prefix); err != nil {
			return err
		}
	}
	return nil
}
