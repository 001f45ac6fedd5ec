package fleetcmd

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/fleet"
	"github.com/trueup/trueup/fleet/queue"
	"github.com/trueup/trueup/internal/ondisk"
)

// status is the result of the command status.
type status struct {
	Datastores map[string]map[fleet.State]int `json:"datastores"`
	Drained    []string                       `json:"drained"`
	Running    []*fleet.Record                `json:"running"`
	Jobs       []*fleet.Record                `json:"jobs,omitempty"` // in the requested state
}

func newStatus(b *base) *cobra.Command {
	datastore, state := "", ""
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the number of jobs by state, and the progress of running jobs",
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			states := make([]string, 0, len(fleet.States))
			for _, s := range fleet.States {
				states = append(states, string(s))
			}
			if state != "" && !slices.Contains(states, state) {
				return ondisk.NoChoice("--state", state, states...)
			}
			return b.with(cmd.Context(), func(q *queue.Queue) error {
				s, err := readStatus(cmd.Context(), q, datastore, fleet.State(state))
				if err != nil {
					return err
				}
				return b.print(cmd.OutOrStdout(), s, s.show)
			})
		},
	}
	cmd.Flags().StringVar(&datastore, "datastore", "", "only jobs of datastore `NAME`")
	cmd.Flags().StringVar(&state, "state", "", "also list the jobs in `STATE`, such as refused")
	return cmd
}

// readStatus counts all jobs. It keeps the running ones and those in state listed.
func readStatus(ctx context.Context, q *queue.Queue, datastore string, listed fleet.State) (*status, error) {
	s := &status{Datastores: map[string]map[fleet.State]int{}, Drained: []string{}, Running: []*fleet.Record{}}
	err := q.Each(ctx, datastore, func(r *fleet.Record) {
		if s.Datastores[r.Datastore] == nil {
			s.Datastores[r.Datastore] = map[fleet.State]int{}
		}
		s.Datastores[r.Datastore][r.State]++
		if r.State == fleet.Running {
			s.Running = append(s.Running, r)
		}
		if r.State == listed && listed != fleet.Running {
			s.Jobs = append(s.Jobs, r)
		}
	})
	for _, list := range [][]*fleet.Record{s.Running, s.Jobs} {
		slices.SortFunc(list, func(a, b *fleet.Record) int {
			return cmp.Or(cmp.Compare(a.Datastore, b.Datastore), cmp.Compare(a.Path, b.Path))
		})
	}
	for _, name := range slices.Sorted(maps.Keys(s.Datastores)) {
		var off bool
		if err == nil {
			off, err = q.Drained(ctx, name)
		}
		if off {
			s.Drained = append(s.Drained, name)
		}
	}
	return s, err
}

func (s *status) show(w io.Writer) {
	if len(s.Datastores) == 0 {
		fmt.Fprintln(w, "There are no jobs.")
		return
	}
	fmt.Fprintf(w, "%-24s", "datastore")
	for _, state := range fleet.States {
		fmt.Fprintf(w, " %9s", state)
	}
	fmt.Fprintln(w)
	for _, name := range slices.Sorted(maps.Keys(s.Datastores)) {
		fmt.Fprintf(w, "%-24s", name)
		for _, state := range fleet.States {
			fmt.Fprintf(w, " %9d", s.Datastores[name][state])
		}
		if slices.Contains(s.Drained, name) {
			fmt.Fprint(w, "  drained")
		}
		fmt.Fprintln(w)
	}
	for _, r := range slices.Concat(s.Running, s.Jobs) {
		fmt.Fprintln(w, line(r))
	}
}

// line formats a job as one line.
func line(r *fleet.Record) string {
	text := fmt.Sprintf("%s  %s %s: %s", r.Key(), r.Kind, fleet.Plain(r.Path), r.State)
	if r.State == fleet.Running {
		if r.Phase != "" || r.Found > 0 {
			text += fmt.Sprintf(", %s %d %%", fleet.Plain(cmp.Or(r.Phase, "scan")), r.Percent())
		}
		if r.Seconds != nil {
			text += fmt.Sprintf(", %v left", time.Duration(*r.Seconds)*time.Second)
		}
		text += " on " + fleet.Plain(r.Worker)
	}
	if r.Message != "" {
		text += ": " + fleet.Plain(r.Message)
	}
	return text
}

func newWatch(b *base) *cobra.Command {
	datastore := ""
	cmd := &cobra.Command{
		Use: "watch", Short: "Show all jobs, and each change, until interrupted", Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return b.with(cmd.Context(), func(q *queue.Queue) error {
				err := q.Watch(cmd.Context(), datastore, func(r *fleet.Record) {
					_ = b.print(cmd.OutOrStdout(), r, func(w io.Writer) { fmt.Fprintln(w, line(r)) })
				})
				if errors.Is(err, context.Canceled) {
					err = nil
				}
				return err
			})
		},
	}
	cmd.Flags().StringVar(&datastore, "datastore", "", "only jobs of datastore `NAME`")
	return cmd
}

// newChange returns a command that changes the jobs with the given keys.
func newChange(
	b *base, name, short, long string, change func(q *queue.Queue) func(context.Context, string) (*fleet.Record, error),
) *cobra.Command {
	return &cobra.Command{
		Use: name + " JOB...", Short: short, Long: long,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage("%s takes a JOB, none given; trueup-fleet status --state queued lists jobs", name)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return b.with(cmd.Context(), func(q *queue.Queue) error {
				for _, key := range args {
					r, err := change(q)(cmd.Context(), key)
					if err != nil {
						return err
					}
					err = b.print(cmd.OutOrStdout(), r, func(w io.Writer) { fmt.Fprintln(w, line(r)) })
					if err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
}

func newCancel(b *base) *cobra.Command {
	return newChange(b, "cancel", "Cancel jobs",
		`Cancels waiting and running jobs. The worker ends the run at its next checkpoint, and removes the partial copy.
A job whose copy only lacks its final name cannot be cancelled.`,
		func(q *queue.Queue) func(context.Context, string) (*fleet.Record, error) { return q.Cancel })
}

func newRetry(b *base) *cobra.Command {
	force := false
	cmd := newChange(b, "retry", "Queue unsuccessful jobs again",
		`Queues dead, refused or cancelled jobs again. A verified copy is used; any other is written again. With
--force, also queues finished jobs again, whose copies must have been removed or renamed.`,
		func(q *queue.Queue) func(context.Context, string) (*fleet.Record, error) {
			return func(ctx context.Context, key string) (*fleet.Record, error) { return q.Retry(ctx, key, force) }
		})
	cmd.Flags().BoolVar(&force, "force", false, "also queue finished jobs again")
	return cmd
}

func newDrain(b *base) *cobra.Command {
	datastore, off := "", false
	cmd := &cobra.Command{
		Use:   "drain",
		Short: "Stop workers from taking more jobs; running jobs continue",
		Long: `Stops workers from taking jobs of one datastore, or of all, until drain --off, and shows what is drained.
drain --off without --datastore does not affect datastores that were drained by name. A worker that is waiting for a
job at this moment can take one more.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if datastore != "" {
				if err := fleet.CheckName(datastore); err != nil {
					return usage("--datastore: %w", err)
				}
			}
			return b.with(cmd.Context(), func(q *queue.Queue) error {
				if err := q.Drain(cmd.Context(), datastore, !off); err != nil {
					return err
				}
				all, names, err := q.Drains(cmd.Context())
				if err != nil {
					return err
				}
				d := drains{all, append([]string{}, names...)}
				return b.print(cmd.OutOrStdout(), d, d.show)
			})
		},
	}
	cmd.Flags().StringVar(&datastore, "datastore", "", "only of datastore `NAME`")
	cmd.Flags().BoolVar(&off, "off", false, "let workers take jobs again")
	return cmd
}

// drains is the result of the command drain.
type drains struct {
	All        bool     `json:"all"`
	Datastores []string `json:"datastores"` // drained by name
}

// show prints a line for each drain in force, with the command that ends it.
func (d drains) show(w io.Writer) {
	if !d.All && len(d.Datastores) == 0 {
		fmt.Fprintln(w, "Workers take jobs of all datastores.")
	}
	if d.All {
		fmt.Fprintln(w, "Workers take no jobs of any datastore. To undo: trueup-fleet drain --off")
	}
	for _, name := range d.Datastores {
		fmt.Fprintf(w, "Workers take no jobs of datastore %s. To undo: trueup-fleet drain --off --datastore %s\n",
			name, name)
	}
}

func newDead(b *base) *cobra.Command {
	return &cobra.Command{
		Use:   "dead",
		Short: "Show the jobs whose tries all failed, and why",
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return b.with(cmd.Context(), func(q *queue.Queue) error {
				s, err := readStatus(cmd.Context(), q, "", fleet.Dead)
				if err != nil {
					return err
				}
				for _, r := range s.Jobs {
					if err := b.print(cmd.OutOrStdout(), r, func(w io.Writer) { showDead(w, r) }); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
}

// showDead prints a dead job with its log and progress.
func showDead(w io.Writer, r *fleet.Record) {
	fmt.Fprintf(w, "%s\n  after %d deliveries, last by %s at %s, code %s\n", line(r), r.Delivery, fleet.Plain(r.Worker),
		r.Updated.Format(time.RFC3339), fleet.Plain(r.Code))
	for l := range linesOf(r.Log) {
		fmt.Fprintf(w, "  | %s\n", fleet.Plain(l))
	}
	if r.Phase != "" {
		b, _ := json.Marshal(r.Progress)
		fmt.Fprintf(w, "  progress: %s\n", b)
	}
}
