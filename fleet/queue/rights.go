package queue

import (
	"fmt"
	"slices"

	"github.com/trueup/trueup/fleet"
)

// Rights returns the subjects that a client may publish to, from the words after its key: "reader", or "worker" and its
// datastores. Without words it returns nil, for all subjects. receive is the prefix for replies.
func Rights(key string, words []string) (publish []string, receive string, err error) {
	switch {
	case len(words) == 0:
		return nil, "", nil
	case slices.Equal(words, []string{"reader"}):
		return readable(), inboxOf(key), nil
	case words[0] == "worker" && len(words) > 1:
		publish = readable()
		for _, name := range words[1:] {
			if err := fleet.CheckName(name); err != nil {
				return nil, "", err
			}
			publish = append(publish, workable(name)...)
		}
		return publish, inboxOf(key), nil
	}
	return nil, "", fmt.Errorf("rights %.80q: must be reader, or worker and its datastores", words)
}

func inboxOf(key string) string { return "_INBOX_" + key }

// readable returns the subjects for reading all records.
func readable() []string {
	out := []string{"$JS.API.INFO", "$JS.FC.>", "$JS.API.STREAM.INFO." + stream, "$JS.API.CONSUMER.LIST." + stream}
	for _, bucket := range []string{orders, records, control, rows, hosts} {
		s := "KV_" + bucket
		out = append(out, "$JS.API.STREAM.INFO."+s, "$JS.API.STREAM.MSG.GET."+s, "$JS.API.DIRECT.GET."+s+".>",
			"$JS.API.CONSUMER.CREATE."+s+".>", "$JS.API.CONSUMER.INFO."+s+".*", "$JS.API.CONSUMER.DELETE."+s+".*")
	}
	return out
}

// workable returns the subjects for running the jobs of a datastore.
func workable(datastore string) []string {
	return []string{
		"$JS.API.CONSUMER.INFO." + stream + "." + datastore,
		"$JS.API.CONSUMER.CREATE." + stream + "." + datastore + ".>",
		"$JS.API.CONSUMER.MSG.NEXT." + stream + "." + datastore,
		"$JS.ACK." + stream + "." + datastore + ".>",
		subjects + datastore + ".*", // to return a job to the end of the queue
		"$KV." + records + "." + datastore + ".*",
		"$KV." + rows + "." + datastore + ".*",
		"$KV." + hosts + ".*",
	}
}
